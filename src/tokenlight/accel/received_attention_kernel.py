r"""Triton kernels for the attention that each token receives, next to a fused attention kernel.

.. math:: a_k = \sum_{h,q} w_q \exp(s_{hqk} - \mathrm{lse}_{hq}), \qquad w_q = 1/(Hn)

at real queries, 0 at padding. The product Q Kᵀ is computed once more in tiles, each summed before the
next one, so nothing of size n × n is stored. Up to MAX_SHORT_TOKENS tokens a program computes the softmax of
whole rows; beyond, the log-sum-exp comes from the fused forward or from a first sweep, and a second sweep
adds up the columns.
Each head writes its own row and the rows are added in a fixed order, so the sum is the same every time.
``attention.compute_received_attention_in_chunks`` does the same in plain torch on every other device.

Names in the kernels, short because every call lists them:

==================  =================================================================================
``q k``             pointers to queries and keys; ``Q K`` are tiles of them, ``K`` transposed
``qs ks``           their strides over batch, head and token
``b h j``           indices of the batch, the head and the tile of keys that a program works on
``rows cols``       positions of the queries and of the keys of a tile
``s``               the scores of a tile, in base two
``mask bias``       pointers to what may be attended to, and to what is added to the scores
``mb mh mq MK``     strides of the two over batch, head, query and key
``n sn``            number of tokens, and the stride of ``logsumexp`` over heads
``width D``         width of a head, and the same rounded up to a power of two
``H G``             number of heads, and query heads per key head
``BM BN``           rows (queries) and columns (keys) of a tile
``PLAIN``           whether a tile has no masked entry; ``CAUSAL``: whether a query sees no later key
==================  =================================================================================
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, PLR0917, N803, N806

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_SHORT_TOKENS = 512  # up to here a row of scores stays in registers
MAX_KEY_BYTES = 1 << 16  # up to here the keys of a head stay in shared memory
# Arguments that follow from the length of a text; a kernel is not compiled again for each length.
LENGTH_ARGUMENTS = ("n", "sn", "size", "mb", "mh", "mq")
LOG2E = tl.constexpr(1.4426950408889634)
# Float32 as three products on tensor cores is as exact as plain float32 and compiles much faster.
DOT_PRECISION = tl.constexpr("tf32x3")


@triton.jit
def compute_masked_scores(
    Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq,
    MK: tl.constexpr, PLAIN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute scores in base two, −∞ where a query must not attend. ``PLAIN``: every key is visible."""
    s = tl.dot(Q, K, input_precision=DOT_PRECISION) * scale
    if PLAIN:
        return s
    visible = (rows[:, None] < n) & (cols[None, :] < n)
    if CAUSAL:
        visible = visible & (rows[:, None] >= cols[None, :])
    offset = mb * b + mh * h + mq * rows[:, None].to(tl.int64) + MK * cols[None, :]
    if bias is not None:
        s = s + LOG2E * tl.load(bias + offset, mask=visible, other=0.0).to(tl.float32)
    if mask is not None:
        visible = visible & tl.load(mask + offset, mask=visible, other=0).to(tl.int1)
    return tl.where(visible, s, -float("inf"))


@triton.jit
def load_tile(x, indices, D: tl.constexpr, n, width, stride):
    """Load the rows ``indices`` of a ``token width`` table, with zeros beyond its borders."""
    d = tl.arange(0, D)
    inside = (indices[:, None] < n) & (d[None, :] < width)
    return tl.load(x + indices[:, None].to(tl.int64) * stride + d[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS)
def _received_short_kernel(
    q, k, mask, bias, weights, out, scale, n, width, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Sum columns where all keys of a head fit in one tile: one program per batch and head."""
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    cols = tl.arange(0, BN)
    K = tl.trans(load_tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
    total = tl.zeros([BN], tl.float32)
    for first in range(0, n, BM):
        rows = first + tl.arange(0, BM)
        Q = load_tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
        s = compute_masked_scores(
            Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq, MK, False, CAUSAL
        )
        row_max = tl.max(s, 1)
        # A query that sees no key has −∞ everywhere, and must not give −∞ − (−∞).
        e = tl.exp2(s - tl.where(row_max == -float("inf"), 0.0, row_max)[:, None])
        row_sum = tl.sum(e, 1)
        w = tl.load(weights + b * n + rows, mask=rows < n, other=0.0)
        total += tl.sum(e * (w / tl.where(row_sum == 0, 1.0, row_sum))[:, None], 0)
    tl.store(out + (b * H + h) * n + cols, total, mask=cols < n)


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS[3:])
def _logsumexp_kernel(
    q, k, mask, bias, logsumexp, scale, n, width, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Compute the log-sum-exp of each row of scores: one program per tile of queries, batch and head."""
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    Q = load_tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
    row_max = tl.full([BM], -float("inf"), tl.float32)
    row_sum = tl.zeros([BM], tl.float32)
    last = tl.minimum(n, (tl.program_id(0) + 1) * BM) if CAUSAL else n
    for first in range(0, last, BN):
        cols = first + tl.arange(0, BN)
        K = tl.trans(load_tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
        s = compute_masked_scores(
            Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq, MK, False, CAUSAL
        )
        new_max = tl.maximum(row_max, tl.max(s, 1))
        base = tl.where(new_max == -float("inf"), 0.0, new_max)
        row_sum = row_sum * tl.exp2(row_max - base) + tl.sum(tl.exp2(s - base[:, None]), 1)
        row_max = new_max
    # A query that sees no key contributes nothing: its log-sum-exp is set to infinity.
    result = tl.where(row_sum == 0, float("inf"), row_max + tl.log2(row_sum)) / LOG2E
    tl.store(logsumexp + tl.program_id(1) * n + rows, result, mask=rows < n)


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS[3:])
def _received_columns_kernel(
    q, k, mask, bias, logsumexp, weights, out, scale, n, width, sn, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """Sum columns of any length, given the log-sum-exp: one program per tile of keys, batch and head."""
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    j = tl.program_id(0)
    cols = j * BN + tl.arange(0, BN)
    K = tl.trans(load_tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
    q = q + b * qs[0] + h * qs[1]
    logsumexp = logsumexp + tl.program_id(1).to(tl.int64) * sn
    weights = weights + b * n
    # Entries are added up one by one, and over queries only at the end: the loop has no sum across threads.
    total = tl.zeros([BM, BN], tl.float32)
    begin = (j * BN) // BM * BM if CAUSAL else 0
    # First the tiles that need a mask: those on the diagonal, or all. Then those without any masked entry.
    border = tl.minimum(n, (j + 1) * BN) if CAUSAL else 0
    border = (border + BM - 1) // BM * BM if PLAIN else n
    for first in range(begin, border, BM):
        rows = first + tl.arange(0, BM)
        base = LOG2E * tl.load(logsumexp + rows, mask=rows < n, other=float("inf"))
        base -= tl.log2(tl.load(weights + rows, mask=rows < n, other=0.0))
        Q = load_tile(q, rows, D, n, width, qs[2])
        s = compute_masked_scores(
            Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq, MK, False, CAUSAL
        )
        total += tl.exp2(s - base[:, None])
    for first in range(tl.maximum(begin, border), n, BM):
        rows = first + tl.arange(0, BM)
        base = LOG2E * tl.load(logsumexp + rows, mask=rows < n, other=float("inf"))
        base -= tl.log2(tl.load(weights + rows, mask=rows < n, other=0.0))
        Q = load_tile(q, rows, D, n, width, qs[2])
        s = compute_masked_scores(
            Q, K, rows, cols, b, h, n, scale, mask, bias, mb, mh, mq, MK, True, CAUSAL
        )
        total += tl.exp2(s - base[:, None])
    tl.store(out + tl.program_id(1) * n + cols, tl.sum(total, 0), mask=cols < n)


def compute_logsumexp(
    query: Tensor,
    key: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Compute the log-sum-exp of each row of scores.

    Returns:
        ``batch head query``, infinite where a query sees no key.
    """
    batch, heads, n, width = query.shape
    logsumexp = torch.empty(batch, heads, n, device=query.device, dtype=torch.float32)
    layout, shape, tile_rows = compute_kernel_layout(query, key, allowed, bias, causal)
    _logsumexp_kernel[triton.cdiv(n, tile_rows), batch * heads](
        query, key, allowed, bias, logsumexp, scaling * LOG2E.value, n, width, *layout,
        BM=tile_rows, BN=tile_rows // 2, **shape, num_warps=8, num_stages=3,
    )  # fmt: skip
    return logsumexp


def compute_kernel_layout(
    query: Tensor, key: Tensor, allowed: Tensor | None, bias: Tensor | None, causal: bool
) -> tuple[tuple[tuple[int, ...], ...], dict[str, int], int]:
    """Return strides of queries, keys and mask; the constants of the kernel; and the rows of its tiles."""
    batch, heads, n, width = query.shape
    mask = bias if allowed is None else allowed
    mask_strides = (0, 0, 0, 0)
    if mask is not None:
        mask_strides = mask.expand(batch, heads, n, n).stride()
    padded_width = max(16, triton.next_power_of_2(width))
    shape = {
        "H": heads,
        "G": heads // key.shape[1],
        "D": padded_width,
        "MK": mask_strides[3],
        "CAUSAL": causal,
    }
    tile_rows = max(32, min(128, (1 << 15) // (padded_width * query.element_size())))
    return (query.stride()[:3], key.stride()[:3], *mask_strides[:3]), shape, tile_rows


def merge_masks(allowed: Tensor | None, bias: Tensor | None) -> dict[str, Tensor | None]:
    """Merge both kinds of mask into one, which is all that a kernel reads."""
    if allowed is None or bias is None:
        return {"allowed": allowed, "bias": bias}
    return {"allowed": None, "bias": bias.masked_fill(~allowed, -torch.inf)}


def make_rows_contiguous(tensor: Tensor) -> Tensor:
    """Return ``tensor`` with a last axis that lies densely in memory, as the kernels read it."""
    if tensor.stride(-1) == 1:
        return tensor
    return tensor.contiguous()


def compute_received_attention(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    logsumexp: Tensor | None = None,
) -> Tensor:
    """Compute the attention that each key receives.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``; it may have fewer heads.
        weights: The weight of each query, ``batch query``.
        scaling: The factor on scores.
        allowed: A mask (bool) that broadcasts to ``batch head query key``.
        bias: A bias on the scores; broadcasts to ``batch head query key``.
        causal: Whether a query sees no later key.
        logsumexp: That of each row, ``batch head query``, where the fused forward gave it.

    Returns:
        ``batch head key``, float32.
    """
    batch, heads, n, width = query.shape
    query = make_rows_contiguous(query)
    key = make_rows_contiguous(key)
    mask = merge_masks(allowed, bias)
    masks = (mask["allowed"], mask["bias"])
    layout, shape, tile_rows = compute_kernel_layout(query, key, **mask, causal=causal)
    out = torch.empty(batch, heads, n, device=query.device, dtype=torch.float32)
    scale = scaling * LOG2E.value
    padded_keys = max(64, triton.next_power_of_2(n))
    vector_bytes = shape["D"] * query.element_size()
    is_short = n <= MAX_SHORT_TOKENS and padded_keys * vector_bytes <= MAX_KEY_BYTES
    if is_short and logsumexp is None:
        _received_short_kernel[batch, heads](
            query, key, *masks, weights, out, scale, n, width, *layout,
            BM=max(16, min(8192 // padded_keys, 8192 // vector_bytes)), BN=padded_keys, **shape,
            num_warps=4,
        )  # fmt: skip
        return out
    if logsumexp is None:
        logsumexp = compute_logsumexp(query, key, scaling, **mask, causal=causal)
    _received_columns_kernel[triton.cdiv(n, tile_rows // 2), batch * heads](
        query, key, *masks, logsumexp, weights, out, scale, n, width, logsumexp.stride(-2), *layout,
        BM=tile_rows, BN=tile_rows // 2, **shape, PLAIN=masks == (None, None), num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
