"""Attention written out: maps, fused output, and the attention each token receives, under any mask."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakTensorKeyDictionary

from tokenlight.capture.kernels import by_kernel
from tokenlight.capture.transfer import repeating

_blind = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Scoring:
    """``softcap``: scores are bent to stay below it. ``sinks``: ``head``, a score beside those of the
    keys that takes a share of every row and brings nothing (gpt-oss): rows sum to less than one."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether a fused kernel knows it."""
        return self.softcap is None and self.sinks is None


@dataclass(frozen=True)
class Mask:
    """Which keys a query may see: ``allowed`` (bool), ``added`` (float bias), or plainly causal."""

    allowed: Tensor | None = None
    added: Tensor | None = None
    causal: bool = False

    @property
    def plain(self) -> bool:
        """Whether no table says who sees whom: everybody sees all, or what stands before."""
        return self.allowed is None and self.added is None

    @property
    def parts(self) -> dict[str, Any]:
        """As a kernel takes it."""
        return {"allowed": self.allowed, "added": self.added, "causal": self.causal}

    @property
    def active(self) -> bool:
        """Whether a gradient goes through it."""
        return self.added is not None and self.added.requires_grad


def mask_of(
    given: Tensor | None, bias: Tensor | None, causal: bool, query: Tensor, key: Tensor
) -> Mask:
    """What a layer hands over, as one of these."""
    # No mask on a causal module means: causal. transformers leaves it to the kernel's own flag.
    causal = causal and given is None and query.shape[2] > 1
    bools = given is not None and given.dtype == torch.bool
    allowed, added = (given, None) if bools else (None, given)
    if bias is not None:
        added = bias if added is None else added + bias
    if causal and added is not None:
        allowed, causal = _causal(query.shape[2], key.shape[2], 0, query.device), False
    return Mask(allowed, added, causal)


def _causal(queries: int, keys: int, first: int, device: torch.device) -> Tensor:
    rows = torch.arange(first, first + queries, device=device)
    return rows[:, None] >= torch.arange(keys, device=device)[None, :]


def attention_map(query: Tensor, key: Tensor, mask: Mask, how: Scoring) -> Tensor:
    """Post-softmax attention, ``batch head query key``; a query that may see no key attends to none."""
    scores = torch.matmul(query, key.transpose(2, 3)) * how.scaling
    return _softmaxed(scores, mask, how, 0).to(query.dtype)


@dataclass(frozen=True, eq=False)
class Unkept:
    """A map that is not kept: what it is made of, keys and values as the model has them (perhaps fewer than
    queries), and ``context``, its product with the values. What arrives at the one on the way back follows
    from what arrives at the other. ``sums``: the log-sum-exp of each row, where a kernel told it."""

    mask: Mask
    how: Scoring
    query: Tensor
    key: Tensor
    value: Tensor
    context: Tensor
    sums: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """``batch head query key``."""
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def values(self) -> Tensor:
        """``batch head key width``."""
        return one_per_query_head(self.value.detach(), self.query.shape[1])

    @torch.no_grad()
    def map(self) -> Tensor:
        """As the model computes it."""
        key = one_per_query_head(self.key, self.query.shape[1])
        return attention_map(self.query, key, self.mask, self.how)

    def slope(self, arrived: Tensor) -> Tensor:
        """The gradient at the map, of the one that ``arrived`` at the product."""
        return torch.matmul(arrived, self.values.mT)

    def head_means(self, arrived: Tensor | None) -> Tensor | None:
        """Means over heads, ``mean batch query key``, by a kernel that writes no map, where there is one: of
        the map; with what ``arrived`` also of the map times its gradient, and of what is positive there."""
        if not self.how.plain:
            return None
        given = self.query, self.key, self.value, self.how.scaling
        found: Tensor | None = by_kernel(
            "means_kernel.head_means", *given, **self.mask.parts, sums=self.sums, arrived=arrived
        )
        return found


def _softmaxed(scores: Tensor, mask: Mask, how: Scoring, first: int) -> Tensor:
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
    if allowed is not None and mask.allowed is not None and _is_blind(mask.allowed):
        maps = maps.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    return maps


def _is_blind(allowed: Tensor) -> bool:
    """Whether some query sees no key; asked once of a mask that all blocks share."""
    if repeating():  # nothing can be asked, and to take it for blind changes no number
        return True
    if allowed not in _blind:
        _blind[allowed] = not bool(allowed.any(dim=-1).all())
    return bool(_blind[allowed])


def _rows(mask: Tensor, rows: slice) -> Tensor:
    return mask if mask.shape[-2] == 1 else mask[..., rows, :]


def received(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    how: Scoring,
    weights: Tensor,
    sums: Tensor | None = None,
) -> Tensor:
    """What each key receives over all heads and queries, ``batch key``, outside the graph.

    ``weights``: of each query, ``batch query``. By one kernel on a GPU, which ``sums`` spares half of
    its work (the row sums that :func:`attend_fast` gives) and which leaves the heads apart (``batch
    head key``: summed in one step for all layers), else in chunks.
    """
    found: Tensor | None = None
    if how.plain:
        given = query, key, weights, how.scaling
        found = by_kernel("received_kernel.received", *given, **mask.parts, sums=sums)
    return received_in_chunks(query, key, mask, how, weights) if found is None else found


def received_in_chunks(
    query: Tensor, key: Tensor, mask: Mask, how: Scoring, weights: Tensor
) -> Tensor:
    """The same in chunks of queries, so that no n × n map is ever held; on every device."""
    batch, heads, queries, _ = query.shape
    key = one_per_query_head(key, heads)
    weights = weights[:, None].expand(-1, heads, -1)
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


def attend_fast(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, how: Scoring
) -> tuple[Tensor, Tensor | None]:
    """The output, and the log-sum-exp of every row (``batch head query``) where a kernel tells it."""
    grouped = query.shape[1] != key.shape[1]
    if mask.plain and query.is_cuda and query.shape[-1] % 8 == 0:
        chosen = torch._fused_sdp_choice(
            query, key, value, None, 0.0, mask.causal, scale=how.scaling, enable_gqa=grouped
        )
        # The same kernels that scaled_dot_product_attention would take, which tell their row sums.
        found: Any = None
        if chosen == SDPBackend.FLASH_ATTENTION.value:
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            found = flash(query, key, value, 0.0, mask.causal, scale=how.scaling)
        elif chosen == SDPBackend.CUDNN_ATTENTION.value:
            cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
            found = cudnn(query, key, value, None, True, 0.0, mask.causal, scale=how.scaling)
        if found is not None:
            return found[0], found[1].reshape(query.shape[:3])
    added = mask.allowed
    if mask.added is not None:
        added = mask.added.to(query.dtype)
        if mask.allowed is not None:
            added = added.masked_fill(~mask.allowed, torch.finfo(query.dtype).min)
    # With a mask cuDNN would plan its kernel anew for every shape of a batch.
    masked = query.is_cuda and added is not None
    with _unplanned() if masked else nullcontext():
        output: Tensor = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=added, is_causal=mask.causal,
            scale=how.scaling, enable_gqa=grouped,
        )  # fmt: skip
    return output, None


@contextmanager
def _unplanned() -> Iterator[None]:
    """Within: kernels that need no plan. Which kernels there are is one switch for all threads, so that
    two of them must not put it back across each other."""
    with _switch, sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


_switch = threading.Lock()


def one_per_query_head(states: Tensor, heads: int) -> Tensor:
    """Keys or values of grouped-query attention, written out for every query head."""
    groups = heads // states.shape[1]
    if groups == 1:
        return states
    batch, _, tokens, width = states.shape
    spread = states[:, :, None].expand(batch, states.shape[1], groups, tokens, width)
    return spread.reshape(batch, heads, tokens, width)
