"""A full garbage collection that a test can rely on."""

import gc
import threading
import time


def collect_garbage() -> None:
    """Collect all garbage there is, also while another thread is collecting.

    ``gc.collect()`` then returns at once and collects nothing. pytest-xdist receives messages in a thread,
    in which a collection may begin at any moment.
    """
    own_thread = threading.get_ident()
    finished = threading.Event()

    def note_end(phase: str, info: dict[str, int]) -> None:
        """Set ``finished`` after a full collection of this thread."""
        is_full = info["generation"] == 2
        if phase == "stop" and is_full and threading.get_ident() == own_thread:
            finished.set()

    gc.callbacks.append(note_end)
    try:
        gc.collect()
        while not finished.is_set():
            time.sleep(0.001)  # lets the other thread go on
            gc.collect()
    finally:
        gc.callbacks.remove(note_end)
