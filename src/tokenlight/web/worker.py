"""One thread a model: what waits is gathered, explained in one batch, and answered each by itself.

Quick work (one pass or few) is batched across users. Other work pauses between its passes through the
model, and in each pause the thread does what is shorter: nobody waits behind it for more than a pass.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tokenlight.capture.turns import pausing
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import BUSY, Refusal, caught, closing

LONGEST_RETRY = 60  # seconds that anybody is told to stay away
NEWEST = 0.3  # weight of the newest job in the time that jobs are thought to take


class Lane(IntEnum):
    """Kinds of work, the shortest first; each gives way to those before it."""

    QUICK = 0
    SHORT = 1
    LONG = 2
    BACKGROUND = 3


# Seconds that a job is thought to take before any was seen.
FIRST = {Lane.QUICK: 0.1, Lane.SHORT: 3.0, Lane.LONG: 5.0, Lane.BACKGROUND: 1.0}


class GivenUp(BaseException):
    """Ends work that nobody waits for; no method's or metric's own handler may take it."""


@dataclass(eq=False)
class QueuedJob:
    """Work that somebody waits for. ``asked``: of quick work what its batch is given, else a function;
    ``size``: its share of a batch, in characters."""

    asked: Any
    size: int = 0
    future: Future[Any] = field(default_factory=Future)

    def answer(self, result: Any) -> None:
        """The result, or the error in its place."""
        with suppress(InvalidStateError):  # who waited has gone, or was told that the server closes
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


class ModelWorker:
    """Serves one model; ``batch`` answers quick requests at once, each by a result or an exception."""

    def __init__(
        self, name: str, batch: Callable[[Sequence[Any]], Sequence[Any]], limits: ServerLimits
    ) -> None:
        self._batch, self._limits = batch, limits
        self._waiting: dict[Lane, deque[QueuedJob]] = {lane: deque() for lane in Lane}
        self._in_hand: list[tuple[Lane, QueuedJob]] = []
        self._takes = dict(FIRST)  # a job, or a batch
        self._change = threading.Condition()
        self._stopping = False
        self._asked = 0.0
        # A daemon: a pass through a model cannot be interrupted, and must not hold up the exit.
        self._thread = threading.Thread(target=self._run, name=f"serving {name}", daemon=True)
        self._thread.start()

    def work(self, lane: Lane, asked: Any, size: int = 0) -> QueuedJob:
        """Queue a function that pauses, or of quick work a request that is answered with others; what is in
        the background is done when nothing else is to do."""
        job, queue = QueuedJob(asked, size), self._waiting[lane]
        with self._change:
            if self._stopping:
                raise closing()
            for gone in [other for other in queue if other.future.done()]:
                queue.remove(gone)
            if lane is not Lane.BACKGROUND:
                self._refuse_if_busy(lane, len(queue))
                self._asked = time.monotonic()
            queue.append(job)
            self._change.notify_all()
        return job

    def stop(self, wait: float) -> bool:
        """Tell who waits that the server closes, and end after the pass in hand; whether it did."""
        with self._change:
            self._stopping = True
            told = [job for lane, job in self._in_hand if lane is not Lane.QUICK]
            for queue in self._waiting.values():
                told += queue
                queue.clear()
            self._change.notify_all()
        for job in told:
            job.answer(closing())
        self._thread.join(wait)
        for _, job in list(self._in_hand):  # a pass that takes longer
            job.answer(closing())
        return not self._thread.is_alive()

    def _refuse_if_busy(self, lane: Lane, waiting: int) -> None:
        """At once, rather than after a long wait in vain."""
        ahead = waiting + sum(other is lane for other, _ in self._in_hand)
        rounds = ahead / self._limits.batch_texts if lane is Lane.QUICK else ahead
        seconds = rounds * self._takes[lane]
        if waiting >= self._limits.waiting[lane] or seconds > self._limits.wait_seconds:
            retry = min(max(1, math.ceil(seconds / 2)), LONGEST_RETRY)
            said = f"{ahead} request{'s' * (ahead != 1)} for this model came before this one."
            hint = f"Try again in {retry} second{'s' * (retry != 1)}."
            raise Refusal("busy", said, hint, BUSY, {"Retry-After": str(retry)})

    def _run(self) -> None:
        asked = [self._waiting[lane] for lane in (Lane.QUICK, Lane.SHORT, Lane.LONG)]
        while not self._stopping:
            with self._change:
                while not (self._stopping or any(asked) or self._idle()):
                    self._change.wait(self._limits.idle_seconds)
                gathers = 0 < len(self._waiting[Lane.QUICK]) < self._limits.batch_texts
            if gathers and not self._stopping:
                time.sleep(self._limits.gather_seconds)
            self._turn(Lane.LONG)

    def _idle(self) -> bool:
        """Whether there is background work, and nobody has asked for a while."""
        quiet = time.monotonic() - self._asked >= self._limits.idle_seconds
        return bool(self._waiting[Lane.BACKGROUND]) and quiet

    def _turn(self, longest: Lane) -> None:
        """A batch of all that is quick, then one job. The longest first: its own pauses let shorter
        ones through, while it would never begin behind them."""
        if jobs := self._taken(Lane.QUICK, self._limits.batch_texts):
            self._answer(Lane.QUICK, jobs)
        lanes = [lane for lane in (Lane.LONG, Lane.SHORT) if lane <= longest]
        if not self._in_hand and self._idle():
            lanes.append(Lane.BACKGROUND)
        for lane in lanes:
            if jobs := self._taken(lane):
                self._answer(lane, jobs)
                return

    def _taken(self, lane: Lane, most: int = 1) -> list[QueuedJob]:
        """The next jobs of a lane that somebody still waits for, as many as make a batch."""
        jobs, room = list[QueuedJob](), self._limits.batch_characters
        with self._change:
            queue = self._waiting[lane]
            while queue and len(jobs) < most and room > 0:
                job = queue.popleft()
                if not job.future.done():
                    self._in_hand.append((lane, job))
                    jobs.append(job)
                    room -= job.size
        return jobs

    def _answer(self, lane: Lane, jobs: Sequence[QueuedJob]) -> None:
        """Do a batch of quick jobs, or one other; give each its answer, and remember how long it took."""
        began = time.monotonic()
        try:
            if lane is Lane.QUICK:
                answers = self._batch([job.asked for job in jobs])
            else:
                with pausing(self._pauses(lane, jobs[0])):
                    answers = [jobs[0].asked()]
        except GivenUp:
            answers = [closing()] * len(jobs)
        except BaseException as broken:  # noqa: BLE001 - whatever it is, the thread must live on
            answers = [caught(broken)] * len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            with self._change:
                self._in_hand.remove((lane, job))
            job.answer(answer)
        self._takes[lane] += NEWEST * (time.monotonic() - began - self._takes[lane])

    def _pauses(self, lane: Lane, job: QueuedJob) -> Callable[[], None]:
        """Let what is shorter through; work that nobody waits for ends here. However much is asked,
        the work then goes on for as long as it was kept waiting, up to ``share_seconds``."""
        until = 0.0  # it makes no pause before

        def pause() -> None:
            nonlocal until
            began = time.monotonic()
            if began >= until and not job.future.done() and not self._stopping:
                self._turn(Lane(lane - 1))
                now = time.monotonic()
                until = now + min(now - began, self._limits.share_seconds)
            if job.future.done() or self._stopping:
                raise GivenUp

        return pause
