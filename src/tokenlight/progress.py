"""A progress bar for what takes longer than a second, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import Any

DELAY = 1.0  # seconds: what is done by then needs no bar
LONG = 1e6  # seconds that the time left is foretold from: a text may take minutes


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
        self.drawn: Any = None
        self.task: Any = None
        self.timer = Timer(DELAY, self._begin)
        self.timer.daemon = True
        self.timer.start()

    def __call__(self, done: float, /) -> None:
        with self.lock:
            self.done += done
            if self.drawn is not None:
                self.drawn.update(self.task, completed=int(self.done))

    def _begin(self) -> None:
        try:
            from rich import progress as rich
            from rich.console import Console
        except ImportError:
            return
        counted = [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]
        drawn = rich.Progress(
            rich.TextColumn("{task.description}", markup=False),
            rich.BarColumn(),
            *([rich.TimeElapsedColumn()] if self.total is None else counted),
            console=Console(stderr=True),
            transient=True,
            speed_estimate_period=LONG,
            # What is printed meanwhile stands above the bar, unless it goes to a file.
            redirect_stdout=sys.stdout.isatty(),
        )
        with self.lock:
            if not self.closed:
                drawn.start()
                self.task = drawn.add_task(self.what, total=self.total)
                drawn.update(self.task, completed=int(self.done))
                self.drawn = drawn

    def close(self) -> None:
        """Take the bar away."""
        self.timer.cancel()
        with self.lock:
            self.closed = True
            if self.drawn is not None:
                self.drawn.stop()
