r"""Means over heads of attention, and of attention times its gradient, beside a fused kernel.

.. math:: \bar A = \tfrac1H \sum_h A_h, \qquad \tfrac1H \sum_h A_h \odot \partial y/\partial A_h, \qquad
   \tfrac1H \sum_h (A_h \odot \partial y/\partial A_h)^+

where :math:`A_h = \exp(s_h - \mathrm{lse}_h)` and, with C = AV, :math:`\partial y/\partial A_h =
(\partial y/\partial C_h) V_h^T`. A program goes through the heads of one tile of queries and keys: no map of
a head is ever written.
Triton alone compiles this; ``capture.maps`` does the same with maps, and serves every other device.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917, N803, N806

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenlight.capture.received_kernel import (
    EXACT,
    LENGTHS,
    LOG2E,
    joined,
    laid,
    log_sums,
    scores,
    tile,
)

TILE = 64


@triton.jit(do_not_specialize=LENGTHS)
def _means(
    q, k, v, g, mask, added, sums, out, scale, n, width, sn, size, qs, ks, mb, mh, mq, vs, gs,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr, PLAIN: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * T + tl.arange(0, T)
    cols = tl.program_id(0) * T + tl.arange(0, T)
    maps = tl.zeros([T, T], tl.float32)
    products = tl.zeros([T, T], tl.float32)
    positive = tl.zeros([T, T], tl.float32)
    # No query looks behind itself.
    heads = tl.where(tl.program_id(0) > tl.program_id(1), 0, H) if CAUSAL else H
    for head in range(0, heads):
        h = head.to(tl.int64)
        K = tl.trans(tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
        Q = tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
        s = scores(Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq, MK, PLAIN, CAUSAL)
        base = tl.load(sums + (b * H + h) * sn + rows, mask=rows < n, other=float("inf"))
        own = tl.exp2(s - LOG2E * base[:, None])
        maps += own
        if SLOPE:
            V = tl.trans(tile(v + b * vs[0] + (h // G) * vs[1], cols, D, n, width, vs[2]))
            arrived = tile(g + b * gs[0] + h * gs[1], rows, D, n, width, gs[2])
            own *= tl.dot(arrived, V, input_precision=EXACT)
            products += own
            positive += tl.maximum(own, 0.0)
    at = out + (b * n + rows[:, None]) * n + cols[None, :]
    inside = (rows[:, None] < n) & (cols[None, :] < n)
    tl.store(at, maps / H, mask=inside)
    if SLOPE:
        tl.store(at + size, products / H, mask=inside)
        tl.store(at + 2 * size, positive / H, mask=inside)


def head_means(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    added: Tensor | None = None,
    causal: bool = False,
    sums: Tensor | None = None,
    arrived: Tensor | None = None,
) -> Tensor:
    """``mean batch query key``: of maps alone, or with what ``arrived`` at C (``batch head query width``) all
    three. ``sums``: the log-sum-exp of each row, ``batch head query``, where the fused forward gave it."""
    (batch, _, n, width) = query.shape
    slope = arrived is not None
    given = (query, key, value, arrived if slope else query)
    query, key, value, arrived = (x if x.stride(-1) == 1 else x.contiguous() for x in given)
    mask = joined(allowed, added)
    if sums is None:
        sums = log_sums(query, key, scaling, **mask, causal=causal)
    layout, shape, _ = laid(query, key, **mask, causal=causal)
    out = torch.empty(3 if slope else 1, batch, n, n, device=query.device, dtype=torch.float32)
    masks = mask["allowed"], mask["added"]
    vector = shape["D"] * query.element_size()
    T = TILE if vector <= 256 else TILE // 2
    _means[triton.cdiv(n, T), triton.cdiv(n, T), batch](
        query, key, value, arrived, *masks, sums, out, scaling * LOG2E.value, n, width,
        sums.stride(-2), batch * n * n, *layout, value.stride()[:3], arrived.stride()[:3],
        **shape, T=T, PLAIN=masks == (None, None) and not causal, SLOPE=slope,
        num_warps=8 if T == TILE else 4, num_stages=2 if vector <= 128 else 1,
    )  # fmt: skip
    return out
