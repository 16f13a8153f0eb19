"""The attention seam: an attention function, lawfully registered with transformers, that computes
what the model's own does and shows each map to the listener of the running thread.

transformers calls ``AttentionInterface[config._attn_implementation]`` in every attention layer of
the families that route through it, and builds the mask by the function registered under the *same*
name in ``AttentionMaskInterface``; without that second entry the mask would silently be dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tokenlight.errors import UnsupportedModel

NAME = "tokenlight"

# Arguments a layer may hand over that do not change the attention map, or that the mask already
# carries (sliding_window). Anything else is refused: it might mean something.
HARMLESS = frozenset(
    {
        "output_hidden_states", "output_attentions", "use_cache", "position_ids", "deterministic",
        "sliding_window", "return_dict", "cache_position", "cache", "num_items_in_batch", "layer_idx",
        "position_embeddings", "is_training", "max_length_q", "max_length_k", "cu_seq_lens_q",
        "cu_seq_lens_k", "target_dtype", "local_attention",
    }
)  # fmt: skip

Wanted = Literal["nothing", "received", "maps"]


@dataclass
class Listener:
    """What one forward pass wants of its attention maps, and what it has been shown.

    ``maps``: one ``batch head query key`` a block. ``received``: one ``batch key`` a block, the mean
    over heads and real queries of the attention each token receives. ``real``: ``batch token``, true
    where a token is no padding. ``contexts`` and ``values``, kept where ``keeps_values``: the two
    sides of the product with the maps, each ``batch head token width``.
    """

    wanted: Wanted
    real: Tensor
    listens_to: Callable[[nn.Module], bool]
    keeps_values: bool = False
    fused: bool = True  # False: no fused kernel anywhere, so that relevance can be followed
    maps: list[Tensor] = field(default_factory=list)
    received: list[Tensor] = field(default_factory=list)
    heard: list[nn.Module] = field(default_factory=list)
    contexts: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    sunk: bool = False  # some of each row went to a sink, so it sums to less than one
    _weights: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict)

    def query_weights(self, query: Tensor) -> Tensor:
        """1 / (heads · real queries) at real queries, 0 at padding: ``batch head query``; the same
        for every block."""
        key = query.device, torch.promote_types(query.dtype, torch.float32)
        if key not in self._weights:
            real = self.real.to(*key)
            share = real / real.sum(dim=1, keepdim=True) / query.shape[1]
            self._weights[key] = share[:, None].repeat(1, query.shape[1], 1)
        return self._weights[key]


class _Running(threading.local):
    listener: Listener | None = None
    own: str = ""  # the attention of the model's own that this one stands in for

    def __init__(self) -> None:
        self.masks: dict[int, tuple[Tensor, bool]] = {}


_running = _Running()


@contextmanager
def listening(listener: Listener) -> Iterator[Listener]:
    """Show the maps of this thread's forward passes to ``listener``."""
    before = _running.listener
    _running.listener = listener
    try:
        yield listener
    finally:
        _running.listener = before
        _running.masks.clear()


@contextmanager
def standing_in_for(own: str) -> Iterator[None]:
    """Compute in this thread what the model's ``own`` implementation would."""
    before = _running.own
    _running.own = own
    try:
        yield
    finally:
        _running.own = before


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention. ``query``: ``batch head query width``; ``key`` and ``value`` may
    have fewer heads (grouped-query attention). Returns ``batch query head width``."""
    listener = _running.listener
    others.pop("dropout", None)  # the model is in evaluation mode while we listen
    causal = others.pop("is_causal", None)
    softcap: float | None = others.pop("softcap", None)
    if _running.own == "sdpa":
        # Older transformers let models with a softcap run on a kernel that knows none, and drop it.
        softcap = None
    sinks: Tensor | None = others.pop("s_aux", None)
    bias: Tensor | None = others.pop("position_bias", None)
    _refuse_unknown(module, others)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    how = _How(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
    key, value = (_one_per_query_head(t, query.shape[1]) for t in (key, value))
    mask = _mask(attention_mask, bias, bool(causal), query, key)
    listens = listener is not None and listener.listens_to(module)
    if listens and listener is not None and listener.wanted != "nothing":
        _only_self_attention(module, query, key)
        listener.heard.append(module)
    if listens and listener is not None and listener.wanted == "maps":
        maps = attention_map(query, key, mask, how)
        listener.maps.append(maps)
        listener.sunk = listener.sunk or sinks is not None
        output = torch.matmul(maps, value)
        if listener.keeps_values:
            listener.contexts.append(output)
            listener.values.append(value)
    else:
        if listens and listener is not None and listener.wanted == "received":
            listener.received.append(_received(query, key, mask, how, listener))
            listener.sunk = listener.sunk or sinks is not None
        if listener is None or listener.fused:
            output = _attend_fast(query, key, value, mask, how)
        else:
            output = torch.matmul(attention_map(query, key, mask, how), value)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


@dataclass(frozen=True)
class _How:
    """``softcap``: scores are bent to stay below it. ``sinks``: ``head``, a score beside those of the
    keys that takes a share of every row and brings nothing (gpt-oss): rows sum to less than one."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True)
class _Mask:
    """Which keys a query may see: ``allowed`` (bool), ``added`` (float bias), or plainly causal."""

    allowed: Tensor | None = None
    added: Tensor | None = None
    causal: bool = False
    blind: bool = False  # some query may see no key at all


def _mask(
    given: Tensor | None, bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> _Mask:
    # No mask on a causal module means: causal. transformers leaves it to the kernel's own flag.
    causal = causal and given is None and query.shape[2] > 1
    allowed = given if given is not None and given.dtype == torch.bool else None
    added = given if given is not None and given.dtype != torch.bool else None
    if bias is not None:
        added = bias if added is None else added + bias
    if causal and added is not None:
        allowed, causal = _causal(query.shape[2], key.shape[2], 0, query.device), False
    return _Mask(allowed, added, causal, allowed is not None and _blind(allowed))


def _blind(allowed: Tensor) -> bool:
    """Whether a query sees no key; asked once of a mask that all blocks of a pass share."""
    known = _running.masks.get(id(allowed))
    if known is None or known[0] is not allowed:
        known = allowed, not bool(allowed.any(dim=-1).all())
        _running.masks[id(allowed)] = known
    return known[1]


def _causal(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    rows = torch.arange(first, first + queries, device=device)
    return rows[:, None] >= torch.arange(keys, device=device)[None, :]


def attention_map(query: Tensor, key: Tensor, mask: _Mask, how: _How) -> Tensor:
    """Post-softmax attention, ``batch head query key``; a query that may see no key attends to none."""
    scores = torch.matmul(query, key.transpose(2, 3)) * how.scaling
    return _softmaxed(scores, mask, how, 0).to(query.dtype)


def _softmaxed(scores: Tensor, mask: _Mask, how: _How, first: int) -> Tensor:
    """Attention from scores, ``batch head query key``; half precision becomes float32.

    ``first`` is the position of the first query, where only a chunk of the queries is given.
    """
    rows = slice(first, first + scores.shape[2])
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    if mask.added is not None:
        scores = scores + _rows(mask.added, rows)
    allowed = None if mask.allowed is None else _rows(mask.allowed, rows)
    if mask.causal:
        allowed = _causal(scores.shape[2], scores.shape[3], first, scores.device)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    keys = scores.shape[-1]
    if how.sinks is not None:
        sinks = how.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    maps = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    maps = maps if how.sinks is None else maps[..., :keys]
    if allowed is not None and mask.blind:
        maps = maps.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    return maps


def _rows(mask: Tensor, rows: slice) -> Tensor:
    return mask if mask.shape[-2] == 1 else mask[..., rows, :]


def _received(query: Tensor, key: Tensor, mask: _Mask, how: _How, listener: Listener) -> Tensor:
    """Mean over heads and real queries of the attention each key receives, ``batch key``.

    Taken in chunks of queries and outside the graph, so that no n × n map is ever held.
    """
    batch, heads, queries, _ = query.shape
    weights = listener.query_weights(query)
    held = CHUNK_ELEMENTS.get(query.device.type, CHUNK_ELEMENTS["cpu"])
    chunk = max(16, held // (batch * heads * key.shape[2]))
    total = torch.zeros(batch, key.shape[2], device=query.device, dtype=weights.dtype)
    with torch.no_grad():
        query, key, nothing = query.flatten(0, 1), key.flatten(0, 1).mT, query.new_zeros(())
        for first in range(0, queries, chunk):
            rows = slice(first, first + chunk)
            seen = slice(0, rows.stop if mask.causal else None)  # no query looks past its chunk
            # Scaled within the product, and weighted by another: no pass over the map for either.
            scores = torch.baddbmm(
                nothing, query[:, rows], key[..., seen], beta=0, alpha=how.scaling
            )
            scores = scores.view(batch, heads, *scores.shape[1:])
            maps = _softmaxed(scores, mask, how, first)
            share = weights[..., rows].reshape(batch, 1, -1)
            total[:, seen] += torch.bmm(share, maps.flatten(1, 2)).squeeze(1)
    return total


# Elements of attention map held at once: what stays in a processor's cache, what fills a GPU.
CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 24}


def _attend_fast(query: Tensor, key: Tensor, value: Tensor, mask: _Mask, how: _How) -> Tensor:
    if how.softcap is not None or how.sinks is not None:  # no fused kernel knows them
        return torch.matmul(attention_map(query, key, mask, how), value)
    added = mask.allowed
    if mask.added is not None:
        added = mask.added.to(query.dtype)
        if mask.allowed is not None:
            added = added.masked_fill(~mask.allowed, torch.finfo(query.dtype).min)
    output: Tensor = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=added, is_causal=mask.causal, scale=how.scaling
    )
    return output


def _one_per_query_head(states: Tensor, heads: int) -> Tensor:
    groups = heads // states.shape[1]
    if groups == 1:
        return states
    batch, _, tokens, width = states.shape
    spread = states[:, :, None].expand(batch, states.shape[1], groups, tokens, width)
    return spread.reshape(batch, heads, tokens, width)


def _only_self_attention(module: nn.Module, query: Tensor, key: Tensor) -> None:
    if query.shape[2] != key.shape[2]:
        raise UnsupportedModel(
            f"{type(module).__name__} attends from {query.shape[2]} to {key.shape[2]} tokens; "
            "tokenlight explains self-attention, where each token attends to the same tokens."
        )


def _refuse_unknown(module: nn.Module, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name not in HARMLESS and value is not None and value is not False:
            raise UnsupportedModel(
                f"{type(module).__name__} hands its attention the argument {name!r}, whose meaning "
                "tokenlight does not know; its maps would be wrong, so this model is refused."
            )
