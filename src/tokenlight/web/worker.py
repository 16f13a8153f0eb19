"""One thread a model: what waits is gathered, explained in one batch, and answered each by itself.

Quick work (one pass or few) is batched across users. Lengthy work (many passes, a measurement) goes
in steps, one after each batch, so that nobody waits behind it for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tokenlight.errors import TokenlightError
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import BUSY, Refusal, refusal

log = logging.getLogger("tokenlight.web")
Steps = Generator[None, None, Any]


@dataclass(eq=False)
class Job:
    """Work that somebody waits for: ``asked`` of quick work, ``steps`` of lengthy work."""

    asked: Any = None
    steps: Callable[[], Steps] | None = None
    future: Future[Any] = field(default_factory=Future)
    running: Steps | None = None
    abandoned: bool = False

    def abandon(self) -> None:
        """Nobody waits any more: it is dropped where it stands."""
        self.abandoned = True
        self.future.cancel()

    def answer(self, result: Any) -> None:
        """The result, or the error in its place."""
        with suppress(InvalidStateError):  # who waited has gone
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


class Worker:
    """Serves one model. ``batch`` answers several quick requests at once: a result or an exception
    for each, in order."""

    def __init__(
        self, name: str, batch: Callable[[Sequence[Any]], Sequence[Any]], limits: Limits
    ) -> None:
        self._batch, self._limits = batch, limits
        self._quick: deque[Job] = deque()
        self._lengthy: deque[Job] = deque()
        self._background: deque[Job] = deque()
        self._change = threading.Condition()
        self._stopping = False
        self._asked = 0.0
        # A daemon: a pass through a model cannot be interrupted, and must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=f"serving {name}", daemon=True)
        self._thread.start()

    def quick(self, asked: Any) -> Job:
        """Queue a request that is answered with others."""
        return self._queued(Job(asked=asked), self._quick, self._limits.waiting)

    def lengthy(self, steps: Callable[[], Steps]) -> Job:
        """Queue work that goes in steps; what its generator returns is the answer."""
        return self._queued(Job(steps=steps), self._lengthy, self._limits.lengthy)

    def background(self, steps: Callable[[], Steps]) -> Job:
        """Work that nobody waits for: a step of it is done when nothing else is to do."""
        return self._queued(Job(steps=steps), self._background, self._limits.lengthy)

    def stop(self, wait: float) -> None:
        """Answer what waits with a refusal, finish the step in hand, end."""
        with self._change:
            self._stopping = True
            waiting = [*self._quick, *self._lengthy, *self._background]
            self._quick.clear()
            self._lengthy.clear()
            self._background.clear()
            self._change.notify_all()
        for job in waiting:
            job.answer(closing())
        self._thread.join(wait)

    def _queued(self, job: Job, queue: deque[Job], most: int) -> Job:
        with self._change:
            if self._stopping:
                raise closing()
            if len(queue) >= most:
                raise Refusal(
                    BUSY,
                    "busy",
                    f"{len(queue)} requests are waiting for this model already.",
                    "Try again in a second.",
                )
            queue.append(job)
            if queue is not self._background:
                self._asked = time.monotonic()
            self._change.notify_all()
        return job

    def _run(self) -> None:
        while True:
            with self._change:
                while not (self._quick or self._lengthy or self._idle() or self._stopping):
                    self._change.wait(self._limits.idle_seconds if self._background else None)
                if self._stopping:
                    return
                waiting = len(self._quick)
            if waiting:
                if waiting < self._limits.batch_texts:
                    time.sleep(self._limits.gather_seconds)
                self._quick_round()
            if self._lengthy:
                self._lengthy_step(self._lengthy)
            elif not waiting and self._idle():
                self._lengthy_step(self._background)

    def _idle(self) -> bool:
        """Whether there is background work, and nobody has asked for a while."""
        quiet = time.monotonic() - self._asked >= self._limits.idle_seconds
        return bool(self._background) and quiet

    def _quick_round(self) -> None:
        with self._change:
            count = min(len(self._quick), self._limits.batch_texts)
            jobs = [self._quick.popleft() for _ in range(count)]
        jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not jobs:
            return
        try:
            answers = self._batch([job.asked for job in jobs])
        except Exception as broken:  # noqa: BLE001 - the thread must live on
            answers = [caught(broken)] * len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            job.answer(answer)

    def _lengthy_step(self, queue: deque[Job]) -> None:
        with self._change:
            if not queue:
                return
            job = queue.popleft()
        if job.running is None:
            if not job.future.set_running_or_notify_cancel():
                return
            assert job.steps is not None
            job.running = job.steps()
        if job.abandoned:
            job.running.close()
            job.answer(closing())
            return
        try:
            next(job.running)
        except StopIteration as done:
            job.answer(done.value)
        except Exception as broken:  # noqa: BLE001 - the thread must live on
            job.answer(caught(broken))
        else:
            with self._change:
                if not self._stopping:
                    queue.append(job)  # behind the others: each gets its turn
                    return
            job.answer(closing())


def caught(broken: Exception) -> Refusal:
    """Any error as a refusal; what is unexpected is logged here and not told."""
    if isinstance(broken, Refusal):
        return broken
    if isinstance(broken, TokenlightError):
        return refusal(broken)
    log.error("unexpected %s", type(broken).__name__, exc_info=broken)
    return Refusal(
        500, "internal", "something unexpected went wrong.", "The server's own log says what."
    )


def closing() -> Refusal:
    """The server goes down."""
    return Refusal(503, "shutting_down", "the server is shutting down.", "Try again later.")
