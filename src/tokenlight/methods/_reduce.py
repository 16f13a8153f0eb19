"""From a block's query × key matrices to one of them all, and from that to one score a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.errors import BadInput

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
        raise BadInput(
            f"start_layer={start_layer} leaves no block: this model has {blocks} (0 to {blocks - 1})."
        )
