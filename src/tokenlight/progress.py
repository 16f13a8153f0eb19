"""A progress bar for work that takes longer than a second, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import Any

SHOW_DELAY_SECONDS = 1.0  # shorter work needs no bar
# The period from which the remaining time is estimated; long, because one text may take minutes.
SPEED_WINDOW_SECONDS = 1e6

# The bar around the running code, to which parts of the work add lines of their own.
_current_bar: ContextVar[Any] = ContextVar("_current_bar", default=None)


@contextmanager
def progress_bar(
    description: str, total: int | None, show: bool | None = None
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while the block runs, if it takes longer than a second.

    Args:
        description: Label of the work.
        total: The number of steps; None shows only that something is going on.
        show: True shows the bar always, False never, None if standard error is a terminal. Without the
            rich library there is no bar.

    Yields:
        A function to call with the number of steps done.
    """
    is_wanted = sys.stderr.isatty() if show is None else show
    bar = _make_bar(has_total=total is not None) if is_wanted else None
    if bar is None:
        with _as_current_bar(None):
            yield lambda _num_steps: None
        return
    task = bar.add_task(description, total=total)
    timer = Timer(SHOW_DELAY_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        with _as_current_bar(bar):
            yield lambda num_steps: bar.advance(task, num_steps)
    finally:
        timer.cancel()
        timer.join()  # It may be starting the bar right now.
        if bar.live.is_started:
            bar.stop()


@contextmanager
def _as_current_bar(bar: Any) -> Iterator[None]:
    """Let the block add lines to ``bar``; None hides what it would add."""
    outer = _current_bar.get()
    _current_bar.set(bar)
    try:
        yield
    finally:
        _current_bar.set(outer)


@contextmanager
def nested_progress(description: str, total: int) -> Iterator[Callable[[float], None]]:
    """Add a line to the progress bar around this block while it runs; without such a bar, show nothing.

    Args:
        description: What is being done.
        total: The number of steps.

    Yields:
        A function to call with the number of steps done.
    """
    bar = _current_bar.get()
    if bar is None:
        yield lambda _num_steps: None
        return
    task = bar.add_task(description, total=total)
    try:
        yield lambda num_steps: bar.advance(task, num_steps)
    finally:
        bar.remove_task(task)


def _make_bar(*, has_total: bool) -> Any:
    """Return a bar of the rich library that is not shown yet; None if rich is not installed."""
    try:
        from rich import progress as rich
        from rich.console import Console
    except ImportError:
        return None
    columns: list[Any] = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn()]
    if has_total:
        columns += [rich.MofNCompleteColumn(), rich.TimeRemainingColumn()]
    else:
        columns.append(rich.TimeElapsedColumn())
    return rich.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=SPEED_WINDOW_SECONDS,
        # Other output appears above the bar, unless it goes to a file.
        redirect_stdout=sys.stdout.isatty(),
    )
