"""Garbage collection is paused while many explanations are made."""

from __future__ import annotations

import gc
import weakref

import pytest

from tokenlight.explaining.garbage import GC_PAUSE_THRESHOLD, collect_young, gc_paused


def test_gc_is_paused_while_many_attributions_are_made():
    class Cycle:
        def __init__(self):
            self.own = self

    def dropped():
        return weakref.ref(Cycle())

    assert gc.isenabled()
    cycle = Cycle()
    gc.collect()
    dropped_before = weakref.ref(cycle)
    cycle = None
    with gc_paused(GC_PAUSE_THRESHOLD):
        assert not gc.isenabled()
        with gc_paused(GC_PAUSE_THRESHOLD):  # within another
            assert not gc.isenabled()
        new = dropped()
        collect_young()
        assert new() is None
        assert dropped_before() is not None  # to find it, all there is would be looked through
        assert not gc.isenabled()
    assert gc.isenabled()
    with gc_paused(GC_PAUSE_THRESHOLD - 1):
        assert gc.isenabled()
    with pytest.raises(ValueError, match="on the way"), gc_paused(GC_PAUSE_THRESHOLD):
        raise ValueError("on the way")
    assert gc.isenabled()
