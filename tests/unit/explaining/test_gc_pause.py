"""Garbage collection is paused while many explanations are made."""

from __future__ import annotations

import gc
import weakref

import pytest

from tokenlight.explaining.gc_pause import GC_PAUSE_THRESHOLD, collect_young_generation, gc_paused


class Cycle:
    """An object that only the garbage collector can free."""

    def __init__(self):
        self.itself = self


def test_gc_is_paused_while_many_attributions_are_made():
    assert gc.isenabled()
    with gc_paused(GC_PAUSE_THRESHOLD):
        assert not gc.isenabled()
        with gc_paused(GC_PAUSE_THRESHOLD):  # within another
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_only_new_objects_are_collected_while_gc_is_paused():
    cycle = Cycle()
    gc.collect()
    dropped_before = weakref.ref(cycle)
    cycle = None
    with gc_paused(GC_PAUSE_THRESHOLD):
        dropped_inside = weakref.ref(Cycle())
        collect_young_generation()
        assert dropped_inside() is None
        assert dropped_before() is not None  # to find it, all objects would be searched
        assert not gc.isenabled()


def test_gc_is_not_paused_for_few_attributions():
    with gc_paused(GC_PAUSE_THRESHOLD - 1):
        assert gc.isenabled()


def test_gc_is_enabled_again_after_an_error():
    with pytest.raises(ValueError, match="on the way"), gc_paused(GC_PAUSE_THRESHOLD):
        raise ValueError("on the way")
    assert gc.isenabled()
