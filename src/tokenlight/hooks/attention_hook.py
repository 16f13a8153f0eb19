"""The attention hook: an attention function that computes what the model's own does and records its maps.

It is registered with transformers under a name of its own, together with a mask function under the same name;
without that second entry transformers would silently drop the mask. A model uses it only while
``hooks/instrument.py`` switches its configs to that name.
"""

import threading
from collections.abc import Callable, Container
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.attention import (
    AttentionMask,
    AttentionOperands,
    AttentionParams,
    attend_fused,
    build_mask,
    compute_attention_map,
    compute_received_attention,
    repeat_kv_heads,
)
from tokenlight.hooks.patching import patched_attributes

ATTENTION_NAME = "tokenlight"

# Arguments that a layer may pass although they do not change the attention map: the mask already carries
# them (sliding_window), or they mean nothing in evaluation mode, in which we record (dropout). Any other
# argument is refused, since it might change the map.
HARMLESS_ARGUMENTS = frozenset(
    {
        "output_hidden_states", "output_attentions", "use_cache", "position_ids", "deterministic",
        "sliding_window", "return_dict", "cache_position", "cache", "num_items_in_batch", "layer_idx",
        "position_embeddings", "dropout", "is_training", "max_length_q", "max_length_k", "cu_seq_lens_q",
        "cu_seq_lens_k", "target_dtype", "local_attention", "logits_to_keep",
    }
)  # fmt: skip

# What is recorded of each block: nothing; the attention that each token receives; the map; or the operands,
# from which the map is computed when it is read.
RecordMode = Literal["nothing", "received attention", "maps", "operands"]
WrapAttention = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass
class AttentionRecorder:
    """Recorder of a forward pass's attention, block by block.

    Attributes:
        mode: Which form of attention is recorded.
        token_mask: ``batch token``: true where a token is not padding.
        modules: The modules whose attention is recorded.
        keeps_values: Whether to record contexts and values.
        uses_fused_kernels: False if every operation must be visible, so that relevance can be traced.
        records_cross_attention: Whether a decoder's attention to its source is recorded as well.
        zeroed_token: ``batch``: the token of each row whose value is set to zero.
        maps: Attention maps, each ``batch head query key``, on the graph.
        operands: Operands of each map, in mode ``operands``.
        received_attention: Attention that each token receives, ``batch key`` or ``batch head key``: the mean
            over heads and real queries.
        contexts: Products of maps and values, each ``batch head token width``.
        values: The values of each block, with one per query head.
        has_sink: Whether rows of attention sum to less than one, because some went to a sink.
        wrap_attention: Calls fused attention where its gradient is to be rewritten.
    """

    mode: RecordMode
    token_mask: Tensor
    modules: Container[nn.Module]
    keeps_values: bool = False
    uses_fused_kernels: bool = True
    records_cross_attention: bool = False
    zeroed_token: Tensor | None = None
    maps: list[Tensor] = field(default_factory=list)
    operands: list[AttentionOperands] = field(default_factory=list)
    received_attention: list[Tensor] = field(default_factory=list)
    contexts: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    has_sink: bool = False
    wrap_attention: WrapAttention | None = None
    _weights_cache: dict[tuple[torch.device, torch.dtype], Tensor] = field(default_factory=dict)

    def is_recorded(self, module: nn.Module) -> bool:
        """Return whether the attention of ``module`` is recorded."""
        return self.mode != "nothing" and module in self.modules

    def compute_query_weights(self, query: Tensor) -> Tensor:
        """Return 1 / (heads · real queries) at real queries and 0 at padding, ``batch query``."""
        key = (query.device, torch.promote_types(query.dtype, torch.float32))
        if key not in self._weights_cache:
            is_real = self.token_mask.to(*key)
            shares = is_real / is_real.sum(dim=1, keepdim=True)
            self._weights_cache[key] = shares / query.shape[1]
        return self._weights_cache[key]

    def record(self, operands: AttentionOperands, key: Tensor, value: Tensor) -> None:
        """Record what the mode asks for; ``key`` and ``value`` may be repeated for every query head.

        Args:
            operands: What the layer computed its attention from, and its output.
            key: The keys, perhaps repeated for every query head.
            value: The values, perhaps repeated for every query head.
        """
        if self.mode == "received attention":
            weights = self.compute_query_weights(operands.query)
            received = compute_received_attention(
                operands.query, key, operands.mask, operands.params, weights, operands.logsumexp
            )
            self.received_attention.append(received)
        if self.mode == "operands":
            self.operands.append(operands)
        if self.keeps_values:
            self.contexts.append(operands.context)
            self.values.append(value)

    def ablate_values(self, module: nn.Module, value: Tensor) -> Tensor:
        """Return ``batch head key width`` with zeros at the token whose value is zeroed."""
        if self.zeroed_token is None or module not in self.modules:
            return value
        keys = torch.arange(value.shape[2], device=value.device)
        is_zeroed = keys == self.zeroed_token.to(value.device)[:, None]
        return value.masked_fill(is_zeroed[:, None, :, None], 0.0)


# Outside attention_recorded_by() the hook computes attention and records nothing.
NO_RECORDER = AttentionRecorder("nothing", torch.empty(0), ())


class _RecorderState(threading.local):
    recorder = NO_RECORDER
    # The attention implementation of the model that the hook stands in for.
    implementation: str = ""


# This stays thread-local: transformers calls the hook with a fixed signature, and autograd computes blocks
# again in threads of its own, each with a recorder of its own.
_recorder_state = _RecorderState()


def attention_recorded_by(recorder: AttentionRecorder) -> AbstractContextManager[None]:
    """Record the attention of this thread's passes with ``recorder`` inside the block."""
    return patched_attributes([_recorder_state], recorder=recorder)


def emulated_attention(implementation: str) -> AbstractContextManager[None]:
    """Compute what the model's own ``implementation`` would inside the block, on this thread."""
    return patched_attributes([_recorder_state], implementation=implementation)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute scaled dot-product attention and record it, as ``AttentionInterface`` calls it.

    Args:
        module: The attention layer.
        query: ``batch head query width``.
        key: ``batch head key width``, perhaps with fewer heads (grouped-query attention).
        value: As ``key``.
        attention_mask: Boolean, or added to the scores.
        scaling: The factor on scores; by default one over the root of the width.
        **kwargs: What else the layer passes.

    Returns:
        ``batch query head width``, and None for the map.
    """
    recorder = _recorder_state.recorder
    is_causal = _pop_causal(module, kwargs)
    params = _pop_params(query, scaling, kwargs)
    bias: Tensor | None = kwargs.pop("position_bias", None)
    _check_arguments(module, kwargs)
    mask = build_mask(attention_mask, bias, is_causal, query, key)
    value = recorder.ablate_values(module, value)
    repeated_key, repeated_value = _prepare_keys(recorder, query, key, value, mask, params)
    tensors = (query, repeated_key, repeated_value)
    if not recorder.is_recorded(module):
        context, _ = _attend_without_map(recorder, tensors, mask, params)
        return context.transpose(1, 2).contiguous(), None
    _check_lengths(module, recorder, query, key)
    recorder.has_sink = recorder.has_sink or params.sinks is not None
    context, logsumexp = _attend_recorded(recorder, tensors, mask, params)
    operands = AttentionOperands(
        mask=mask,
        params=params,
        query=query,
        key=key,
        value=value,
        context=context,
        logsumexp=logsumexp,
    )
    recorder.record(operands, repeated_key, repeated_value)
    return context.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, attend)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


def _prepare_keys(
    recorder: AttentionRecorder,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    params: AttentionParams,
) -> tuple[Tensor, Tensor]:
    """Return keys and values with one head per query head, or as they are where a kernel reads groups."""
    # Only the fused kernels of a GPU read grouped keys as they are, and only without a mask.
    is_fused = recorder.uses_fused_kernels and recorder.mode != "maps" and params.is_fusable
    if is_fused and query.is_cuda and mask.is_plain:
        return key, value
    num_heads = query.shape[1]
    return repeat_kv_heads(key, num_heads), repeat_kv_heads(value, num_heads)


def _attend_recorded(
    recorder: AttentionRecorder,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: AttentionMask,
    params: AttentionParams,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of a recorded layer through its map if the mode asks for maps, and record the map."""
    if recorder.mode != "maps":
        return _attend_without_map(recorder, tensors, mask, params)
    query, key, value = tensors
    attention_map = compute_attention_map(query, key, mask, params)
    recorder.maps.append(attention_map)
    return torch.matmul(attention_map, value), None


def _attend_without_map(
    recorder: AttentionRecorder,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: AttentionMask,
    params: AttentionParams,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of query, key and value; return the row sums too where a kernel gives them."""
    if not (recorder.uses_fused_kernels and params.is_fusable):
        query, key, value = tensors
        return torch.matmul(compute_attention_map(query, key, mask, params), value), None
    attend_tensors = partial(attend_fused, mask=mask, params=params)
    # A mask that is computed from the text is a fourth factor, and its share of the gradient is not known.
    if recorder.wrap_attention is None or mask.requires_gradient:
        return attend_tensors(*tensors)
    attend_tempered = partial(_attend_at_temperature, mask, params)
    return recorder.wrap_attention(attend_tensors, attend_tempered, *tensors)


def _attend_at_temperature(
    mask: AttentionMask,
    params: AttentionParams,
    temperature: float,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    """Compute attention of query, key and value with scores and biases divided by a temperature."""
    bias = mask.bias
    if bias is not None:
        bias = bias / temperature
    tempered_params = replace(params, scaling=params.scaling / temperature)
    output, _ = attend_fused(query, key, value, replace(mask, bias=bias), tempered_params)
    return output


def _pop_causal(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    is_causal = kwargs.pop("is_causal", None)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal)


def _pop_params(query: Tensor, scaling: float | None, kwargs: dict[str, Any]) -> AttentionParams:
    softcap: float | None = kwargs.pop("softcap", None)
    if _recorder_state.implementation == "sdpa":
        # Older transformers run models with a softcap on SDPA, which has none, and drop it.
        softcap = None
    sinks: Tensor | None = kwargs.pop("s_aux", None)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    return AttentionParams(scaling, softcap, sinks)


def _check_arguments(module: nn.Module, kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if name not in HARMLESS_ARGUMENTS and value is not None and value is not False:
            raise UnsupportedModel(
                f"{type(module).__name__} passes the argument {name!r} to its attention, and tokenlight "
                "does not know its meaning, so recorded maps could be wrong. Use a method that does not read "
                "attention, such as occlusion.",
                code="unknown-attention-argument",
            )


def _check_lengths(
    module: nn.Module, recorder: AttentionRecorder, query: Tensor, key: Tensor
) -> None:
    if not recorder.records_cross_attention and query.shape[2] != key.shape[2]:
        raise UnsupportedModel(
            f"{type(module).__name__} attends from {query.shape[2]} to {key.shape[2]} tokens, but "
            "tokenlight explains self-attention. Use a method that does not read it, such as occlusion.",
            code="not-self-attention",
        )
