"""Python's garbage collector while many results are allocated."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

GC_PAUSE_THRESHOLD = 100  # attributions


@contextmanager
def gc_paused(num_attributions: int) -> Iterator[None]:
    """Pause garbage collection while many attributions are allocated.

    All of them stay alive, so each full collection would walk through all of them and free nothing. Cycles
    are collected by :func:`collect_young_generation` instead, after each batch.
    """
    is_paused = num_attributions >= GC_PAUSE_THRESHOLD and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        yield
    finally:
        if is_paused:
            gc.enable()


def collect_young_generation() -> None:
    """Collect recently allocated objects if automatic collection is paused."""
    if not gc.isenabled():
        gc.collect(1)
