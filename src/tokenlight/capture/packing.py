"""Which rows go through the model together: sorted by length, cut by a token budget."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# A pack of this share of the budget keeps a device busy; from there on padding costs more than another
# pass, so a row that would be padded by more than that share of its length begins a new pack.
PROCESSOR = 1 / 8, 0.15
GPU = 1 / 4, 0.06


def in_halves(run: Callable[[slice], list[T]], count: int) -> list[T]:
    """What ``run`` gives for ``count`` rows, a slice of them at a time: all at once or, where memory
    does not suffice, in halves. A single row that does not fit is an error."""
    waiting, found = [slice(0, count)], list[T]()
    while waiting:
        part = waiting.pop()
        try:
            found += run(part)
            continue
        except torch.OutOfMemoryError:
            if part.stop - part.start == 1:
                raise
        torch.cuda.empty_cache()  # behind the except: the error holds what was computed so far
        half = (part.start + part.stop) // 2
        waiting += [slice(half, part.stop), slice(part.start, half)]
    return found


def packs(
    lengths: Sequence[int],
    budget: int,
    *,
    padding_proof: bool = True,
    most: int | None = None,
    kinds: Sequence[tuple[int, ...]] | None = None,
    worth: tuple[float, float] = PROCESSOR,
) -> list[list[int]]:
    """Positions of rows, grouped so that rows × longest row ≤ ``budget`` (a longer row goes alone), and
    at most ``most`` rows of one of ``kinds``; of one length where the model is not ``padding_proof``.
    Neighbours in length share a pack. Longest first: if memory does not suffice, that shows at once."""
    apart = [(0,)] * len(lengths) if kinds is None else kinds
    count = len(lengths)
    alike = len({*lengths}) == len({*apart}) == 1
    if alike and count <= (most or count) and count * lengths[0] <= budget:
        return [[*range(count)]]
    order = sorted(range(len(lengths)), key=lambda i: (apart[i], lengths[i], -i), reverse=True)
    groups: list[list[int]] = []
    widest = 0  # of the pack that is being filled
    for position in order:
        length = lengths[position]
        held = widest * len(groups[-1]) if groups else 0
        wasteful = held >= budget * worth[0] and length < widest * (1 - worth[1])
        fits = not wasteful if padding_proof else length == widest
        full = not groups or len(groups[-1]) == most or held + widest > budget
        if fits and not full and apart[groups[-1][0]] == apart[position]:
            groups[-1].append(position)
        else:
            groups.append([position])
            widest = length
    return groups


def kind_of(row: Any) -> tuple[int, ...]:
    """What rows of one pack share: lengths of source and answer, the shape of a picture."""
    own = row.source or 0, len(row.answer)
    return own if row.image is None else (*own, *row.image.pixels.shape)
