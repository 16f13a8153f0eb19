"""The attention seam: an attention function, lawfully registered with transformers, that computes
what the model's own does and shows each map to the listener of the running thread. The mask is built by
what is registered under the *same* name; without that second entry it would silently be dropped.
"""

import threading
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tokenlight.capture.attention import (
    Scoring,
    Unkept,
    attend_fast,
    attention_map,
    mask_of,
    one_per_query_head,
    received,
)
from tokenlight.capture.transfer import all_widened
from tokenlight.capture.turns import lent
from tokenlight.errors import UnsupportedModel

NAME = "tokenlight"

# Arguments a layer may hand over that do not change the attention map, or that the mask already
# carries (sliding_window), or nothing in evaluation mode, in which we listen (dropout). Anything else is
# refused: it might mean something.
HARMLESS = frozenset(
    {
        "output_hidden_states", "output_attentions", "use_cache", "position_ids", "deterministic",
        "sliding_window", "return_dict", "cache_position", "cache", "num_items_in_batch", "layer_idx",
        "position_embeddings", "dropout", "is_training", "max_length_q", "max_length_k", "cu_seq_lens_q",
        "cu_seq_lens_k", "target_dtype", "local_attention",
    }
)  # fmt: skip

Wanted = Literal["nothing", "received", "maps", "unkept"]


@dataclass
class Listener:
    """What one forward pass wants of its attention maps, and what it has been shown: a block's ``maps``,
    ``batch head query key``, or what each is made of (``unkept``); what each token has ``received``, ``batch
    key``, the mean over heads and real queries (``real``: ``batch token``); and, where ``keeps_values``, the
    two sides of the product with the maps, ``contexts`` and ``values``, each ``batch head token width``."""

    wanted: Wanted
    real: Tensor
    parts: Container[nn.Module]  # of the model, which are listened to
    keeps_values: bool = False
    fused: bool = True  # False: no fused kernel anywhere, so that relevance can be followed
    crosses: bool = False  # a decoder's attention to its source is heard, too
    silent: Tensor | None = None  # ``batch``: the token of each row whose value is zero
    maps: list[Tensor] = field(default_factory=list)
    unkept: list[Unkept] = field(default_factory=list)
    received: list[Tensor] = field(default_factory=list)
    contexts: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    sunk: bool = False  # some of each row went to a sink, so it sums to less than one
    # How fused attention is called, where its gradient is to be rewritten.
    attended: Callable[..., tuple[Tensor, Tensor | None]] | None = None
    _weights: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict)

    def query_weights(self, query: Tensor) -> Tensor:
        """1 / (heads · real queries) at real queries, 0 at padding: ``batch query``, for every block."""
        key = query.device, torch.promote_types(query.dtype, torch.float32)
        if key not in self._weights:
            real = self.real.to(*key)
            self._weights[key] = real / real.sum(dim=1, keepdim=True) / query.shape[1]
        return self._weights[key]

    @property
    def attention(self) -> Sequence[Tensor]:
        """The maps, each made when it is read where none is kept."""
        if self.unkept:
            return all_widened(self.unkept, lambda _, own: own.map(), in_turn=True)
        return tuple(self.maps)

    def hear(self, made: Unkept, value: Tensor) -> None:
        """What a block's attention was ``made`` of, with one ``value`` a query head."""
        if self.wanted == "unkept":
            self.unkept.append(made)
        if self.keeps_values:
            self.contexts.append(made.context)
            self.values.append(value)

    def spoken(self, module: nn.Module, value: Tensor) -> Tensor:
        """``batch head key width`` with zeros where a token is silent."""
        if self.silent is None or module not in self.parts:
            return value
        keys = torch.arange(value.shape[2], device=value.device)
        own = keys == self.silent.to(value.device)[:, None]
        return value.masked_fill(own[:, None, :, None], 0.0)


class _Running(threading.local):
    listener = Listener("nothing", torch.empty(0), ())
    own: str = ""  # the attention of the model's own that this one stands in for


_running = _Running()


def listening(listener: Listener) -> AbstractContextManager[None]:
    """Show the maps of this thread's forward passes to ``listener``."""
    return lent([_running], listener=listener)


def standing_in_for(own: str) -> AbstractContextManager[None]:
    """Compute in this thread what the model's ``own`` implementation would."""
    return lent([_running], own=own)


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
    causal = others.pop("is_causal", None)
    softcap: float | None = others.pop("softcap", None)
    if _running.own == "sdpa":
        # Older transformers let models with a softcap run on a kernel that knows none, and drop it.
        softcap = None
    sinks: Tensor | None = others.pop("s_aux", None)
    bias: Tensor | None = others.pop("position_bias", None)
    _refuse_unknown(module, others)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    how = Scoring(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sinks)
    mask = mask_of(attention_mask, bias, bool(causal), query, key)
    value = listener.spoken(module, value)
    fused, parts = listener.fused and listener.wanted != "maps", (query, key, value)
    if not (fused and query.is_cuda and mask.plain and how.plain):
        # Only the fused kernels of a GPU read grouped keys as they are, where no mask is given.
        key, value = (one_per_query_head(t, query.shape[1]) for t in (key, value))
    listens = listener.wanted != "nothing" and module in listener.parts
    if listens:
        if not listener.crosses and query.shape[2] != key.shape[2]:
            raise UnsupportedModel(
                f"{type(module).__name__} attends from {query.shape[2]} to {key.shape[2]} tokens; "
                "tokenlight explains self-attention."
            )
        listener.sunk = listener.sunk or sinks is not None
    sums: Tensor | None = None
    if listens and listener.wanted == "maps":
        maps = attention_map(query, key, mask, how)
        listener.maps.append(maps)
        output = torch.matmul(maps, value)
    else:
        if listener.fused and how.plain:
            attend = partial(attend_fast, mask=mask, how=how)
            # A mask that is computed from the text is a fourth factor, which no share is known of.
            call = None if mask.active else listener.attended
            given = query, key, value
            output, sums = call(attend, *given) if call else attend(*given)
        else:
            output = torch.matmul(attention_map(query, key, mask, how), value)
        if listens and listener.wanted == "received":
            weights = listener.query_weights(query)
            listener.received.append(received(query, key, mask, how, weights, sums))
    if listens:
        listener.hear(Unkept(mask, how, *parts, output, sums), value)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def _refuse_unknown(module: nn.Module, others: dict[str, Any]) -> None:
    for name, value in others.items():
        if name not in HARMLESS and value is not None and value is not False:
            raise UnsupportedModel(
                f"{type(module).__name__} hands its attention the argument {name!r}, whose meaning "
                "tokenlight does not know; its maps would be wrong, so this model is refused."
            )
