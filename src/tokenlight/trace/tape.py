"""The tape: what methods read of one forward pass, and its gradients for one target.

A :class:`Recording` is one forward pass over a padded batch. A :class:`Tape` is that recording seen from one
target per example. Gradients are taken at recorded tensors, never at weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from tokenlight.accel.tensors import compute_dot_products, upcast
from tokenlight.accel.transfer import AsyncTensor, Deferred, to_device
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rules import RuleSet
from tokenlight.model.embedding_hooks import CapturedEmbeddings
from tokenlight.model.objective import (
    ArgmaxTargets,
    check_readout_found,
)
from tokenlight.trace.attention_maps import AttentionMaps
from tokenlight.trace.extra_passes import ExtraPasses
from tokenlight.trace.gradients import GradientKind, take_gradients
from tokenlight.trace.recording import Recording
from tokenlight.trace.relevance import (
    RelevancePath,
    RelevanceResult,
    can_propagate_together,
    propagate,
    propagate_together,
)
from tokenlight.trace.sites import Site
from tokenlight.trace.target_parts import (
    SplitTarget,
    split_into_rounds,
    split_predicted,
    split_sides,
    split_terms,
)
from tokenlight.trace.undeclared_sites import require_recorded


@dataclass(frozen=True, eq=False)
class Tape:
    """Values and gradients of one batch for one target per example: what a method reads.

    Layers are in order, lowest first. Half precision is returned in float32. Gradients of attention maps are
    zero at padding, on both axes. A property raises :class:`~tokenlight.errors.BadInput` where the method did
    not declare its site in ``needs``.

    Attributes:
        recording: The forward pass.
        targets: One per example.
        gradient_rules: The rules by which gradients are rewritten; None for those of the model.
        checks: Checks of values on the device; :meth:`run_deferred_checks` runs them once these arrive.
        group: Tapes of the same recording, this one among them, whose relevance one backward pass propagates
            when the first of them is read; none if this one has a backward pass of its own.

    Example:
        >>> from tokenlight.plugin import Tape
        >>> def score(tape: Tape):
        ...     return tape.hidden_x_gradient[:, 0]  # ``batch token``: h^0 times its gradient
    """

    recording: Recording
    targets: Sequence[ResolvedTarget]
    _taken_gradients: dict[GradientKind, list[Tensor]] = field(default_factory=dict)
    _relevance_results: dict[tuple[object, ...], RelevanceResult] = field(default_factory=dict)
    _derived_tapes: dict[tuple[object, ...], "Tape"] = field(default_factory=dict)
    gradient_rules: RuleSet | None = None
    checks: list[Deferred] = field(default_factory=list)
    group: list["Tape"] = field(default_factory=list)

    def run_deferred_checks(self) -> None:
        """Run the checks that had to wait for the device, such as that a read-out was found.

        Raises:
            TokenlightError: A check fails.

        Example:
            >>> from tokenlight.plugin import Method, Tape
            >>> def fetch_scores(method: Method, tape: Tape):
            ...     scores = method.compute_scores(tape).cpu()  # waits for the device
            ...     tape.run_deferred_checks()
            ...     return scores
        """
        for check in self.checks:
            check(self.targets)

    def with_gradient_rules(self, rules: RuleSet | None) -> "Tape":
        """Return the tape with gradients rewritten by ``rules`` (Site.RELEVANCE_GRADIENT).

        Args:
            rules: The rule set; None for the model's own gradients.

        Returns:
            A tape of the same recording and targets.

        Example:
            >>> from tokenlight.lrp.rule_sets import CP_LRP
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.with_gradient_rules(CP_LRP).hidden_x_gradient[:, 0]
        """
        if rules is self.gradient_rules:
            return self
        return self._make_tape_for(self.targets, rules)

    @cached_property
    def _gradients(self) -> dict[GradientKind, list[Tensor]]:
        """Gradients by what they are of, taken when they are first read where rules may rewrite them."""
        backward_mode = self.recording.backward_mode
        if self._taken_gradients or backward_mode is None:
            return self._taken_gradients
        with backward_by_rules(backward_mode, self.gradient_rules):
            return take_gradients(self.recording, self.targets, retain_graph=True)

    def _make_tape_for(self, targets: Sequence[ResolvedTarget], rules: RuleSet | None) -> "Tape":
        key = (targets, rules and rules.name)
        if key not in self._derived_tapes:
            tape = self.recording.make_tape(targets, release_graph=False)
            self._derived_tapes[key] = replace(tape, gradient_rules=rules, checks=self.checks)
        return self._derived_tapes[key]

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The tokens of each example."""
        return self.recording.rows

    @property
    def has_span_targets(self) -> bool:
        """Whether the targets are answer spans; then the rows read are those of answer tokens."""
        return self.recording.runner.head.task == "question-answering"

    @cached_property
    def token_mask(self) -> Tensor:
        """``batch token``: true where a token is not padding."""
        return self.recording.token_mask.to(self.recording.logits.device)

    @cached_property
    def lengths(self) -> Tensor:
        """``batch``: the number of tokens that are not padding."""
        return self.token_mask.sum(dim=1)

    @cached_property
    def attention_maps(self) -> AttentionMaps:
        """A^l, ∂y/∂A^l, and their means over heads."""
        # A rewritten gradient of a product leaves each factor its share.
        gradient_share = self.gradient_rules.map_share if self.gradient_rules else 1.0
        return AttentionMaps(self.recording, self._gradients.get("attention map"), gradient_share)

    @property
    def attention(self) -> Sequence[Tensor]:
        """A^1 … A^L, each ``batch head query key``."""
        return require_recorded(self.attention_maps.attention, Site.ATTENTION)

    @property
    def attention_gradients(self) -> Sequence[Tensor]:
        """∂y/∂A^1 … ∂y/∂A^L, each ``batch head query key``."""
        require_recorded(Site.ATTENTION_GRADIENT in self.recording.sites, Site.ATTENTION_GRADIENT)
        return self.attention_maps.gradients

    @cached_property
    def received_attention(self) -> Tensor:
        """The mean attention that each token receives over heads and real queries, ``batch layer token``."""
        if self.recording.received_attention:
            layers = [self._upcast(received) for received in self.recording.received_attention]
            received = torch.stack(layers, dim=1)
            if received.dim() == 4:  # a kernel leaves the sum over heads to this one step
                received = received.sum(dim=2)
            return received
        require_recorded(self.attention_maps.attention, Site.ATTENTION_RECEIVED)
        means = self.attention_maps.mean_attention()
        layout = self.recording.encoder_decoder
        if layout is not None:
            return torch.stack(layout.compute_mean_received(means, self.token_mask), dim=1)
        return torch.stack([self.average_over_queries(mean) for mean in means], dim=1)

    @cached_property
    def hidden_x_gradient(self) -> Tensor:
        r""":math:`\sum_k h^l_{i,k}\,\partial y/\partial h^l_{i,k}` of h^0 … h^L: ``batch layer token``."""
        states: Sequence[Tensor] = self.recording.hidden_states
        gradients = self._gradients["hidden state"]
        if self.recording.encoder_decoder is not None:
            states = self.hidden_states
            gradients = self.hidden_gradients
        return compute_dot_products(states, gradients, self.recording.logits.device)

    @cached_property
    def bias_x_gradient(self) -> list[Tensor]:
        r""":math:`\sum_b \sum_k b_k\,\partial y/\partial z^b_{i,k}` of each block: ``batch token``."""
        require_recorded(Site.BIAS_GRADIENT in self.recording.sites, Site.BIAS_GRADIENT)
        num_layers = len(self.recording.hidden_states) - 1
        terms = [
            torch.zeros(self.token_mask.shape, dtype=self._dtype, device=self.token_mask.device)
        ]
        terms *= num_layers
        gradients = self._gradients.get("biased output", [])
        for biased, gradient in zip(self.recording.biased_outputs, gradients, strict=True):
            share = self._upcast(gradient) @ self._upcast(biased.bias)
            terms[biased.layer] = terms[biased.layer] + share
        return terms

    @cached_property
    def hidden_states(self) -> list[Tensor]:
        """h^0 … h^L, each ``batch token hidden``."""
        require_recorded(len(self.recording.hidden_states) > 1, Site.HIDDEN_STATES)
        return self._expand_states(self.recording.hidden_states)

    @cached_property
    def hidden_gradients(self) -> list[Tensor]:
        """∂y/∂h^0 … ∂y/∂h^L, each ``batch token hidden``."""
        # With only Site.READOUT there is one gradient, that of h^L, which must not pass for that of h^0.
        require_recorded(Site.HIDDEN_GRADIENT in self.recording.sites, Site.HIDDEN_GRADIENT)
        return self._expand_states(self._gradients["hidden state"])

    def list_state_indices(self, side: Literal["input", "output"]) -> list[int]:
        """List the hidden states that enter a block, or those that leave one.

        Args:
            side: ``input`` or ``output`` of the blocks.

        Returns:
            Indices into :attr:`hidden_states`, in ascending order.

        Example:
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.hidden_x_gradient[:, tape.list_state_indices("input")]
        """
        num_states = len(self.recording.hidden_states)
        if side == "input":
            # The last state of an encoder enters the blocks of its decoder.
            return list(range(num_states - 1))
        layout = self.recording.encoder_decoder
        if layout is None:
            return list(range(1, num_states))
        # The first state of the decoder leaves no block.
        return [i for i in range(1, num_states) if i != layout.num_encoder_states]

    @property
    def embeddings(self) -> CapturedEmbeddings:
        """h^0 at every point where the text enters; its ``values`` are ``batch position hidden``."""
        return require_recorded(self.recording.embeddings, Site.EMBEDDINGS)

    @property
    def token_embeddings(self) -> CapturedEmbeddings:
        """The output of the token tables; its ``values`` are ``batch position hidden``."""
        return require_recorded(self.recording.token_embeddings, Site.TOKEN_EMBEDDINGS)

    @cached_property
    def embedding_gradient(self) -> Tensor:
        """∂y/∂h^0, ``batch position hidden``."""
        require_recorded("embedding" in self._gradients, Site.EMBEDDING_GRADIENT)
        return self.embeddings.concatenate(self._gradients["embedding"])

    @property
    def top_gradient(self) -> Tensor:
        """∂y/∂h^L, ``batch token hidden``."""
        require_recorded("hidden state" in self._gradients, Site.READOUT)
        last_layer = len(self.recording.hidden_states) - 1
        return self._expand_state(last_layer, self._gradients["hidden state"][-1])

    @cached_property
    def readout(self) -> Tensor:
        """Which tokens the head reads, ``batch token``: equal shares that sum to one.

        These are the tokens where the gradient at the last hidden state is not zero, so no table of
        architectures is needed.
        """
        is_read = (self.top_gradient.abs().amax(dim=-1) > 0) & self.token_mask
        num_read = is_read.sum(dim=1)
        self.checks.append(Deferred(AsyncTensor(num_read), check_readout_found))
        return is_read.to(self._dtype) / num_read.clamp(min=1)[:, None].to(self._dtype)

    @cached_property
    def single_readout(self) -> Tensor:
        """``batch token``: true at the token that the head reads, where it is only one ([CLS], the last)."""
        return self.readout == 1

    def read_rows(self, matrix: Tensor, *, zero_readout: bool = True) -> Tensor:
        """Return the rows of a matrix that the head reads, averaged: ``batch key``.

        Args:
            matrix: ``batch query key``.
            zero_readout: Call :meth:`zero_readout_cell` first, as most official codes that read rows do.

        Returns:
            One row per example.

        Example:
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.read_rows(tape.attention[-1].mean(dim=1))
        """
        if zero_readout:
            matrix = self.zero_readout_cell(matrix)
        return torch.einsum("bq,bqk->bk", self.readout.to(matrix.dtype), matrix)

    def zero_readout_cell(self, matrix: Tensor) -> Tensor:
        """Set the cell to zero where a class's single read-out token attends to itself.

        For answer spans the cell is [0, 0], wherever they are, since their own tokens matter.

        Args:
            matrix: ``batch query key``.

        Returns:
            A copy.

        Example:
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.zero_readout_cell(tape.attention[-1].mean(dim=1)).sum(dim=1)
        """
        is_zeroed = self._zeroed_tokens
        return matrix.masked_fill(is_zeroed[:, :, None] & is_zeroed[:, None, :], 0.0)

    def zero_readout_token(self, scores: Tensor) -> Tensor:
        """Set the score of a class's single read-out token to zero.

        For answer spans it is the first token, as in the official codes.

        Args:
            scores: ``batch token``.

        Returns:
            A copy.

        Example:
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.zero_readout_token(tape.hidden_x_gradient[:, 0])
        """
        return scores.masked_fill(self._zeroed_tokens, 0.0)

    @cached_property
    def _zeroed_tokens(self) -> Tensor:
        """``batch token``: the token that says nothing about itself."""
        if not self.has_span_targets:
            return self.single_readout
        is_first = torch.zeros_like(self.token_mask)
        is_first[:, 0] = True
        return is_first

    def average_over_queries(self, matrix: Tensor) -> Tensor:
        """Average a matrix over the queries that are no padding.

        Args:
            matrix: ``batch query key``.

        Returns:
            ``batch key``.

        Example:
            >>> from tokenlight.plugin import Tape
            >>> def score(tape: Tape):
            ...     return tape.average_over_queries(tape.attention[-1].mean(dim=1))
        """
        weights = self.token_mask.to(matrix.dtype) / self.lengths[:, None].to(matrix.dtype)
        return torch.einsum("bq,bqk->bk", weights, matrix)

    @property
    def term_tapes(self) -> list[tuple[Tensor, "Tape"]]:
        """A tape for each logit of the target, with its weight (``batch``).

        The relevance of a sum is not the sum of relevances, so a contrast or a span is propagated once per
        logit. The alternatives of a token are propagated together, as the mean that they are.
        """
        return self._split_targets(split_terms)

    @property
    def side_tapes(self) -> list[tuple[Tensor, "Tape"]]:
        """A tape for the start and one for the end of an answer, with weights (``batch``).

        The map of an answer is the sum of both. The weight is 1, or 0 where a target has no such side. Any
        other target stays whole.
        """
        return self._split_targets(split_sides)

    def _split_targets(self, split: SplitTarget) -> list[tuple[Tensor, "Tape"]]:
        """Return a tape for each part of the targets, with the weight of the part in each example.

        They are never kept: a tape that held itself would hold its graph until Python collects cycles.
        """
        tapes: list[tuple[Tensor, Tape]] = []
        if isinstance(self.targets, ArgmaxTargets):
            for weight, part in split_predicted(self.targets, split):
                factor = torch.full_like(self.lengths, weight, dtype=self._dtype)
                tapes.append((factor, self._make_part_tape(part)))
            return tapes
        for weights, targets in split_into_rounds(self.targets, split):
            weight_tensor = to_device(weights, self.token_mask.device, self._dtype)
            tapes.append((weight_tensor, self._make_part_tape(targets)))
        return tapes

    def _make_part_tape(self, targets: Sequence[ResolvedTarget]) -> "Tape":
        if targets is self.targets or targets == self.targets:
            return self
        return self._make_tape_for(targets, self.gradient_rules)

    @cached_property
    def extra_passes(self) -> ExtraPasses:
        """Further passes over these texts for these targets."""
        return ExtraPasses(self.recording, self.targets, self.gradient_rules)

    def propagate_relevance(self, relevance_path: RelevancePath) -> RelevanceResult:
        """Propagate the relevance of the target, which has one logit unless gradients are rewritten.

        Args:
            relevance_path: The rules and where relevance goes. A path is followed only once.

        Returns:
            Relevance at hidden states and attention maps.

        Example:
            >>> from tokenlight.lrp.rule_sets import CHEFER
            >>> from tokenlight.plugin import Tape
            >>> from tokenlight.trace.relevance import RelevancePath
            >>> def score(tape: Tape):
            ...     return tape.propagate_relevance(RelevancePath(CHEFER)).hidden_states[0].sum(dim=-1)
        """
        require_recorded(self.recording.backward_mode is not None, Site.RELEVANCE)
        key = (
            relevance_path.rules.name,
            relevance_path.spread_over_tokens,
            relevance_path.gates_key,
        )
        # Relevance that went down to the embeddings has passed the top, too.
        full_result = self._relevance_results.get((*key, False))
        if full_result is not None and (full_result.attention or not relevance_path.catches_maps):
            return full_result
        result = self._relevance_results.get((*key, relevance_path.top_only))
        lacks_maps = relevance_path.catches_maps and result is not None and not result.attention
        if result is None or lacks_maps:
            result = self._propagate(relevance_path, (*key, relevance_path.top_only))
        return result

    def _propagate(self, relevance_path: RelevancePath, key: tuple[object, ...]) -> RelevanceResult:
        """Propagate relevance, that of the whole group where it can be, and keep the results."""
        if len(self.group) < 2 or not can_propagate_together(relevance_path):
            result = propagate(self.recording, self.targets, relevance_path)
            self._relevance_results[key] = result
            return result
        targets_of_passes = [tape.targets for tape in self.group]
        results = propagate_together(self.recording, targets_of_passes, relevance_path)
        for tape, result in zip(self.group, results, strict=True):
            tape._relevance_results[key] = result
        return self._relevance_results[key]

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.recording.logits.dtype, torch.float32)

    def _expand_states(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self._expand_state(layer, tensor) for layer, tensor in enumerate(tensors)]

    def _expand_state(self, layer: int, tensor: Tensor) -> Tensor:
        """Return a state or its gradient over all tokens, in float32 or wider."""
        state = self._upcast(tensor)
        layout = self.recording.encoder_decoder
        if layout is None:
            return state
        return layout.pad_state(layer, state)

    def _upcast(self, tensor: Tensor) -> Tensor:
        return upcast(tensor.detach(), self.recording.logits.device)
