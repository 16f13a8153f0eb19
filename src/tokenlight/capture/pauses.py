"""Pauses: between two passes through a model, whoever drives the work may do something else first."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from tokenlight.capture.loan import lent
from tokenlight.capture.shared_parts import holding

_here = threading.local()


def pausing(between: Callable[[], None] | None) -> AbstractContextManager[None]:
    """Within, on this thread, ``between`` is called from pass to pass, while no model is rewired. It
    may use the same model, and ends the work by raising. None: there are no pauses."""
    return lent([_here], between=between)


def pause() -> None:
    """A place to pause, passed over where this thread holds a model: its weights may be changed for
    a while. What is done in a pause makes none itself, unless it asks for them anew."""
    between = getattr(_here, "between", None)
    if between is not None and not holding():
        with pausing(None):
            between()
