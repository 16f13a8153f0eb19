"""AttnLRP: layer-wise relevance with rules made for attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenlight.capture.flow import Route
from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._relevance import RelevanceMethod, over_terms
from tokenlight.relevance.rulesets import ATTNLRP


@dataclass(frozen=True, slots=True)
class AttentionAwareRelevance(RelevanceMethod):
    r"""How much of the logit each token's embedding brought.

    .. math:: s_i = \sum_k R^0_{i,k}

    :math:`R^0` (``batch token hidden``) is the relevance at h^0 of the logit's own value, by the
    epsilon rule in linear layers and sums, halves in products of two activations,
    :math:`R_i = x_i(R_i - s_i\sum_j R_j)` through the softmax, identity through activations and
    through the division by a norm's deviation (its mean and weight are linear, so epsilon again).
    Biases keep what they brought: the meter shows how much. Achtibat et al., ICML 2024.
    Differs from the paper: relevance ends at h^0, after the embeddings' own sum and norm.
    """

    cites: ClassVar[str] = "achtibat2024attnlrp"

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.RELEVANCE})

    def route(self, tape: Tape) -> Route:  # noqa: ARG002 - one route for every target
        return Route(ATTNLRP)

    def __call__(self, tape: Tape) -> Tensor:
        return over_terms(tape, lambda single: self.flow(single).hidden[0].sum(dim=-1))


METHOD = AttentionAwareRelevance
