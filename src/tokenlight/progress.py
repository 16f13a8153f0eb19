"""A progress bar for what takes longer than two seconds, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Advance(Protocol):
    """Called with the number of things done since the last call."""

    def __call__(self, done: int, /) -> None: ...


@contextmanager
def progress(what: str, total: int | None, show: bool | None = None) -> Iterator[Advance]:
    """Yield a function to call as work is done; the bar appears after two seconds.

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
        self.what, self.total, self.done = what, total, 0
        self.since = time.monotonic()
        self.drawn: Any = None
        self.task: Any = None

    def __call__(self, done: int, /) -> None:
        self.done += done
        if self.drawn is None and time.monotonic() - self.since > 2:
            self._begin()
        if self.drawn:
            self.drawn.update(self.task, completed=self.done)

    def _begin(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError:
            self.drawn = False
            return
        # What is printed meanwhile belongs to standard output, which may be a file.
        self.drawn = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)
        self.drawn.start()
        self.task = self.drawn.add_task(self.what, total=self.total, completed=self.done)

    def close(self) -> None:
        """Take the bar away."""
        if self.drawn:
            self.drawn.stop()
