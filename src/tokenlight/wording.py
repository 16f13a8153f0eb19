"""How a message names what a person can give: as Python writes it, or as the command line does.

A refusal arises deep in the library, where nobody knows who will read it. Where the two ways have
different names the message is written with both, and the front that is asking chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_FLAGS: ContextVar[bool] = ContextVar("_FLAGS", default=False)


def way(python: str, flags: str) -> str:
    """``python``; within ``in_flags()``, ``flags``: the same in options of ``tokenlight explain``."""
    return flags if _FLAGS.get() else python


def long_way(how: str) -> str:
    """What to give for a text that is too long: ``truncate`` or ``stride``."""
    return way(f"long={how!r}", f"--long {how}")


@contextmanager
def in_flags() -> Iterator[None]:
    """Messages made within name options of ``tokenlight explain``, not Python objects."""
    before = _FLAGS.set(True)
    try:
        yield
    finally:
        _FLAGS.reset(before)
