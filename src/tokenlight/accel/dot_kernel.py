"""Dot products of pairs of rows in a Triton kernel that reads both once.

Nothing is upcast, stacked or multiplied in memory. ``tensors.compute_dot_products`` does the same in plain
torch on every other device.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917, N803

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

# Size of a tile: rows (tokens) and columns (hidden units).
TILE_ROWS = 4
TILE_WIDTH = 1024


# Arguments that follow from the length of a text are not specialized: the kernel would be recompiled
# for each length.
@triton.jit(do_not_specialize=("count", "tokens", "stride"))
def _dot_kernel(x, y, out, count, width, tokens, stride, R: tl.constexpr, W: tl.constexpr):
    row = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    total = tl.zeros([R, W], tl.float32)
    for first in range(0, width, W):
        d = first + tl.arange(0, W)
        offset = row[:, None] * width + d[None, :]
        inside = (row[:, None] < count) & (d[None, :] < width)
        product = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        total += product * tl.load(y + offset, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row // tokens * stride + row % tokens, tl.sum(total, 1), mask=row < count)


def compute_dots(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Compute dot products over the last axis of each pair of ``batch token hidden``.

    Returns:
        ``batch pair token``, float32.
    """
    batch, tokens, width = first[0].shape
    out = torch.empty(batch, len(first), tokens, device=first[0].device, dtype=torch.float32)
    num_rows = batch * tokens
    grid = (triton.cdiv(num_rows, TILE_ROWS),)
    tile_width = min(TILE_WIDTH, triton.next_power_of_2(width))
    for pair, (x, y) in enumerate(zip(first, second, strict=True)):
        _dot_kernel[grid](
            x.contiguous(), y.contiguous(), out[:, pair], num_rows, width, tokens, len(first) * tokens,
            R=TILE_ROWS, W=tile_width,
        )  # fmt: skip
    return out
