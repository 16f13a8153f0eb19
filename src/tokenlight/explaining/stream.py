"""Explaining an iterator: in windows that grow, each answered before the next is read; and many things done
together, where one of them may be refused."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, TypeVar

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, BadTarget, NotFinite, TokenlightError

# Texts that are sorted and packed together: few at first, since somebody waits for the first answer.
SIZES = (1, 7, 56, 448)
# Then more where packs are large: the more are sorted together, the less is padded. Long texts are fewer:
# so many letters a text are taken for granted, and for one that is no string so many are counted.
SMALL, USUAL, LETTERS = 2048, 256, 4096
# What one text may be refused for; anything else is wrong with the model or the options, for all.
OF_ONE_TEXT = (BadInput, BadTarget, NotFinite)
T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)
Explain = Callable[[list[Any], int], list[list[Attribution]]]


def answered(texts: Iterator[Any], explain: Explain, budget: int) -> Iterator[Attribution]:
    """The Attributions of all texts, in order, in constant memory.

    ``explain(window, first)`` gives those of each text of a window whose first one has that number.
    ``budget``: tokens that go through the model at once; a window fills several packs of them.
    Where a text is refused, or the iterator itself fails, what stands before it is answered first.
    """
    first = 0

    def explained(numbered: Sequence[tuple[int, Any]]) -> list[list[Attribution]]:
        return explain([text for _, text in numbered], numbered[0][0])

    for window in windows(texts, budget):
        for group in half_by_half(explained, list(enumerate(window, first)), TokenlightError):
            if isinstance(group, TokenlightError):
                raise group
            yield from group
        first += len(window)


def windows(texts: Iterator[Any], budget: int) -> Iterator[list[Any]]:
    """Those that are read together. Their number follows from the texts and the device alone, never from
    the clock: the same texts give the same numbers."""
    many = max(SIZES[-1], (budget - SMALL) // 2)
    for size in chain(SIZES, repeat(many)):
        window, letters, most = list[Any](), 0, max(size, SIZES[-1]) * USUAL
        try:
            for text in islice(texts, size):
                window.append(text)
                letters += len(text) if isinstance(text, str) else LETTERS
                if letters >= most:
                    break
        except Exception:  # the user's own: what came before it is answered first
            if window:
                yield window
            raise
        if window:
            yield window
        if len(window) < size and letters < most:
            return


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
