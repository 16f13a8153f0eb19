"""A progress bar for what takes longer than a second, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

DELAY = 1.0  # seconds: what is done by then needs no bar
LONG = 1e6  # seconds that the time left is foretold from: a text may take minutes


@contextmanager
def progress(
    what: str, total: int | None, show: bool | None = None
) -> Iterator[Callable[[float], None]]:
    """Yield a function to call as work is done; the bar appears after a second. Without a ``total`` it only
    shows that something goes on. ``show``: True always, False never, None where standard error is a
    terminal. Without the rich library there is no bar."""
    try:
        if show is False or (show is None and not sys.stderr.isatty()):
            raise ImportError
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        yield lambda _done: None
        return
    counted = [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]
    bar = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        *([rich.TimeElapsedColumn()] if total is None else counted),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=LONG,
        # What is printed meanwhile stands above the bar, unless it goes to a file.
        redirect_stdout=sys.stdout.isatty(),
    )
    task, timer = bar.add_task(what, total=total), Timer(DELAY, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        timer.cancel()
        timer.join()  # it may be about to begin
        if bar.live.is_started:
            bar.stop()
