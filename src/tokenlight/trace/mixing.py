"""How each block adds attention to its input: output projection, residual and norm, found in one forward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.attention_hook import AttentionRecorder
from tokenlight.hooks.offloaded import loaded_weights
from tokenlight.hooks.patching import forward_hooks
from tokenlight.hooks.uncompiled import uncompiled_modules

# Two kinds of norm differ by more than this, and float32 rounds a sum over the features by less.
MIN_RELATIVE_GAP = 1e-4


@dataclass(frozen=True, eq=False)
class RecordedNorm:
    """A norm and its call in the pass.

    Attributes:
        weight: ``hidden``; None if it has none.
        inputs: ``batch token hidden``.
        output: ``batch token hidden``.
        is_centered: Whether it subtracts the mean; an RMSNorm does not.
    """

    weight: Tensor | None
    inputs: Tensor
    output: Tensor
    is_centered: bool = True

    def apply_linear(self, vectors: Tensor, queries: slice) -> Tensor:
        """Apply the linear part to ``batch query key hidden``: center, divide by the query's deviation."""
        deviation = self.inputs[:, queries].var(dim=-1, correction=0).sqrt()[..., None, None]
        centered = vectors - vectors.mean(dim=-1, keepdim=True)
        if self.weight is not None:
            centered = centered * self.weight
        return centered / deviation

    def apply_transpose(self, direction: Tensor) -> Tensor:
        """Apply the transpose of the linear part to a direction at the output, ``batch token hidden``."""
        scaled = direction if self.weight is None else direction * self.weight
        if not self.is_centered:
            return scaled / _compute_mean_square(self.inputs).sqrt()
        deviation = self.inputs.var(dim=-1, correction=0, keepdim=True).sqrt()
        return (scaled - scaled.mean(dim=-1, keepdim=True)) / deviation


@dataclass(frozen=True, eq=False)
class Mixing:
    """How one block mixes attention with its input.

    Attributes:
        projection: The output projection, ``hidden (head·width)``.
        residual: The block's input, to which attention is added.
        stream: The residual stream after attention.
        norm: The norm after the sum; None if the block normalizes before attention.
        last_norm: The norm that gives the block's output, or the last hidden state after the last block.
    """

    projection: Tensor
    residual: Tensor
    stream: Tensor
    norm: RecordedNorm | None
    last_norm: RecordedNorm | None


@dataclass(frozen=True, eq=False)
class _ModuleCall:
    """A call of a linear layer or a norm; ``block`` counts the attention maps recorded before it."""

    block: int
    module: nn.Module
    inputs: Tensor
    output: Tensor

    @property
    def is_linear(self) -> bool:
        return _is_linear(self.module)


class MixingRecorder:
    """Records the calls of linear layers and norms of an encoder."""

    def __init__(self, recorder: AttentionRecorder) -> None:
        self._attention_recorder = recorder
        self._calls: list[_ModuleCall] = []

    def calls_recorded(self, encoder: nn.Module) -> AbstractContextManager[None]:
        """Record the calls inside the block."""
        modules = [module for module in encoder.modules() if _is_linear(module) or _is_norm(module)]
        return forward_hooks(modules, post_hook=self._record_call)

    def _record_call(self, module: nn.Module, args: Any, _kwargs: Any, output: Any) -> None:
        if args and isinstance(output, Tensor):
            block = len(self._attention_recorder.maps)
            self._calls.append(
                _ModuleCall(
                    block=block, module=module, inputs=args[0].detach(), output=output.detach()
                )
            )

    def build_mixings(self, hidden_states: Sequence[Tensor]) -> tuple[Mixing, ...]:
        """Build the mixing of every block from h^0 … h^L.

        Raises:
            UnsupportedModel: If a block cannot be split into projection, residual and norm.
        """
        detached = [state.detach() for state in hidden_states]
        mixings: list[Mixing] = []
        for block, (block_input, block_output) in enumerate(pairwise(detached)):
            mixings.append(self._build_mixing(block, block_input, block_output))
        return tuple(mixings)

    def _build_mixing(self, block: int, block_input: Tensor, block_output: Tensor) -> Mixing:
        # Before its attention map a block's calls count as its own number, after it as the next one.
        calls_before = [call for call in self._calls if call.block == block]
        calls_after = [call for call in self._calls if call.block == block + 1]
        norms_after = _select_norms(calls_after)
        projection = _find_projection(block, calls_after, block_input)
        # The norm that reads the sum of attention and the block's input shows where the stream continues.
        residual_sum = block_input + projection.output
        stream_norm = _find_call(norms_after, inputs=residual_sum)
        if stream_norm is None:
            raise UnsupportedModel(
                f"Block {block} of this model cannot be split into what each token contributed: attention is "
                "not simply added to the block's input. Choose a method that does not split it, such as "
                "rollout or attcat.",
                code="block-without-residual-sum",
            )
        is_normed_before = _find_call(_select_norms(calls_before), inputs=block_input) is not None
        last_norm = _find_last_norm(norms_after, block_output, is_normed_before)
        weight = _read_projection_matrix(projection)
        if is_normed_before:
            return Mixing(
                projection=weight,
                residual=block_input,
                stream=residual_sum,
                norm=None,
                last_norm=last_norm,
            )
        return Mixing(
            projection=weight,
            residual=block_input,
            stream=stream_norm.output,
            norm=_record_norm(stream_norm),
            last_norm=last_norm,
        )


def _select_norms(calls: Sequence[_ModuleCall]) -> list[_ModuleCall]:
    return [call for call in calls if not call.is_linear]


def _find_projection(
    block: int, calls_after: Sequence[_ModuleCall], block_input: Tensor
) -> _ModuleCall:
    """Find the output projection: the first linear layer after attention."""
    projection = next((call for call in calls_after if call.is_linear), None)
    if projection is None or projection.output.shape != block_input.shape:
        raise UnsupportedModel(
            f"Block {block} of this model cannot be split into what each token contributed: no output "
            "projection follows its attention. Choose a method that does not split it, such as rollout or "
            "attcat.",
            code="block-without-projection",
        )
    return projection


def _find_call(
    calls: Sequence[_ModuleCall], *, inputs: Tensor | None = None, output: Tensor | None = None
) -> _ModuleCall | None:
    """Find the first call with these inputs, or with this output."""
    for call in calls:
        if inputs is not None and _is_close(call.inputs, inputs):
            return call
        if output is not None and _is_close(call.output, output):
            return call
    return None


def _find_last_norm(
    norms: Sequence[_ModuleCall], block_output: Tensor, is_normed_before: bool
) -> RecordedNorm | None:
    """Find the norm that gives the block's output, if there is one that is understood."""
    call = _find_call(norms, output=block_output)
    if call is None:
        return None
    norm = _record_norm(call)
    # After a stack of pre-norm blocks, a norm of another class is understood only if it is an RMSNorm.
    is_norm_of_stack = is_normed_before and not isinstance(call.module, nn.LayerNorm)
    if is_norm_of_stack and norm.is_centered:
        return None
    return norm


@torch.no_grad()
def _read_projection_matrix(call: _ModuleCall) -> Tensor:
    """Return the weight of a linear layer as ``out in``; a Conv1D of GPT-2 stores its transpose."""
    module: Any = call.module
    with loaded_weights(module):
        weight: Tensor = module.weight.detach()
        if _has_plain_numbers(weight):
            return weight if isinstance(module, nn.Linear) else weight.T
        # A quantized layer keeps codes in place of numbers, and answers for each input what they mean.
        features = call.inputs.shape[-1]
        units = torch.eye(features, dtype=call.inputs.dtype, device=call.inputs.device)
        with uncompiled_modules([module]):
            outputs: Tensor = module.forward(units) - module.forward(torch.zeros_like(units))
        return outputs.T


def _has_plain_numbers(weight: Tensor) -> bool:
    """Return whether a weight holds its own values, one for each; packed and quantized ones do not."""
    return type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.LayerNorm):
        return True
    has_children = next(module.children(), None) is not None
    return type(module).__name__.endswith("Norm") and not has_children


def _record_norm(call: _ModuleCall) -> RecordedNorm:
    with loaded_weights(call.module):
        weight = getattr(call.module, "weight", None)
        weight = weight.detach() if isinstance(weight, Tensor) else None
    # A norm that only divides by the root mean square gives the output without centering. It is computed
    # again in a wide dtype: half precision would round more than the two kinds of norm differ.
    inputs = call.inputs.to(torch.promote_types(call.inputs.dtype, torch.float32))
    scaled = inputs / (_compute_mean_square(inputs) + _find_norm_eps(call.module)).sqrt()
    is_centered = weight is None or not _is_close(scaled * weight, call.output, call.inputs.dtype)
    return RecordedNorm(
        weight=weight, inputs=call.inputs, output=call.output, is_centered=is_centered
    )


def _find_norm_eps(module: nn.Module) -> float:
    """Return what a norm adds to the variance, under the names that transformers gives it."""
    for name in ("variance_epsilon", "eps", "epsilon", "norm_eps"):
        eps = getattr(module, name, None)
        if isinstance(eps, float):
            return eps
    return 0.0


def _compute_mean_square(states: Tensor) -> Tensor:
    return states.square().mean(dim=-1, keepdim=True)


def _is_close(first: Tensor, second: Tensor, *rounded_to: torch.dtype) -> bool:
    """Return whether two tensors agree, as far as the coarsest dtype can tell.

    Args:
        first: A tensor.
        second: Another with as many numbers.
        rounded_to: Dtypes to which one of them was rounded on its way.
    """
    if first.numel() != second.numel():
        return False
    eps = max(torch.finfo(dtype).eps for dtype in (first.dtype, second.dtype, *rounded_to))
    # A norm and its weight round twice, each time by half an eps.
    rtol = max(MIN_RELATIVE_GAP, 2 * eps)
    wide_dtype = torch.promote_types(first.dtype, second.dtype)
    # Some blocks fold the batch into the tokens.
    reshaped = first.reshape(second.shape).to(wide_dtype)
    return torch.allclose(reshaped, second.to(wide_dtype), rtol=rtol, atol=0.1 * rtol)
