"""What the methods built on relevance propagation share."""

import abc
from collections.abc import Mapping, Sequence
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
ENCODER = "relevance goes through the encoder: what the decoder reads of the text is in no score"


class InputRelevance(Method):
    """Relevance at h^0 by ``rules`` that are a rewritten gradient, which is linear: a sum of logits goes
    down at once. It has no meter: neither its softmax nor biases conserve."""

    after_source = True
    needs = frozenset({Site.RELEVANCE_GRADIENT})
    rules: ClassVar[RuleSet]

    def note(self, tape: Tape) -> str | None:
        return _of_encoder(tape)

    def __call__(self, tape: Tape) -> Tensor:
        model = tape.recording.live.model
        if model.config.model_type == "gpt_oss":
            raise UnsupportedModel(
                f"{type(model).__name__} writes its gate out, x · σ(αx), within its experts, where it is "
                f"not known as one activation: {self.name} would be far off. Use integrated_gradients."
            )
        found = tape.relevance(Route(self.rules)).hidden
        if tape.recording.parts is None:
            return found[0].sum(dim=-1)
        return torch.cat([own.sum(dim=-1) for own in found], dim=1)  # the source, then the written


def _of_encoder(tape: Tape) -> str | None:
    """That a decoder has a share that is in no score."""
    encodes = tape.recording.live.model.config.is_encoder_decoder
    return ENCODER if encodes and tape.recording.parts is None else None


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
        """That half precision gives other numbers, or that a decoder has a share."""
        dtype = tape.recording.logits.dtype
        half = HALF.format(str(dtype).removeprefix("torch.")) if dtype.itemsize < 4 else None
        return "; ".join(filter(None, (_of_encoder(tape), half))) or None

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
        """``conservation``: relevance at h^0 … h^L over relevance at the output, for each example;
        1 means that nothing was lost or made. Several logits: their weighted mean."""
        flows = [(weights.abs(), self.flow(single)) for weights, single in tape.terms]
        whole = torch.stack([weights for weights, _ in flows]).sum(dim=0)
        kept = torch.stack([w[:, None] * flow.conservation for w, flow in flows]).sum(dim=0)
        meter = Fetched(kept / whole[:, None])
        return Answer(meter, lambda found: [{"conservation": own} for own in found.tolist()])

    @staticmethod
    def rollout(tape: Tape, relevance: Sequence[Tensor], *, row_normalize: bool) -> Tensor:
        r"""The product over blocks of :math:`\operatorname{rownorm}(I + M^l)`, ``batch query key``,
        with :math:`M^l=\tfrac1H\sum_h(G^l_h\odot R^l_h)^+` of the topmost maps' ``relevance``."""
        gradients = tape.attention_gradient[-len(relevance) :]
        blocks = range(len(relevance))  # one at a time: no pair outlives its turn
        steps = ((gradients[i] * relevance[i]).clamp_(min=0).mean(dim=1) for i in blocks)
        *_, flow = rolled_out(steps, row_normalize=row_normalize)
        return flow
