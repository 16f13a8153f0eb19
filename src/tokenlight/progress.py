"""A progress bar for what takes longer than a second, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock, Timer
from time import monotonic
from typing import Any

DELAY = 1.0  # seconds: what is done by then needs no bar


@contextmanager
def progress(
    what: str, total: int | None, show: bool | None = None
) -> Iterator[Callable[[float], None]]:
    """Yield a function to call as work is done; the bar appears after a second, whether or not
    anything is done by then. Without a ``total`` it only shows that something goes on.

    ``show``: True always, False never, None where standard error is a terminal. Without the rich
    library there is no bar.
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        yield lambda _done: None
        return
    bar = _Bar(what, total)
    try:
        yield bar
    finally:
        bar.close()


class _Bar:
    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0.0
        self.lock, self.closed = Lock(), False  # the bar begins in a thread of its own
        self.since = monotonic()
        self.drawn: Any = None
        self.task: Any = None
        self.timer = Timer(DELAY, self._begin)
        self.timer.daemon = True
        self.timer.start()

    def __call__(self, done: float, /) -> None:
        with self.lock:
            self.done += done
            if self.drawn is not None:
                self.drawn.update(self.task, completed=int(self.done), left=self._left())

    def _left(self) -> str:
        """How long the rest will take if it goes on as it went so far."""
        if not self.done or self.total is None:
            return ""
        seconds = (monotonic() - self.since) / self.done * (self.total - self.done)
        return f"{timedelta(seconds=round(seconds))} left"

    def _begin(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )
        except ImportError:
            return
        counted = [MofNCompleteColumn(), TextColumn("{task.fields[left]}")]
        drawn = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *([TimeElapsedColumn()] if self.total is None else counted),
            console=Console(stderr=True),
            transient=True,
            # What is printed meanwhile stands above the bar, unless it goes to a file.
            redirect_stdout=sys.stdout.isatty(),
        )
        with self.lock:
            if not self.closed:
                drawn.start()
                done, left = int(self.done), self._left()
                self.task = drawn.add_task(self.what, total=self.total, completed=done, left=left)
                self.drawn = drawn

    def close(self) -> None:
        """Take the bar away."""
        self.timer.cancel()
        with self.lock:
            self.closed = True
            if self.drawn is not None:
                self.drawn.stop()
