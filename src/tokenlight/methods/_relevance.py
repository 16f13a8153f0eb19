"""Base of the methods that propagate relevance (LRP)."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tokenlight.accel.tensors import LazyTensors
from tokenlight.accel.transfer import AsyncTensor, Deferred
from tokenlight.lrp.rule_sets import CHEFER, CHEFER_ORIG, MASK_LRP_GPT2
from tokenlight.lrp.rules import RuleSet
from tokenlight.methods._maps import compute_rollout_row, sum_weighted_scores
from tokenlight.methods.base import Extras, Method, check_activations
from tokenlight.trace.relevance import RelevancePath, RelevanceResult
from tokenlight.trace.sites import Site
from tokenlight.trace.tape import Tape

Rules = Literal["chefer", "chefer_orig", "mask_lrp_gpt2"]
QaRelevance = Literal["position", "broadcast"]
RULE_SETS: dict[str, RuleSet] = {
    "chefer": CHEFER,
    "chefer_orig": CHEFER_ORIG,
    "mask_lrp_gpt2": MASK_LRP_GPT2,
}
HALF_PRECISION_NOTE = (
    "computed in {}: relevance is divided by sums that nearly cancel, so scores differ from those in "
    "float32; load the model in float32, or use attnlrp"
)
ADAPTER_NOTE = (
    "an adapter is not merged into its weights: these rules split relevance between the two, so merging "
    "it (merge_and_unload) gives other scores for the same model, except for attnlrp"
)
ENCODER_ONLY_NOTE = (
    "relevance is propagated through the encoder: no score includes what the decoder reads of "
    "the text"
)


class InputRelevance(Method):
    """A method that gives relevance at h^0, by default as a rewritten gradient.

    A rewritten gradient is linear, so that a sum of logits is propagated in one backward pass. It has no
    conservation meter: neither its softmax nor its biases conserve relevance.

    Args:
        propagation: ``"gradient"``, or ``"rules"`` to propagate rule by rule, one logit at a time.

    Attributes:
        gradient_rule_set: Rules of the rewritten gradient.
        explicit_rule_set: Rules for ``propagation="rules"``.
    """

    propagation: Literal["gradient", "rules"] = "gradient"
    gradient_rule_set: ClassVar[RuleSet]
    explicit_rule_set: ClassVar[RuleSet]

    @property
    def needs(self) -> frozenset[Site]:
        if self.propagation == "rules":
            return frozenset({Site.RELEVANCE})
        return frozenset({Site.RELEVANCE_GRADIENT})

    @property
    def supports_encoder_decoder(self) -> bool:  # type: ignore[override]  # depends on an option
        return self.propagation == "gradient"

    def write_note(self, tape: Tape) -> str | None:
        return collect_notes(tape, divides_relevance=self.propagation == "rules")

    def propagate(self, tape: Tape) -> RelevanceResult:
        """Return the relevance of a tape, computed once."""
        check_activations(tape.recording.runner.model, self.name)
        rule_set = self.gradient_rule_set
        if self.propagation == "rules":
            rule_set = self.explicit_rule_set
        return tape.propagate_relevance(RelevancePath(rule_set))

    def __call__(self, tape: Tape) -> Tensor:
        if self.propagation == "rules":
            return sum_weighted_scores(tape.term_tapes, self.score_logits)
        return self.score_logits(tape)

    def score_logits(self, tape: Tape) -> Tensor:
        """Return the scores of the sum of a tape's logits; with explicit rules, of its one logit."""
        hidden_relevance = self.propagate(tape).hidden_states
        if tape.recording.encoder_decoder is None:
            return hidden_relevance[0].sum(dim=-1)
        # Of an encoder-decoder model, the tokens of the source come first, then the written ones.
        return torch.cat([relevance.sum(dim=-1) for relevance in hidden_relevance], dim=1)

    def measure_extras(self, tape: Tape) -> Extras:
        if self.propagation == "gradient":
            return None
        return measure_conservation(tape, self.propagate)


def collect_notes(tape: Tape, *, divides_relevance: bool) -> str | None:
    """Return what a reader must know about relevance scores of this model, or None.

    Args:
        tape: The tape.
        divides_relevance: Whether the rules divide relevance. Then half precision, or an adapter that is
            not merged, gives other numbers.
    """
    model = tape.recording.runner.model
    dtype = tape.recording.logits.dtype
    notes = []
    if model.config.is_encoder_decoder and tape.recording.encoder_decoder is None:
        notes.append(ENCODER_ONLY_NOTE)
    if divides_relevance and dtype.itemsize < 4:
        notes.append(HALF_PRECISION_NOTE.format(str(dtype).removeprefix("torch.")))
    if divides_relevance and _has_unmerged_adapter(model):
        notes.append(ADAPTER_NOTE)
    return "; ".join(notes) or None


def _has_unmerged_adapter(model: nn.Module) -> bool:
    """Return whether a layer of PEFT adds an adapter to the weights instead of having it merged."""
    for module in model.modules():
        if hasattr(module, "base_layer") and getattr(module, "merged", None) is False:
            return True
    return False


def measure_conservation(tape: Tape, propagate: Callable[[Tape], RelevanceResult]) -> Deferred:
    """Return ``conservation``: relevance at h^0 … h^L divided by relevance at the output, per example.

    1 means that no relevance was lost or created. Of several logits it is the weighted mean.
    """
    terms = []
    magnitudes = []
    for weights, logit_tape in tape.term_tapes:
        magnitude = weights.abs()
        magnitudes.append(magnitude)
        terms.append(magnitude[:, None] * propagate(logit_tape).conservation)
    total = torch.stack(magnitudes).sum(dim=0)
    conservation = AsyncTensor(torch.stack(terms).sum(dim=0) / total[:, None])
    return Deferred(
        conservation, lambda values: [{"conservation": shares} for shares in values.tolist()]
    )


class RuleBasedRelevance(Method):
    """A method that propagates relevance by a named rule set; it records the conservation meter.

    Args:
        rules: The rule set: ``"chefer"`` conserves relevance, ``"chefer_orig"`` is the "original LRP" of
            Chefer et al., ``"mask_lrp_gpt2"`` that of the Mask-LRP code for GPT-2.
        qa_relevance: Where the relevance of an answer starts: at its ``"position"``, or ``"broadcast"``
            over all tokens, as the official code does.

    Attributes:
        last_block_only: Whether propagation ends at the last block.
        reads_maps: Whether the scores are made of the relevance of attention maps.
    """

    rules: Rules = "chefer"
    qa_relevance: QaRelevance = "position"
    needs_precision = True
    presets = {"official": {"qa_relevance": "broadcast"}, "chefer_orig": {"rules": "chefer_orig"}}
    last_block_only: ClassVar[bool] = False
    reads_maps: ClassVar[bool] = True

    @classmethod
    def adapt_options(cls, options: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
        """Use ``rules="mask_lrp_gpt2"`` with ``preset="official"`` for a model built of Conv1D.

        The official code has rules of its own for GPT-2's Conv1D. An explicit ``rules`` takes precedence.
        """
        if options.get("preset") != "official" or "rules" in options:
            return options
        has_conv1d = any(type(module).__name__ == "Conv1D" for module in model.modules())
        if has_conv1d:
            return {**options, "rules": "mask_lrp_gpt2"}
        return options

    def write_note(self, tape: Tape) -> str | None:
        return collect_notes(tape, divides_relevance=True)

    def choose_relevance_path(self, tape: Tape, **gate_options: Any) -> RelevancePath:
        """Return the path of propagation: its rules, its extent, and whether an answer is broadcast."""
        spread = self.qa_relevance == "broadcast" and tape.has_span_targets
        # Methods of one call share a pass, so that the maps are kept if any of them reads maps.
        keeps_maps = self.reads_maps or Site.ATTENTION_GRADIENT in tape.recording.sites
        return RelevancePath(
            RULE_SETS[self.rules],
            top_only=self.last_block_only,
            keeps_maps=keeps_maps,
            spread_over_tokens=spread,
            **gate_options,
        )

    def propagate(self, tape: Tape) -> RelevanceResult:
        """Return the relevance of a tape of one logit, computed once."""
        return tape.propagate_relevance(self.choose_relevance_path(tape))

    def __call__(self, tape: Tape) -> Tensor:
        """Return Σ weight · score over the logits of the target.

        A contrast is the difference of two explanations, a span the sum of those of its start and end.
        """
        return sum_weighted_scores(tape.term_tapes, self.score_logit)

    @abc.abstractmethod
    def score_logit(self, tape: Tape) -> Tensor:
        """Return the scores of one logit."""

    def measure_extras(self, tape: Tape) -> Extras:
        return measure_conservation(tape, self.propagate)

    @staticmethod
    def roll_out_relevance(
        tape: Tape, relevance: Sequence[Tensor], *, row_normalize: bool, zero_readout: bool = True
    ) -> Tensor:
        r"""Return the read-out row of the product over blocks of :math:`\operatorname{rownorm}(I + M^l)`.

        :math:`M^l=\tfrac1H\sum_h(G^l_h\odot R^l_h)^+` with the relevance R of the topmost maps.

        Args:
            tape: The recorded pass, for the gradients of the maps.
            relevance: The relevance of each map; of the topmost maps, if there are fewer than blocks.
            row_normalize: Whether each row of a factor is divided by its sum.
            zero_readout: Whether the token that is read out gets the score 0.

        Returns:
            ``batch key``.
        """
        gradients = tape.attention_gradients[-len(relevance) :]

        def compute_step(block: int, map_relevance: Tensor) -> Tensor:
            return (gradients[block] * map_relevance).clamp_(min=0).mean(dim=1)

        # Computed when they are read, so that only one pair of maps is in memory at a time.
        steps = LazyTensors(relevance, compute_step, range(len(relevance)))
        return compute_rollout_row(
            steps, tape, row_normalize=row_normalize, zero_readout=zero_readout
        )
