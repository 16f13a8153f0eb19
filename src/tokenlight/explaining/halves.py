"""Many things done together, where one of them may be refused."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tokenlight.errors import BadInput, BadTarget, NotFinite

# What one text may be refused for; anything else is wrong with the model or the options, for all.
OF_ONE_TEXT = (BadInput, BadTarget, NotFinite)
T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)


def half_by_half(
    work: Callable[[Sequence[T]], Sequence[R]],
    given: Sequence[T],
    refusals: type[E] | tuple[type[E], ...],
) -> list[R | E]:
    """What ``work`` gives for each of ``given``, done together. Where it refuses them, each half is
    tried by itself: one that is refused costs itself only."""
    if not given:
        return []
    try:
        return list(work(given))
    except refusals as refused:
        if len(given) == 1:
            return [refused]
    half = len(given) // 2
    first = half_by_half(work, given[:half], refusals)
    return first + half_by_half(work, given[half:], refusals)
