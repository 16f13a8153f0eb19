"""Attention under any mask: as explicit maps, by a fused kernel, and summed to what each token receives."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakTensorKeyDictionary

from tokenlight.accel.executor import get_current_executor
from tokenlight.accel.kernels import run_kernel
from tokenlight.hooks.compat import attend_with_logsumexp

# Elements of attention maps held at once: what fits in a CPU's cache, what fills a GPU.
CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}
MIN_CHUNK_QUERIES = 16
# By mask: whether the row of some query is masked as a whole. All blocks of a pass share one mask, and
# nothing else that lives as long as the mask is passed to their attention, so the tensor is the key.
_fully_masked_queries = WeakTensorKeyDictionary()
# Which SDPA kernels are enabled is one switch for all threads, so that two of them must not interleave.
_kernel_switch_lock = threading.Lock()


@dataclass(frozen=True)
class AttentionParams:
    """How scores become attention.

    Attributes:
        scaling: The factor on scores.
        softcap: Scores are bent by tanh to stay below it.
        sinks: ``head``: a score besides those of the keys that takes a share of every row and adds nothing
            (gpt-oss), so that rows sum to less than one.
    """

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_fusable(self) -> bool:
        """Whether a fused kernel supports it."""
        return self.softcap is None and self.sinks is None


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to.

    Attributes:
        allowed: True where it may; broadcasts to ``batch head query key``.
        bias: Added to the scores; broadcasts to ``batch head query key``.
        is_causal: No query attends to later keys. Set only where there is no other mask.
    """

    allowed: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether there is no mask tensor: every key is visible, or all earlier ones."""
        return self.allowed is None and self.bias is None

    @property
    def kernel_arguments(self) -> dict[str, Any]:
        """The mask as keyword arguments of a kernel."""
        return {"allowed": self.allowed, "bias": self.bias, "causal": self.is_causal}

    @property
    def requires_gradient(self) -> bool:
        """Whether a gradient flows through the bias."""
        return self.bias is not None and self.bias.requires_grad


@dataclass(frozen=True, eq=False)
class AttentionOperands:
    """Everything that one block's attention was computed from.

    Attributes:
        mask: The mask.
        params: How scores became attention.
        query: ``batch head query width``.
        key: ``batch head key width``, as the model has it: perhaps with fewer heads.
        value: As ``key``.
        context: The product of the attention map and the values, ``batch head query width``.
        logsumexp: That of each row of scores, ``batch head query``, where a kernel returned it.
    """

    mask: AttentionMask
    params: AttentionParams
    query: Tensor
    key: Tensor
    value: Tensor
    context: Tensor
    logsumexp: Tensor | None = None


def build_mask(
    attention_mask: Tensor | None, bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> AttentionMask:
    """Build a mask from what a layer passes to its attention function.

    Args:
        attention_mask: Boolean (true where a query may attend) or added to the scores; None for none.
        bias: Added to the scores, such as a position bias; None for none.
        causal: Whether a query sees no later key.
        query: Queries of the layer, for the shape and device of the mask.
        key: Keys of the layer.
    """
    allowed: Tensor | None = None
    total_bias: Tensor | None = bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        allowed = attention_mask
    elif attention_mask is not None:
        total_bias = attention_mask if bias is None else attention_mask + bias
    # No mask on a causal module means: causal. transformers leaves that to the kernel's own flag.
    is_causal = causal and attention_mask is None and query.shape[2] > 1
    if is_causal and total_bias is not None:
        # No kernel takes a bias together with its causal flag.
        allowed = _build_causal_mask(query.shape[2], key.shape[2], 0, query.device)
        is_causal = False
    return AttentionMask(allowed, total_bias, is_causal)


def _build_causal_mask(
    num_queries: int, num_keys: int, first_query: int, device: torch.device
) -> Tensor:
    queries = torch.arange(first_query, first_query + num_queries, device=device)
    keys = torch.arange(num_keys, device=device)
    return queries[:, None] >= keys[None, :]


def compute_attention_map(
    query: Tensor, key: Tensor, mask: AttentionMask, params: AttentionParams
) -> Tensor:
    """Compute attention after the softmax, ``batch head query key``.

    A query that may attend to no key has a row of zeros.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``: repeated for every query head.
        mask: Where each query may attend.
        params: Scale of the scores, sinks and caps of the layer.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * params.scaling
    return _apply_softmax(scores, mask, params, 0).to(query.dtype)


def _apply_softmax(
    scores: Tensor, mask: AttentionMask, params: AttentionParams, first_query: int
) -> Tensor:
    """Turn scores, ``batch head query key``, into attention; half precision becomes float32.

    Args:
        scores: Scores of all queries or of a chunk of them.
        mask: The mask of all queries.
        params: Softcap and sinks.
        first_query: Position of the first query of the chunk.
    """
    rows = slice(first_query, first_query + scores.shape[2])
    if params.softcap is not None:
        scores = torch.tanh(scores / params.softcap) * params.softcap
    if mask.bias is not None:
        scores = scores + _slice_rows(mask.bias, rows)
    allowed: Tensor | None = None
    if mask.is_causal:
        allowed = _build_causal_mask(scores.shape[2], scores.shape[3], first_query, scores.device)
    elif mask.allowed is not None:
        allowed = _slice_rows(mask.allowed, rows)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    num_keys = scores.shape[-1]
    if params.sinks is not None:
        # Rebinding the name frees the scores without sinks before the softmax allocates its result.
        scores = _append_sinks(scores, params.sinks)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    attention = torch.softmax(scores, dim=-1, dtype=dtype)[..., :num_keys]
    if allowed is not None and mask.allowed is not None and _has_fully_masked_query(mask.allowed):
        # The softmax spreads the row of a query that sees no key evenly over all keys.
        attention = attention.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    return attention


def _append_sinks(scores: Tensor, sinks: Tensor) -> Tensor:
    """Append one score per head and query: that of the sink, which takes a share of the attention."""
    sink_scores = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((scores, sink_scores), dim=-1)


def _has_fully_masked_query(allowed: Tensor) -> bool:
    """Return whether any row of the mask is masked as a whole; True, which changes no result, if unknown."""
    return get_current_executor().read_flag(
        partial(_find_fully_masked_query, allowed), fallback=True
    )


def _find_fully_masked_query(allowed: Tensor) -> bool:
    if allowed not in _fully_masked_queries:
        _fully_masked_queries[allowed] = not bool(allowed.any(dim=-1).all())
    return bool(_fully_masked_queries[allowed])


def _slice_rows(mask: Tensor, rows: slice) -> Tensor:
    """Return the rows of a mask that belong to a chunk of queries."""
    if mask.shape[-2] == 1:  # the same row for every query
        return mask
    return mask[..., rows, :]


def compute_received_attention(
    query: Tensor,
    key: Tensor,
    mask: AttentionMask,
    params: AttentionParams,
    weights: Tensor,
    logsumexp: Tensor | None = None,
) -> Tensor:
    """Sum the attention that each key receives, outside the graph.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``.
        mask: The mask.
        params: Scaling, softcap and sinks.
        weights: The weight of each query, ``batch query``.
        logsumexp: The row sums that :func:`attend_fused` returns, which spare a kernel half of its work.

    Returns:
        ``batch key``, summed over heads and queries; from a kernel ``batch head key``, since the heads of
        all layers are then summed in one step.
    """
    if params.is_fusable:
        received: Tensor | None = run_kernel(
            "received_attention_kernel.compute_received_attention",
            query,
            key,
            weights,
            params.scaling,
            **mask.kernel_arguments,
            logsumexp=logsumexp,
        )
        if received is not None:
            return received
    return compute_received_attention_in_chunks(query, key, mask, params, weights)


def compute_received_attention_in_chunks(
    query: Tensor, key: Tensor, mask: AttentionMask, params: AttentionParams, weights: Tensor
) -> Tensor:
    """Sum the attention that each key receives, ``batch key``, in chunks of queries on any device.

    No map of size n × n is ever held.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``; heads that share keys may be given once.
        mask: Where each query may attend.
        params: Scale of the scores, sinks and caps of the layer.
        weights: ``batch query``: how much each query counts, 0 at padding.
    """
    batch, heads, num_queries, _ = query.shape
    key = repeat_kv_heads(key, heads)
    num_keys = key.shape[2]
    head_weights = weights[:, None].expand(-1, heads, -1)
    max_elements = CHUNK_ELEMENTS.get(query.device.type, CHUNK_ELEMENTS["cpu"])
    chunk_size = max(MIN_CHUNK_QUERIES, max_elements // (batch * heads * num_keys))
    received = torch.zeros(batch, num_keys, device=query.device, dtype=weights.dtype)
    with torch.no_grad():
        flat_query = query.flatten(0, 1)
        flat_key = key.flatten(0, 1).mT
        zero = query.new_zeros(())
        for first_query in range(0, num_queries, chunk_size):
            rows = slice(first_query, first_query + chunk_size)
            # No query of a causal model attends past the end of its chunk.
            visible = slice(0, rows.stop if mask.is_causal else None)
            # Scaling and weighting happen inside matrix products, which saves two passes over the map.
            flat_scores = torch.baddbmm(
                zero, flat_query[:, rows], flat_key[..., visible], beta=0, alpha=params.scaling
            )
            scores = flat_scores.view(batch, heads, *flat_scores.shape[1:])
            attention = _apply_softmax(scores, mask, params, first_query)
            row_weights = head_weights[..., rows].reshape(batch, 1, -1)
            received[:, visible] += torch.bmm(row_weights, attention.flatten(1, 2)).squeeze(1)
    return received


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, params: AttentionParams
) -> tuple[Tensor, Tensor | None]:
    """Run fused attention.

    Args:
        query: ``batch head query width``.
        key: ``batch head key width``.
        value: ``batch head key width``.
        mask: Where each query may attend; a plain one allows the fastest kernel.
        params: Scale of the scores, sinks and caps of the layer.

    Returns:
        The output, and the log-sum-exp of every row (``batch head query``) where the kernel returns it.
    """
    if mask.is_plain and query.is_cuda and query.shape[-1] % 8 == 0:
        results = attend_with_logsumexp(
            query, key, value, is_causal=mask.is_causal, scaling=params.scaling
        )
        if results is not None:
            return results
    sdpa_mask = _merge_mask(mask, query.dtype)
    # With a mask, cuDNN would plan its kernel again for every batch shape.
    needs_other_kernels = query.is_cuda and sdpa_mask is not None
    with _cudnn_disabled() if needs_other_kernels else nullcontext():
        output: Tensor = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=sdpa_mask,
            is_causal=mask.is_causal,
            scale=params.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    return output, None


def _merge_mask(mask: AttentionMask, dtype: torch.dtype) -> Tensor | None:
    """Return the mask as the one tensor that SDPA takes."""
    if mask.bias is None:
        return mask.allowed
    bias = mask.bias.to(dtype)
    if mask.allowed is None:
        return bias
    return bias.masked_fill(~mask.allowed, torch.finfo(dtype).min)


@contextmanager
def _cudnn_disabled() -> Iterator[None]:
    """Let SDPA choose only among kernels that need no plan for each shape, as cuDNN's does."""
    with _kernel_switch_lock, sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def repeat_kv_heads(states: Tensor, heads: int) -> Tensor:
    """Repeat keys or values of grouped-query attention for every query head."""
    batch, num_kv_heads, tokens, width = states.shape
    group_size = heads // num_kv_heads
    if group_size == 1:
        return states
    expanded = states[:, :, None].expand(batch, num_kv_heads, group_size, tokens, width)
    return expanded.reshape(batch, heads, tokens, width)
