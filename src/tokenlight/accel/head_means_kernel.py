r"""A Triton kernel for means over heads of attention, and of attention times its gradient.

.. math:: \bar A = \tfrac1H \sum_h A_h, \qquad \tfrac1H \sum_h A_h \odot \partial y/\partial A_h, \qquad
   \tfrac1H \sum_h (A_h \odot \partial y/\partial A_h)^+

where :math:`A_h = \exp(s_h - \mathrm{lse}_h)` and, with C = AV, :math:`\partial y/\partial A_h =
(\partial y/\partial C_h) V_h^T`. A program loops over the heads of one tile of queries and keys, so the map
of a single head is never stored. ``trace/attention_maps.py`` does the same with maps on every other device.
Kernel arguments are those of ``received_attention_kernel.py``; ``v g`` point to values and gradients,
``vs gs`` are their strides, ``T`` is the size of a tile and ``size`` the number of elements of one mean.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, PLR0913, PLR0917, N803, N806

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tokenlight.accel.received_attention_kernel import (
    DOT_PRECISION,
    LENGTH_ARGUMENTS,
    LOG2E,
    compute_kernel_layout,
    compute_logsumexp,
    compute_masked_scores,
    load_tile,
    make_rows_contiguous,
    merge_masks,
)

TILE_SIZE = 64


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS)
def _means_kernel(
    q, k, v, g, mask, bias, logsumexp, out, scale, n, width, sn, size, qs, ks, mb, mh, mq, vs, gs,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr, PLAIN: tl.constexpr, HAS_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Average over heads: one program per tile of queries and keys and batch."""
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * T + tl.arange(0, T)
    cols = tl.program_id(0) * T + tl.arange(0, T)
    maps = tl.zeros([T, T], tl.float32)
    products = tl.zeros([T, T], tl.float32)
    positive = tl.zeros([T, T], tl.float32)
    # Tiles above the diagonal of a causal model are zero: no head is computed.
    heads = tl.where(tl.program_id(0) > tl.program_id(1), 0, H) if CAUSAL else H
    for head in range(0, heads):
        h = head.to(tl.int64)
        K = tl.trans(load_tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
        Q = load_tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
        s = compute_masked_scores(
            Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq, MK, PLAIN, CAUSAL
        )
        base = tl.load(logsumexp + (b * H + h) * sn + rows, mask=rows < n, other=float("inf"))
        attention = tl.exp2(s - LOG2E * base[:, None])
        maps += attention
        if HAS_GRADIENT:
            V = tl.trans(load_tile(v + b * vs[0] + (h // G) * vs[1], cols, D, n, width, vs[2]))
            gradient = load_tile(g + b * gs[0] + h * gs[1], rows, D, n, width, gs[2])
            attention *= tl.dot(gradient, V, input_precision=DOT_PRECISION)
            products += attention
            positive += tl.maximum(attention, 0.0)
    target = out + (b * n + rows[:, None]) * n + cols[None, :]
    inside = (rows[:, None] < n) & (cols[None, :] < n)
    tl.store(target, maps / H, mask=inside)
    if HAS_GRADIENT:
        tl.store(target + size, products / H, mask=inside)
        tl.store(target + 2 * size, positive / H, mask=inside)


def compute_head_means(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    logsumexp: Tensor | None = None,
    context_gradient: Tensor | None = None,
) -> Tensor:
    """Compute means over heads.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``; it may have fewer heads.
        value: As ``key``.
        scaling: The factor on scores.
        allowed: A mask (bool) that broadcasts to ``batch head query key``.
        bias: A bias on the scores; broadcasts to ``batch head query key``.
        causal: Whether a query sees no later key.
        logsumexp: That of each row, ``batch head query``, where the fused forward gave it.
        context_gradient: ∂y/∂C, ``batch head query width``.

    Returns:
        ``mean batch query key``: only the mean of maps, or all three if a gradient is given.
    """
    batch, _, n, width = query.shape
    has_gradient = context_gradient is not None
    query = make_rows_contiguous(query)
    key = make_rows_contiguous(key)
    value = make_rows_contiguous(value)
    # The kernel takes a pointer in any case, and ignores it without a gradient.
    gradient = make_rows_contiguous(context_gradient) if has_gradient else query
    mask = merge_masks(allowed, bias)
    masks = (mask["allowed"], mask["bias"])
    if logsumexp is None:
        logsumexp = compute_logsumexp(query, key, scaling, **mask, causal=causal)
    layout, shape, _ = compute_kernel_layout(query, key, **mask, causal=causal)
    num_means = 3 if has_gradient else 1
    out = torch.empty(num_means, batch, n, n, device=query.device, dtype=torch.float32)
    vector_bytes = shape["D"] * query.element_size()
    T = TILE_SIZE if vector_bytes <= 256 else TILE_SIZE // 2
    _means_kernel[triton.cdiv(n, T), triton.cdiv(n, T), batch](
        query, key, value, gradient, *masks, logsumexp, out, scaling * LOG2E.value, n, width,
        logsumexp.stride(-2), batch * n * n, *layout, value.stride()[:3], gradient.stride()[:3],
        **shape, T=T, PLAIN=masks == (None, None) and not causal, HAS_GRADIENT=has_gradient,
        num_warps=8 if T == TILE_SIZE else 4, num_stages=2 if vector_bytes <= 128 else 1,
    )  # fmt: skip
    return out
