"""From query × key maps, for a whole target or side by side, to one score a token."""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.transfer import sent
from tokenlight.errors import BadInput
from tokenlight.methods._method import Method, Site, Tape

__all__ = ["Method", "Site", "Tape"]  # beside what is written here
Layer = int | Literal["middle", "all"]
Reduce = Literal["auto", "cls_row", "mean_query"]


def rolled_out(
    steps: Iterable[Tensor], *, row_normalize: bool, residual: bool = True
) -> Iterator[Tensor]:
    r""":math:`\hat A^l\cdots\hat A^1` for each l, with :math:`\hat A = \operatorname{rownorm}(M + I)`
    (the identity if ``residual``), of ``steps`` M bottom first, each ``batch query key``."""
    flow: Tensor | None = None
    for step in steps:
        matrix = step
        if residual:
            matrix = matrix + torch.eye(step.shape[-1], device=step.device, dtype=step.dtype)
        if row_normalize:
            total = matrix.sum(dim=-1, keepdim=True)
            # Without the identity a query that sees no key, as padding may, has nothing to share.
            matrix = matrix / total.masked_fill(total == 0, 1.0)
        flow = matrix if flow is None else matrix @ flow
        yield flow


def reduced(matrix: Tensor, tape: Tape, how: Reduce, *, zero_readout: bool = True) -> Tensor:
    """``batch query key`` to ``batch key``.

    ``cls_row``: the row of the token the head reads ([CLS], last token, an answer's start).
    ``mean_query``: the mean over real queries, as the Mask-LRP code does for question answering.
    ``auto``: the row for classes, the mean for answer spans. ``zero_readout``: the read-out token's
    own cell is zero first (:meth:`Tape.without_own_cell`).
    """
    if how == "auto":
        how = "mean_query" if tape.spans else "cls_row"
    if how == "cls_row":
        return tape.read(matrix, zero_readout=zero_readout)
    return tape.mean_query(tape.without_own_cell(matrix) if zero_readout else matrix)


def require_block(start_layer: int, blocks: int) -> None:
    """Refuse a ``start_layer`` that is none of a model's blocks."""
    if not 0 <= start_layer < blocks:
        has = f"this model has {blocks} (0 to {blocks - 1})"
        raise BadInput(f"start_layer={start_layer} leaves no block: {has}.")


class AttentionGradientMethod(Method):
    """Reads attention maps and their gradients, for an answer's start and its end by themselves."""

    needs = frozenset({Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.READOUT})

    def __call__(self, tape: Tape) -> Tensor:
        return over_sides(tape, self.score)

    @abc.abstractmethod
    def score(self, tape: Tape) -> Tensor:
        """Of a whole target, or of one side of an answer."""


def layers_of(tape: Tape, layer: Layer) -> list[int]:
    """The hidden states an option names: 0 is the embedding, ``middle`` half of the blocks up."""
    count = len(tape.recording.hidden)
    if layer == "all":
        return list(range(count))
    if layer == "middle":
        return [(count - 1) // 2]
    if not -count <= layer < count:
        raise BadInput(f"layer={layer} does not exist; give 0 (embedding) to {count - 1}.")
    return [layer % count]


def over_sides(tape: Tape, score: Callable[[Tape], Tensor], *, alike: bool = False) -> Tensor:
    """An answer's map: its start's plus its end's, as the official codes add them. What is not
    linear in the gradient must not be asked of both logits at once. Other targets: of the whole.

    ``alike``: the map is the same for either side, so it is made once and taken twice.
    """
    if not alike:
        return weighted(tape.sides, score)
    scores = score(tape)
    if not tape.spans:
        return scores
    sides = [len(target.sides) for target in tape.targets]
    times = sent(sides, scores.device, scores.dtype)
    return times[:, None] * scores


def weighted(parts: Sequence[tuple[Tensor, Tape]], score: Callable[[Tape], Tensor]) -> Tensor:
    """Σ weight · score, ``batch token`` or ``batch layer token``."""
    found = []
    for weights, part in parts:
        scores = score(part)
        found.append(weights.reshape(-1, *[1] * (scores.ndim - 1)) * scores)
    return torch.stack(found).sum(dim=0)
