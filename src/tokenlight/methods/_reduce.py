"""From a query × key matrix to one score a token."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.errors import BadInput

Reduce = Literal["auto", "cls_row", "mean_query"]


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
