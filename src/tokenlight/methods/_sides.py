"""A target that falls into parts, each explained by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tokenlight.capture.tape import Tape, sides_of
from tokenlight.capture.transfer import sent


def over_sides(tape: Tape, score: Callable[[Tape], Tensor], *, alike: bool = False) -> Tensor:
    """An answer's map: its start's plus its end's, as the official codes add them. What is not
    linear in the gradient must not be asked of both logits at once. Other targets: of the whole.

    ``alike``: the map is the same for either side, so it is made once and taken twice.
    """
    if not alike:
        return weighted(tape.sides, score)
    scores = score(tape)
    sides = [len(sides_of(target)) for target in tape.targets]
    times = sent(sides, scores.device, scores.dtype)
    return times[:, None] * scores


def weighted(parts: Sequence[tuple[Tensor, Tape]], score: Callable[[Tape], Tensor]) -> Tensor:
    """Σ weight · score, ``batch token`` or ``batch layer token``."""
    found = []
    for weights, part in parts:
        scores = score(part)
        found.append(weights.reshape(-1, *[1] * (scores.ndim - 1)) * scores)
    return torch.stack(found).sum(dim=0)
