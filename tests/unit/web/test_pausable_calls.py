"""A long call as a generator: it stops at each pause, and everything it returns or raises comes out."""

import threading

import pytest
import torch

from tokenlight.hooks.locks import call_between_passes
from tokenlight.web.pausable_calls import JobAbandoned, run_in_steps


def collect(steps):
    """Iterate to the end; return the number of pauses and the result."""
    num_pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return num_pauses, end.value
        num_pauses += 1


def test_run_in_steps_yields_at_each_pause_and_returns_the_result():
    def work():
        for _ in range(3):
            call_between_passes()
        return "result"

    assert collect(run_in_steps(work)) == (3, "result")
    assert collect(run_in_steps(lambda: "at once")) == (0, "at once")


def test_only_one_thread_runs_at_a_time():
    order = []

    def work():
        for number in range(3):
            order.append(f"work {number}")
            call_between_passes()

    for number, _ in enumerate(run_in_steps(work)):
        order.append(f"between {number}")
    assert order == ["work 0", "between 0", "work 1", "between 1", "work 2", "between 2"]


def test_other_work_does_not_inherit_the_modes_of_the_call():
    def work():
        with torch.inference_mode():
            call_between_passes()
            return torch.is_inference_mode_enabled()

    steps = run_in_steps(work)
    next(steps)
    assert not torch.is_inference_mode_enabled()
    assert collect(steps) == (0, True)


def test_calls_may_be_nested():
    def inner():
        call_between_passes()
        return "inner"

    def outer():
        call_between_passes()
        return "outer"

    steps = run_in_steps(outer)
    next(steps)
    assert collect(run_in_steps(inner)) == (1, "inner")
    assert collect(steps) == (0, "outer")


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_is_raised_where_the_call_is_iterated(error):
    def work():
        call_between_passes()
        raise error

    steps = run_in_steps(work)
    next(steps)
    with pytest.raises(error):
        next(steps)


def test_closing_ends_the_call_at_its_pause_and_waits_for_it():
    events = []

    def work():
        try:
            call_between_passes()
            events.append("went on")
        except JobAbandoned:
            events.append("abandoned")
            raise
        finally:
            events.append("unwound")

    num_threads = threading.active_count()
    steps = run_in_steps(work)
    next(steps)
    steps.close()
    assert events == ["abandoned", "unwound"]
    assert threading.active_count() == num_threads


def test_a_call_that_is_closed_before_its_first_step_never_starts():
    called = []
    steps = run_in_steps(lambda: called.append("called"))
    steps.close()
    assert called == []
