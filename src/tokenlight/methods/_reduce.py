"""From a query × key matrix to one score a token."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.tape import Tape

Reduce = Literal["auto", "cls_row", "mean_query"]


def reduced(matrix: Tensor, tape: Tape, how: Reduce) -> Tensor:
    """``batch query key`` to ``batch key``.

    ``cls_row``: the row of the token the head reads ([CLS], last token), its own score zero.
    ``mean_query``: the mean over real queries, cell [0, 0] zero first, as the Mask-LRP code does
    for question answering. ``auto``: the row for classes, the mean for answer spans.
    """
    if how == "auto":
        how = "mean_query" if tape.targets[0].kind == "span" else "cls_row"
    if how == "cls_row":
        return tape.read(matrix)
    return tape.mean_query(without_first_cell(matrix))


def without_first_cell(matrix: Tensor) -> Tensor:
    """The matrix with cell [0, 0] zero."""
    cell = torch.zeros_like(matrix, dtype=torch.bool)
    cell[:, 0, 0] = True
    return matrix.masked_fill(cell, 0.0)
