r"""Received attention beside a fused kernel: one more product Q Kᵀ in tiles, summed as it is made.

.. math:: a_k = \sum_{h,q} w_q \exp(s_{hqk} - \mathrm{lse}_{hq}), \qquad w_q = 1/(Hn)

at real queries, 0 at padding. Nothing of size n × n is held: up to SHORT tokens a program softmaxes whole
rows; beyond, the log-sum-exp comes from the fused forward or a first sweep, and a second one adds up columns.
Each head writes its own row and the rows are added in a fixed order, so the sum is the same every time.
Triton alone compiles this; ``seam.received_in_chunks`` is its twin, and serves every other device.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, PLR0913, PLR0917, N803, N806

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SHORT = 512  # tokens: a row of scores stays in registers
KEYS = 1 << 16  # bytes: the keys of a head stay in shared memory
# Numbers that follow from the length of a text: a kernel for short ones is not compiled again for another.
LENGTHS = ("n", "sn", "size", "mb", "mh", "mq")
LOG2E = tl.constexpr(1.4426950408889634)
# Float32 in three products of tensor cores: as exact, and compiled in a fraction of the time.
EXACT = tl.constexpr("tf32x3")


@triton.jit
def scores(
    Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq,
    MK: tl.constexpr, PLAIN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Scores in base two, −∞ where a query may not look. ``PLAIN``: every entry is seen."""
    s = tl.dot(Q, K, input_precision=EXACT) * scale
    if PLAIN:
        return s
    seen = (rows[:, None] < n) & (cols[None, :] < n)
    if CAUSAL:
        seen = seen & (rows[:, None] >= cols[None, :])
    at = mb * b + mh * h + mq * rows[:, None].to(tl.int64) + MK * cols[None, :]
    if added is not None:
        s = s + LOG2E * tl.load(added + at, mask=seen, other=0.0).to(tl.float32)
    if mask is not None:
        seen = seen & tl.load(mask + at, mask=seen, other=0).to(tl.int1)
    return tl.where(seen, s, -float("inf"))


@triton.jit
def tile(x, places, D: tl.constexpr, n, width, stride):
    """Rows ``places`` of a ``token width`` table, zero beyond both."""
    d = tl.arange(0, D)
    inside = (places[:, None] < n) & (d[None, :] < width)
    return tl.load(x + places[:, None].to(tl.int64) * stride + d[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=LENGTHS)
def _short(
    q, k, mask, added, weights, out, scale, n, width, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    cols = tl.arange(0, BN)
    K = tl.trans(tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
    total = tl.zeros([BN], tl.float32)
    for first in range(0, n, BM):
        rows = first + tl.arange(0, BM)
        Q = tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
        s = scores(Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq, MK, False, CAUSAL)
        most = tl.max(s, 1)
        e = tl.exp2(s - tl.where(most == -float("inf"), 0.0, most)[:, None])
        whole = tl.sum(e, 1)
        w = tl.load(weights + b * n + rows, mask=rows < n, other=0.0)
        total += tl.sum(e * (w / tl.where(whole == 0, 1.0, whole))[:, None], 0)
    tl.store(out + (b * H + h) * n + cols, total, mask=cols < n)


@triton.jit(do_not_specialize=LENGTHS[3:])
def _log_sums(
    q, k, mask, added, sums, scale, n, width, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    Q = tile(q + b * qs[0] + h * qs[1], rows, D, n, width, qs[2])
    most = tl.full([BM], -float("inf"), tl.float32)
    whole = tl.zeros([BM], tl.float32)
    last = tl.minimum(n, (tl.program_id(0) + 1) * BM) if CAUSAL else n
    for first in range(0, last, BN):
        cols = first + tl.arange(0, BN)
        K = tl.trans(tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
        s = scores(Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq, MK, False, CAUSAL)
        new = tl.maximum(most, tl.max(s, 1))
        base = tl.where(new == -float("inf"), 0.0, new)
        whole = whole * tl.exp2(most - base) + tl.sum(tl.exp2(s - base[:, None]), 1)
        most = new
    # A query that sees nothing gives nothing: its sum is taken for infinite.
    found = tl.where(whole == 0, float("inf"), most + tl.log2(whole)) / LOG2E
    tl.store(sums + tl.program_id(1) * n + rows, found, mask=rows < n)


@triton.jit(do_not_specialize=LENGTHS[3:])
def _columns(
    q, k, mask, added, sums, weights, out, scale, n, width, sn, qs, ks, mb, mh, mq,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MK: tl.constexpr, CAUSAL: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    j = tl.program_id(0)
    cols = j * BN + tl.arange(0, BN)
    K = tl.trans(tile(k + b * ks[0] + (h // G) * ks[1], cols, D, n, width, ks[2]))
    q, sums, weights = (
        q + b * qs[0] + h * qs[1],
        sums + tl.program_id(1).to(tl.int64) * sn,
        weights + b * n,
    )
    # Added up entry by entry, and over queries at the very end: no sum across threads within the loop.
    total = tl.zeros([BM, BN], tl.float32)
    begin = (j * BN) // BM * BM if CAUSAL else 0
    # Tiles on the diagonal, or all where something is hidden; then those that every query sees whole.
    border = tl.minimum(n, (j + 1) * BN) if CAUSAL else 0
    border = (border + BM - 1) // BM * BM if PLAIN else n
    for first in range(begin, border, BM):
        rows = first + tl.arange(0, BM)
        base = LOG2E * tl.load(sums + rows, mask=rows < n, other=float("inf"))
        base -= tl.log2(tl.load(weights + rows, mask=rows < n, other=0.0))
        Q = tile(q, rows, D, n, width, qs[2])
        s = scores(Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq, MK, False, CAUSAL)
        total += tl.exp2(s - base[:, None])
    for first in range(tl.maximum(begin, border), n, BM):
        rows = first + tl.arange(0, BM)
        base = LOG2E * tl.load(sums + rows, mask=rows < n, other=float("inf"))
        base -= tl.log2(tl.load(weights + rows, mask=rows < n, other=0.0))
        Q = tile(q, rows, D, n, width, qs[2])
        s = scores(Q, K, rows, cols, b, h, n, scale, mask, added, mb, mh, mq, MK, True, CAUSAL)
        total += tl.exp2(s - base[:, None])
    tl.store(out + tl.program_id(1) * n + cols, tl.sum(total, 0), mask=cols < n)


def log_sums(
    query: Tensor,
    key: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    added: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """The log-sum-exp of each row of scores, ``batch head query``, infinite where a query sees nothing."""
    batch, heads, n, width = query.shape
    sums = torch.empty(batch, heads, n, device=query.device, dtype=torch.float32)
    layout, shape, tall = laid(query, key, allowed, added, causal)
    _log_sums[triton.cdiv(n, tall), batch * heads](
        query, key, allowed, added, sums, scaling * LOG2E.value, n, width, *layout,
        BM=tall, BN=tall // 2, **shape, num_warps=8, num_stages=3,
    )  # fmt: skip
    return sums


def laid(
    query: Tensor, key: Tensor, allowed: Tensor | None, added: Tensor | None, causal: bool
) -> tuple[tuple[tuple[int, ...], ...], dict[str, int], int]:
    """Strides of queries, keys and mask; numbers that a kernel is compiled for; rows of its tiles."""
    (batch, heads, n, width), given = query.shape, added if allowed is None else allowed
    steps = (0, 0, 0, 0) if given is None else given.expand(batch, heads, n, n).stride()
    D = max(16, triton.next_power_of_2(width))
    shape = {"H": heads, "G": heads // key.shape[1], "D": D, "MK": steps[3], "CAUSAL": causal}
    tall = max(32, min(128, (1 << 15) // (D * query.element_size())))
    return (query.stride()[:3], key.stride()[:3], *steps[:3]), shape, tall


def joined(allowed: Tensor | None, added: Tensor | None) -> dict[str, Tensor | None]:
    """A mask of one kind, which is all a kernel reads."""
    if allowed is None or added is None:
        return {"allowed": allowed, "added": added}
    return {"allowed": None, "added": added.masked_fill(~allowed, -torch.inf)}


def received(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    scaling: float,
    *,
    allowed: Tensor | None = None,
    added: Tensor | None = None,
    causal: bool = False,
    sums: Tensor | None = None,
) -> Tensor:
    """``batch head key``, of ``query`` (``batch head query width``) and ``key``, which may have fewer heads.

    ``weights``: ``batch query``. ``allowed`` (bool) and ``added`` broadcast to ``batch head query key``.
    ``sums``: the log-sum-exp of each row, ``batch head query``, where the fused forward gave it.
    """
    batch, heads, n, width = query.shape
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key))
    mask = joined(allowed, added)
    layout, shape, tall = laid(query, key, **mask, causal=causal)
    out = torch.empty(batch, heads, n, device=query.device, dtype=torch.float32)
    scale, masks = scaling * LOG2E.value, (mask["allowed"], mask["added"])
    wide, vector = max(64, triton.next_power_of_2(n)), shape["D"] * query.element_size()
    if n <= SHORT and sums is None and wide * vector <= KEYS:
        _short[batch, heads](
            query, key, *masks, weights, out, scale, n, width, *layout,
            BM=max(16, min(8192 // wide, 8192 // vector)), BN=wide, **shape, num_warps=4,
        )  # fmt: skip
        return out
    if sums is None:
        sums = log_sums(query, key, scaling, **mask, causal=causal)
    _columns[triton.cdiv(n, tall // 2), batch * heads](
        query, key, *masks, sums, weights, out, scale, n, width, sums.stride(-2), *layout,
        BM=tall, BN=tall // 2, **shape, PLAIN=masks == (None, None), num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
