"""Dot products of pairs of rows in one reading of both: nothing is widened, stacked or multiplied aside.
Triton alone compiles this; ``transfer.dotted`` does the same by plain steps."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917, N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WIDTH = 4, 1024  # of a tile


@triton.jit(do_not_specialize=("count", "tokens", "step"))  # else compiled again for each length
def _dots(x, y, out, count, width, tokens, step, R: tl.constexpr, W: tl.constexpr):
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    total = tl.zeros([R, W], tl.float32)
    for first in range(0, width, W):
        d = first + tl.arange(0, W)
        at = row[:, None] * width + d[None, :]
        inside = (row[:, None] < count) & (d[None, :] < width)
        own = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        total += own * tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row // tokens * step + row % tokens, tl.sum(total, 1), mask=row < count)


def dots(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Over the last axis of each pair of ``batch token hidden``: ``batch pair token``, float32."""
    batch, tokens, width = first[0].shape
    out = torch.empty(batch, len(first), tokens, device=first[0].device, dtype=torch.float32)
    grid = (triton.cdiv(batch * tokens, ROWS),)
    for pair, (one, other) in enumerate(zip(first, second, strict=True)):
        given = one.contiguous(), other.contiguous(), out[:, pair], batch * tokens
        size = {"R": ROWS, "W": min(WIDTH, triton.next_power_of_2(width))}
        _dots[grid](*given, width, tokens, len(first) * tokens, **size)
    return out
