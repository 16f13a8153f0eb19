"""A target that falls into parts, each explained by itself."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from tokenlight.capture.tape import Site, Sites, Tape, sides_of
from tokenlight.capture.transfer import sent
from tokenlight.methods._method import Method


class AttentionGradientMethod(Method):
    """Reads attention maps and their gradients, for an answer's start and its end by themselves."""

    needs: ClassVar[Sites] = frozenset({Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return over_sides(tape, self.score)

    @abc.abstractmethod
    def score(self, tape: Tape) -> Tensor:
        """Of a whole target, or of one side of an answer."""


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
