"""CP-LRP: relevance with attention maps and deviations held constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenlight.capture.flow import Route
from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._relevance import RelevanceMethod, over_terms
from tokenlight.relevance.rulesets import CP_LRP


@dataclass(frozen=True, slots=True)
class ConservativeRelevance(RelevanceMethod):
    r"""How much of the logit each token brought through the values alone.

    .. math:: s_i = \sum_k R^0_{i,k}

    :math:`R^0` (``batch token hidden``) is the relevance at h^0 of the logit's own value: the
    attention map is a constant weight (its queries and keys take nothing), LayerNorm a linear map
    with constant deviation, every linear layer and sum the epsilon rule. Ali et al., ICML 2022.
    Differs from the paper: activations pass relevance unchanged, as in the comparison of Achtibat et
    al. 2024, where the paper takes gradient × input; gates, which it does not treat, halve it;
    relevance ends at h^0.
    """

    cites: ClassVar[str] = "ali2022xai"

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.RELEVANCE})

    def route(self, tape: Tape) -> Route:  # noqa: ARG002 - one route for every target
        return Route(CP_LRP)

    def __call__(self, tape: Tape) -> Tensor:
        return over_terms(tape, lambda single: self.flow(single).hidden[0].sum(dim=-1))


METHOD = ConservativeRelevance
