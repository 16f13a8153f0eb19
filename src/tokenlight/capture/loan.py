"""Loans: attributes that have another value within a ``with``, and their own again behind it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def lent(owners: Sequence[Any], **values: Any) -> Iterator[None]:
    """Within: each of ``owners`` has ``values`` as its attributes."""
    before = [{name: getattr(owner, name, None) for name in values} for owner in owners]
    try:
        for owner in owners:
            for name, value in values.items():
                setattr(owner, name, value)
        yield
    finally:
        for owner, own in zip(owners, before, strict=True):
            for name, value in own.items():
                setattr(owner, name, value)
