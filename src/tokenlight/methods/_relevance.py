"""What the methods built on relevance propagation share."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tokenlight.capture.rerun import Flow, Route
from tokenlight.errors import UnsupportedModel
from tokenlight.methods._maps import rolled_out, weighted
from tokenlight.methods._method import Answer, Extras, Fetched, Method, Site, Tape
from tokenlight.relevance.rules import RuleSet
from tokenlight.relevance.rulesets import CHEFER, CHEFER_ORIG, MASK_LRP_GPT2

__all__ = ["Site", "Tape"]  # beside what is written here
Rules = Literal["ours", "orig", "gpt2_official"]
QaRelevance = Literal["position", "broadcast"]
RULES: dict[str, RuleSet] = {"ours": CHEFER, "orig": CHEFER_ORIG, "gpt2_official": MASK_LRP_GPT2}
HALF = (
    "computed in {}: relevance is divided by sums that nearly cancel, so these are not the numbers of "
    "float32: load the model in float32, or take attnlrp"
)
BESIDE = (
    "an adapter stands beside its weights and is not merged: these rules share relevance between the "
    "two, so merging it (merge_and_unload) gives other scores for the same model, but not of attnlrp"
)
ENCODER = "relevance goes through the encoder: what the decoder reads of the text is in no score"


class InputRelevance(Method):
    """Relevance at h^0 by a rewritten gradient, which is linear: a sum of logits goes down at once. It has
    no meter: neither its softmax nor biases conserve. ``way="rules"`` goes rule by rule."""

    way: Literal["gradient", "rules"] = "gradient"
    by_gradient: ClassVar[RuleSet]
    by_rules: ClassVar[RuleSet]

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.RELEVANCE if self.way == "rules" else Site.RELEVANCE_GRADIENT})

    @property
    def after_source(self) -> bool:  # type: ignore[override]  # as its option has it
        return self.way == "gradient"

    def note(self, tape: Tape) -> str | None:
        return notes(tape, divides=self.way == "rules")

    def flow(self, tape: Tape) -> Flow:
        """The relevance of a tape; followed once."""
        model = tape.recording.live.model
        if model.config.model_type == "gpt_oss":
            raise UnsupportedModel(
                f"{type(model).__name__} writes its gate out, x · σ(αx), within its experts, where it is "
                f"not known as one activation: {self.name} would be far off. Use integrated_gradients."
            )
        return tape.relevance(Route(self.by_rules if self.way == "rules" else self.by_gradient))

    def __call__(self, tape: Tape) -> Tensor:
        return weighted(tape.terms, self.of_logits) if self.way == "rules" else self.of_logits(tape)

    def of_logits(self, tape: Tape) -> Tensor:
        """Of the sum of a tape's logits; by rules, of one alone."""
        found = self.flow(tape).hidden
        if tape.recording.parts is None:
            return found[0].sum(dim=-1)
        return torch.cat([own.sum(dim=-1) for own in found], dim=1)  # the source, then the written

    def extras(self, tape: Tape) -> Extras:
        return meter(tape, self.flow) if self.way == "rules" else None


def notes(tape: Tape, *, divides: bool) -> str | None:
    """That a decoder has a share that is in no score; that where relevance ``divides``, half precision, or an
    adapter beside the weights, gives other numbers."""
    model, dtype = tape.recording.live.model, tape.recording.logits.dtype
    one_part = tape.recording.parts is None
    found = [ENCODER] if model.config.is_encoder_decoder and one_part else []
    if divides and dtype.itemsize < 4:
        found.append(HALF.format(str(dtype).removeprefix("torch.")))
    layers = (module for module in model.modules() if hasattr(module, "base_layer"))  # of PEFT
    if divides and any(getattr(layer, "merged", None) is False for layer in layers):
        found.append(BESIDE)
    return "; ".join(found) or None


def meter(tape: Tape, flow: Callable[[Tape], Flow]) -> Answer:
    """``conservation``: relevance at h^0 … h^L over relevance at the output, for each example;
    1 means that nothing was lost or made. Several logits: their weighted mean."""
    flows = [(weights.abs(), flow(single)) for weights, single in tape.terms]
    whole = torch.stack([weights for weights, _ in flows]).sum(dim=0)
    kept = torch.stack([w[:, None] * own.conservation for w, own in flows]).sum(dim=0)
    found = Fetched(kept / whole[:, None])
    return Answer(found, lambda figures: [{"conservation": own} for own in figures.tolist()])


class RuledRelevance(Method):
    """Relevance by a named rule set, rule by rule; its Attributions carry the conservation meter."""

    rules: Rules = "ours"
    qa_relevance: QaRelevance = "position"
    needs_precision = True
    presets = {"official": {"qa_relevance": "broadcast"}, "chefer_orig": {"rules": "orig"}}
    top_only: ClassVar[bool] = False

    @classmethod
    def fitted(cls, options: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
        """The official code has rules of its own for GPT-2's Conv1D, so ``preset="official"`` takes
        them (``rules="gpt2_official"``) for a model built of it; ``rules`` that are given win."""
        if options.get("preset") != "official" or "rules" in options:
            return options
        conv1d = any(type(module).__name__ == "Conv1D" for module in model.modules())
        return {**options, "rules": "gpt2_official"} if conv1d else options

    def note(self, tape: Tape) -> str | None:
        return notes(tape, divides=True)

    def route(self, tape: Tape, **gated: Any) -> Route:
        """The way down; an answer's row is laid over all tokens if ``qa_relevance`` says so."""
        spread = self.qa_relevance == "broadcast" and tape.spans
        return Route(RULES[self.rules], top_only=self.top_only, spread=spread, **gated)

    def flow(self, tape: Tape) -> Flow:
        """The relevance of a tape of one logit; followed once."""
        return tape.relevance(self.route(tape))

    def __call__(self, tape: Tape) -> Tensor:
        """Σ weight · score over the logits of the target: a contrast is the difference of two
        explanations, a span the sum of its start's and its end's."""
        return weighted(tape.terms, self.of_logit)

    @abc.abstractmethod
    def of_logit(self, tape: Tape) -> Tensor:
        """Of one logit alone."""

    def extras(self, tape: Tape) -> Extras:
        return meter(tape, self.flow)

    @staticmethod
    def rollout(tape: Tape, relevance: Sequence[Tensor], *, row_normalize: bool) -> Tensor:
        r"""The product over blocks of :math:`\operatorname{rownorm}(I + M^l)`, ``batch query key``,
        with :math:`M^l=\tfrac1H\sum_h(G^l_h\odot R^l_h)^+` of the topmost maps' ``relevance``."""
        gradients = tape.attention_gradient[-len(relevance) :]
        blocks = range(len(relevance))  # one at a time: no pair outlives its turn
        steps = ((gradients[i] * relevance[i]).clamp_(min=0).mean(dim=1) for i in blocks)
        *_, flow = rolled_out(steps, row_normalize=row_normalize)
        return flow
