"""One thread per model: requests are queued by priority, and quick ones are explained in one batch.

Quick work takes one pass through the model or a few, and is batched across users. Longer work is a
generator that yields between its passes (:mod:`tokenlight.web.pausable_calls`). Between two of its steps the
worker decides what runs next, and does what is shorter. So no request waits for longer work by more than one
of its passes.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tokenlight.web.api_errors import (
    TOO_MANY_REQUESTS,
    ApiError,
    make_shutting_down_error,
    to_api_error,
)
from tokenlight.web.limits import ServerLimits
from tokenlight.web.pausable_calls import JobAbandoned, run_in_steps

MAX_RETRY_SECONDS = 60  # longest time in a Retry-After header
NEWEST_JOB_WEIGHT = 0.3  # weight of the newest job in the moving average of durations


class Priority(IntEnum):
    """Kinds of work, the shortest and most urgent first."""

    QUICK = 0
    SHORT = 1
    LONG = 2
    BACKGROUND = 3


# Expected seconds of a job, or of a batch of quick ones, before any was measured.
INITIAL_JOB_SECONDS = {
    Priority.QUICK: 0.1,
    Priority.SHORT: 3.0,
    Priority.LONG: 5.0,
    Priority.BACKGROUND: 1.0,
}


@dataclass(eq=False)
class QueuedJob:
    """Work with a future for its result.

    Args:
        payload: For quick work, a request that is passed to the batch function; else a function.
        size: Share of a batch, in characters.
        future: Where the result goes.
    """

    payload: Any
    size: int = 0
    future: Future[Any] = field(default_factory=Future)

    def resolve(self, result: Any) -> None:
        """Set the result, or the error if it is one."""
        with suppress(InvalidStateError):  # the client has gone, or was told of the shutdown
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


class ModelWorker:
    """Runs the jobs of one model in a thread of its own.

    Args:
        name: Name of the model, for the thread.
        run_batch: Answers a batch of quick requests, each by a result or an exception.
        limits: Lengths of queues and batches, and times.
    """

    def __init__(
        self, name: str, run_batch: Callable[[Sequence[Any]], Sequence[Any]], limits: ServerLimits
    ) -> None:
        self._run_batch = run_batch
        self._limits = limits
        self._queues: dict[Priority, deque[QueuedJob]] = {
            priority: deque() for priority in Priority
        }
        self._running: list[tuple[Priority, QueuedJob]] = []
        self._expected_seconds = dict(INITIAL_JOB_SECONDS)
        self._condition = threading.Condition()
        self._is_stopping = False
        self._last_request_time = 0.0
        # A daemon: a pass through a model cannot be interrupted, and must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=f"serving {name}", daemon=True)
        self._thread.start()

    def submit(self, priority: Priority, payload: Any, size: int = 0) -> QueuedJob:
        """Queue work.

        Args:
            priority: The kind of work. Background work runs only when there is nothing else.
            payload: For quick work, a request that is answered in a batch; else a function that pauses.
            size: Share of a batch, in characters.

        Raises:
            ApiError: The queue is full, the wait would be too long, or the server is shutting down.
        """
        job = QueuedJob(payload, size)
        queue = self._queues[priority]
        with self._condition:
            if self._is_stopping:
                raise make_shutting_down_error()
            # Requests whose clients have gone do not count.
            for other in list(queue):
                if other.future.done():
                    queue.remove(other)
            if priority is not Priority.BACKGROUND:
                self._check_not_busy(priority, len(queue))
                self._last_request_time = time.monotonic()
            queue.append(job)
            self._condition.notify_all()
        return job

    def stop(self, timeout: float) -> bool:
        """Reject waiting jobs and end the thread after the pass that is running.

        Args:
            timeout: Seconds to wait for the thread.

        Returns:
            Whether the thread has ended.
        """
        with self._condition:
            self._is_stopping = True
            rejected = [job for priority, job in self._running if priority is not Priority.QUICK]
            for queue in self._queues.values():
                rejected += queue
                queue.clear()
            self._condition.notify_all()
        for job in rejected:
            job.resolve(make_shutting_down_error())
        self._thread.join(timeout)
        # A batch that takes longer than the timeout is not waited for.
        for _, job in list(self._running):
            job.resolve(make_shutting_down_error())
        return not self._thread.is_alive()

    def _check_not_busy(self, priority: Priority, num_waiting: int) -> None:
        """Refuse a request immediately rather than after a long wait."""
        num_running = sum(running_lane is priority for running_lane, _ in self._running)
        num_before = num_waiting + num_running
        num_rounds = float(num_before)
        if priority is Priority.QUICK:
            num_rounds = num_before / self._limits.batch_texts
        wait_seconds = num_rounds * self._expected_seconds[priority]
        is_full = num_waiting >= self._limits.max_waiting[priority]
        if is_full or wait_seconds > self._limits.wait_seconds:
            # Half of the expected wait: jobs ahead may be abandoned.
            retry_seconds = min(max(1, math.ceil(wait_seconds / 2)), MAX_RETRY_SECONDS)
            raise ApiError(
                f"Too many requests for this model are waiting ({num_before} before this one).",
                code="busy",
                hint=f"Try again in {retry_seconds} s.",
                status=TOO_MANY_REQUESTS,
                headers={"Retry-After": str(retry_seconds)},
            )

    def _run(self) -> None:
        """Run jobs until the worker is stopped."""
        while not self._is_stopping:
            with self._condition:
                while not (self._is_stopping or self._has_requests() or self._can_run_background()):
                    self._condition.wait(self._limits.idle_seconds)
                num_quick = len(self._queues[Priority.QUICK])
            has_room = 0 < num_quick < self._limits.batch_texts
            if has_room and not self._is_stopping:
                # Requests that arrive within a moment join the batch.
                time.sleep(self._limits.gather_seconds)
            self._run_next(Priority.LONG)

    def _has_requests(self) -> bool:
        return any(
            self._queues[priority] for priority in (Priority.QUICK, Priority.SHORT, Priority.LONG)
        )

    def _can_run_background(self) -> bool:
        """Return whether there is background work, and no request has come for a while."""
        idle_seconds = time.monotonic() - self._last_request_time
        return bool(self._queues[Priority.BACKGROUND]) and idle_seconds >= self._limits.idle_seconds

    def _run_next(self, lowest_priority: Priority) -> None:
        """Run a batch of all quick jobs, then one longer job.

        The longest priority goes first: its job lets shorter ones through in its pauses, while behind them
        it might never begin.
        """
        quick_jobs = self._take_jobs(Priority.QUICK, self._limits.batch_texts)
        if quick_jobs:
            self._run_jobs(Priority.QUICK, quick_jobs)
        priorities = [
            priority for priority in (Priority.LONG, Priority.SHORT) if priority <= lowest_priority
        ]
        if not self._running and self._can_run_background():
            priorities.append(Priority.BACKGROUND)
        for priority in priorities:
            jobs = self._take_jobs(priority, 1)
            if jobs:
                self._run_jobs(priority, jobs)
                return

    def _take_jobs(self, priority: Priority, max_jobs: int) -> list[QueuedJob]:
        """Remove the next jobs from a queue, as many as make a batch; skip abandoned ones."""
        jobs: list[QueuedJob] = []
        free_characters = self._limits.batch_characters
        with self._condition:
            queue = self._queues[priority]
            while queue and len(jobs) < max_jobs and free_characters > 0:
                job = queue.popleft()
                if not job.future.done():
                    self._running.append((priority, job))
                    jobs.append(job)
                    free_characters -= job.size
        return jobs

    def _run_jobs(self, priority: Priority, jobs: Sequence[QueuedJob]) -> None:
        """Run a batch of quick jobs or one longer job, and resolve them."""
        start = time.monotonic()
        results: Sequence[Any]
        try:
            if priority is Priority.QUICK:
                results = self._run_batch([job.payload for job in jobs])
            else:
                results = [self._run_steps(priority, jobs[0])]
        except JobAbandoned:
            results = [make_shutting_down_error()] * len(jobs)
        except BaseException as error:  # noqa: BLE001 - the thread must survive every error
            results = [to_api_error(error)] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            with self._condition:
                self._running.remove((priority, job))
            job.resolve(result)
        self._update_expected_seconds(priority, time.monotonic() - start)

    def _update_expected_seconds(self, priority: Priority, seconds: float) -> None:
        """Update the moving average of the durations of a priority."""
        difference = seconds - self._expected_seconds[priority]
        self._expected_seconds[priority] += NEWEST_JOB_WEIGHT * difference

    def _run_steps(self, priority: Priority, job: QueuedJob) -> Any:
        """Run a longer job step by step, and shorter jobs between its steps; return its result.

        However many requests come, the job goes on for as long as it was interrupted, at most
        ``work_slice_seconds``, before it is interrupted again.

        Raises:
            JobAbandoned: No client waits for the job any more.
        """
        next_interruption = 0.0
        with closing(run_in_steps(job.payload)) as steps:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
                start = time.monotonic()
                if start >= next_interruption and not self._is_abandoned(job):
                    self._run_next(Priority(priority - 1))
                    end_time = time.monotonic()
                    interruption = min(end_time - start, self._limits.work_slice_seconds)
                    next_interruption = end_time + interruption
                if self._is_abandoned(job):
                    raise JobAbandoned

    def _is_abandoned(self, job: QueuedJob) -> bool:
        """Return whether a job was abandoned, or the worker is stopping."""
        return job.future.done() or self._is_stopping
