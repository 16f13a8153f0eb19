"""The gradients of a recorded pass at everything that its sites name, by whatever rules are current."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tokenlight.data.target import ResolvedTarget
from tokenlight.model.objective import compute_gradients, sum_targets
from tokenlight.trace.sites import Site

if TYPE_CHECKING:
    from tokenlight.trace.recording import Recording

# What gradients are taken of.
GradientKind = Literal["hidden state", "attention map", "embedding", "biased output"]


@torch.inference_mode(mode=False)
def take_gradients(
    recording: "Recording", targets: Sequence[ResolvedTarget], *, retain_graph: bool
) -> dict[GradientKind, list[Tensor]]:
    """Take the gradients of ``targets`` at all tensors that the sites name.

    Args:
        recording: The forward pass.
        targets: One per example.
        retain_graph: Whether the graph is used once more.
    """
    with torch.enable_grad():
        total = sum_targets(recording.logits, targets)
    tensors_by_kind = _find_tensors(recording)
    if not tensors_by_kind:
        return {}
    all_tensors: list[Tensor] = []
    for tensors in tensors_by_kind.values():
        all_tensors += tensors
    # Queries and keys have biases, but no gradient where attention counts as constant.
    biased_outputs = [biased.output for biased in recording.biased_outputs]
    if biased_outputs:
        tensors_by_kind["biased output"] = biased_outputs
    all_gradients = compute_gradients(
        recording.runner.model,
        total,
        all_tensors,
        optional=biased_outputs,
        retain_graph=retain_graph,
    )
    remaining = iter(all_gradients)
    gradients: dict[GradientKind, list[Tensor]] = {}
    for kind, tensors in tensors_by_kind.items():
        gradients[kind] = [next(remaining).to(tensor.dtype) for tensor in tensors]
    return gradients


def _find_tensors(recording: "Recording") -> dict[GradientKind, Sequence[Tensor]]:
    """Return the tensors at which gradients are taken."""
    sites = recording.sites
    tensors: dict[GradientKind, Sequence[Tensor]] = {}
    if Site.HIDDEN_GRADIENT in sites:
        tensors["hidden state"] = recording.hidden_states
    elif Site.READOUT in sites:
        # The read-out needs only the last hidden state.
        tensors["hidden state"] = recording.hidden_states[-1:]
    # With these rules attention maps count as constants and have no gradient.
    rules = recording.backward_mode.current_rules if recording.backward_mode else None
    has_constant_maps = rules is not None and rules.map_share == 0
    if Site.ATTENTION_GRADIENT in sites and not has_constant_maps:
        tensors["attention map"] = [
            attention_map.graph_tensor for attention_map in recording.attention_maps
        ]
    if Site.EMBEDDING_GRADIENT in sites and recording.embeddings is not None:
        tensors["embedding"] = recording.embeddings.tensors
    return tensors
