"""Relevance: a backward pass over the recorded graph by rules of layer-wise relevance propagation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokenlight.accel.tensors import LazyTensors, upcast
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import UnsupportedModel
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rules import RuleSet
from tokenlight.model.objective import locate_terms
from tokenlight.trace.attention_maps import AttentionMap

if TYPE_CHECKING:
    from tokenlight.trace.recording import Recording

# Changes the relevance that reaches one block's attention context, ``batch head token width``.
RelevanceGate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class RelevancePath:
    """How relevance is propagated.

    Attributes:
        rules: The rule set.
        top_only: Propagate no lower than the attention map of the last block.
        keeps_maps: Keep the relevance of attention maps, which takes as much memory as the maps.
        spread_over_tokens: Spread the relevance of an answer's position evenly over all tokens of the last
            hidden state, as the official question-answering code does.
        gates: By block (0 is the lowest): changes the relevance at its attention context.
        gates_key: Tells these gates from others.
    """

    rules: RuleSet
    top_only: bool = False
    keeps_maps: bool = True
    spread_over_tokens: bool = False
    gates: Mapping[int, RelevanceGate] = field(default_factory=dict)
    gates_key: int = 0

    @property
    def catches_maps(self) -> bool:
        """Whether relevance is caught at attention maps; a rewritten gradient reads only the input."""
        return self.keeps_maps and not self.rules.rewrites_gradients


@dataclass(frozen=True, eq=False)
class RelevanceResult:
    """Relevance at the layers of a model, lowest first.

    Attributes:
        hidden_states: At h^l, each ``batch token hidden``; with ``top_only`` only at the last one, of a
            rewritten gradient only at h^0.
        attention: At A^l, each ``batch head query key``; none if the path keeps no maps.
        initial_relevance: The relevance at the output, ``batch``.
        contexts: The context vectors at each gate, before the gate.
    """

    hidden_states: list[Tensor]
    attention: Sequence[Tensor]
    initial_relevance: Tensor
    contexts: list[Tensor] = field(default_factory=list)

    @property
    def conservation(self) -> Tensor:
        """Relevance at each layer divided by that at the output, ``batch layer``; 1 if nothing is lost."""
        layer_sums = [relevance.flatten(1).sum(dim=1) for relevance in self.hidden_states]
        denominator = torch.where(self.initial_relevance == 0, 1.0, self.initial_relevance)
        return torch.stack(layer_sums, dim=1) / denominator[:, None]


@dataclass
class _GatedRelevance:
    """Relevance that reached each gate, and what the gate passed on."""

    arrived: dict[int, Tensor] = field(default_factory=dict)
    passed: dict[int, Tensor] = field(default_factory=dict)


@torch.inference_mode(mode=False)
def propagate(
    recording: Recording, targets: Sequence[ResolvedTarget], relevance_path: RelevancePath
) -> RelevanceResult:
    """Propagate relevance from the logits of ``targets`` down through the recorded graph.

    Args:
        recording: A pass recorded with a site of relevance.
        targets: One per example. Only a rewritten gradient, which is linear, takes several logits at once.
        relevance_path: The rules and where relevance goes.

    Raises:
        UnsupportedModel: If relevance does not reach a hidden state, or if gates are not supported.
    """
    rules = relevance_path.rules
    seed = _make_seed(recording.logits, targets, rules)
    states = _select_states(recording, relevance_path)
    maps = _select_maps(recording, relevance_path)
    caught_tensors = [*states, *(attention_map.graph_tensor for attention_map in maps)]
    with (
        backward_by_rules(recording.backward_mode, rules),
        _gated_contexts(recording, relevance_path.gates) as gated,
    ):
        source = recording.logits
        source_relevance = seed
        if relevance_path.spread_over_tokens:
            source = recording.hidden_states[-1]
            source_relevance = _spread_over_tokens(recording, seed)
        caught = torch.autograd.grad(
            source, caught_tensors, source_relevance, retain_graph=True, allow_unused=True
        )
    state_relevance = _check_reached(caught[: len(states)])
    map_relevance = caught[len(states) :]
    if rules.rewrites_gradients:
        initial_relevance, state_relevance = _multiply_by_inputs(
            recording.logits, seed, states, state_relevance
        )
    else:
        initial_relevance = seed.flatten(1).sum(dim=1)
    return RelevanceResult(
        hidden_states=state_relevance,
        attention=_collect_map_relevance(recording, maps, map_relevance, gated, rules),
        initial_relevance=initial_relevance,
        contexts=[gated.arrived[block] for block in sorted(gated.arrived)],
    )


def can_propagate_together(relevance_path: RelevancePath) -> bool:
    """Return whether :func:`propagate_together` can follow this path: a rewritten gradient without gates."""
    is_plain = not relevance_path.gates and not relevance_path.spread_over_tokens
    return relevance_path.rules.rewrites_gradients and is_plain


@torch.inference_mode(mode=False)
def propagate_together(
    recording: Recording,
    targets_of_passes: Sequence[Sequence[ResolvedTarget]],
    relevance_path: RelevancePath,
) -> list[RelevanceResult]:
    """Propagate several targets of the same examples by one backward pass over a batch of gradients.

    It computes what :func:`propagate` does for each of them. Every operation runs once for all of them, so
    that a GPU is given fewer and larger kernels.

    Args:
        recording: A pass recorded with a site of relevance.
        targets_of_passes: For each backward pass that this replaces, one target per example.
        relevance_path: A path for which :func:`can_propagate_together` is true.
    """
    rules = relevance_path.rules
    seeds = [_make_seed(recording.logits, targets, rules) for targets in targets_of_passes]
    states = _select_states(recording, relevance_path)
    with backward_by_rules(recording.backward_mode, rules):
        caught = torch.autograd.grad(
            recording.logits,
            list(states),
            torch.stack(seeds),
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )
    batched_gradients = _check_reached(caught)
    results = []
    for index, seed in enumerate(seeds):
        gradients = [gradient[index] for gradient in batched_gradients]
        initial_relevance, relevance = _multiply_by_inputs(
            recording.logits, seed, states, gradients
        )
        results.append(RelevanceResult(relevance, (), initial_relevance))
    return results


def _multiply_by_inputs(
    logits: Tensor, seed: Tensor, states: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return relevance at the output and at the states: a rewritten gradient times what it is taken of."""
    products = torch.where(seed == 0, 0, seed * logits.detach())
    state_relevance = []
    for state, gradient in zip(states, gradients, strict=True):
        state_relevance.append(upcast(state.detach()) * gradient)
    return products.flatten(1).sum(dim=1), state_relevance


def _make_seed(logits: Tensor, targets: Sequence[ResolvedTarget], rules: RuleSet) -> Tensor:
    """Make the relevance at the logits: their values or ones, times the weights of the target."""
    indices, weights = locate_terms(logits, targets)
    if weights is None:
        weights = torch.ones_like(indices[0], dtype=logits.dtype)
    if rules.starts_at_value:
        weights = weights * logits.detach()[indices]
    seed = torch.zeros_like(logits)
    seed[indices] = weights
    return seed


def _select_states(recording: Recording, relevance_path: RelevancePath) -> Sequence[Tensor]:
    """Select the hidden states at which relevance is caught."""
    states = recording.hidden_states
    if relevance_path.top_only:
        states = states[-1:]
    if not relevance_path.rules.rewrites_gradients:
        return states
    # Only h^0 is read: of a model that generates from a source, that of its encoder and of its decoder.
    layout = recording.encoder_decoder
    if layout is None:
        return states[:1]
    return states[:: layout.num_encoder_states][:2]


def _select_maps(recording: Recording, relevance_path: RelevancePath) -> Sequence[AttentionMap]:
    """Select the attention maps at which relevance is caught."""
    if not relevance_path.catches_maps:
        return ()
    if relevance_path.top_only:
        return recording.attention_maps[-1:]
    return recording.attention_maps


def _spread_over_tokens(recording: Recording, seed: Tensor) -> Tensor:
    """Propagate to the last hidden state and spread what arrives evenly over the real tokens."""
    last_state = recording.hidden_states[-1]
    (relevance,) = torch.autograd.grad(recording.logits, [last_state], seed, retain_graph=True)
    is_real = recording.token_mask.to(relevance)
    shares = (is_real / is_real.sum(dim=1, keepdim=True))[..., None]
    return relevance.sum(dim=1, keepdim=True) * shares


def _check_reached(relevances: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the relevance at hidden states; refuse where none arrived at one of them."""
    reached: list[Tensor] = []
    for layer, relevance in enumerate(relevances):
        if relevance is None:
            raise UnsupportedModel(
                f"No relevance arrives at hidden state {layer} (0 is the embedding) of this model. "
                "Choose a method that does not read layers, such as occlusion.",
                code="no-relevance-at-state",
            )
        reached.append(relevance)
    return reached


def _collect_map_relevance(
    recording: Recording,
    maps: Sequence[AttentionMap],
    caught: Sequence[Tensor | None],
    gated: _GatedRelevance,
    rules: RuleSet,
) -> Sequence[Tensor]:
    """Return the relevance of each map from what was caught at its tensor of the graph."""
    relevances: list[Tensor] = []
    for block, (attention_map, relevance) in enumerate(zip(maps, caught, strict=True)):
        if not attention_map.is_stored and block in gated.passed:
            # The hook of a gate changes what goes on from the context, not what is caught there.
            relevances.append(gated.passed[block])
        elif relevance is None:
            # An attention map that counts as a constant has no relevance.
            relevances.append(torch.zeros_like(attention_map.graph_tensor))
        else:
            relevances.append(relevance)
    if all(attention_map.is_stored for attention_map in maps):
        return relevances
    convert = partial(_convert_relevance, maps, rules, len(recording.rows))
    return LazyTensors(relevances, convert, range(len(relevances)))


def _convert_relevance(
    maps: Sequence[AttentionMap], rules: RuleSet, batch_size: int, index: int, relevance: Tensor
) -> Tensor:
    return maps[index].compute_relevance_at_map(relevance, rules, batch_size)


@contextmanager
def _gated_contexts(
    recording: Recording, gates: Mapping[int, RelevanceGate]
) -> Iterator[_GatedRelevance]:
    """Apply ``gates`` to the relevance at attention contexts inside the block.

    Raises:
        UnsupportedModel: If there are gates and the recording has no contexts.
    """
    if gates and not recording.contexts:
        raise UnsupportedModel(
            "Relevance can only be masked by head where attention goes through transformers' interface, "
            "which this model does not use. Instead, use transatt, which needs no mask.",
            code="no-relevance-gates",
        )
    gated = _GatedRelevance()

    def apply_gate(block: int, relevance: Tensor) -> Tensor:
        gated.arrived[block] = relevance
        gated.passed[block] = gates[block](relevance)
        return gated.passed[block]

    with ExitStack() as cleanup:
        for block in gates:
            context: Any = recording.contexts[block]  # register_hook is not typed
            handle = context.register_hook(partial(apply_gate, block))
            cleanup.callback(handle.remove)
        yield gated
