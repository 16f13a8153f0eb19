"""Partial LRP: relevance of the last block's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenlight.capture.flow import Route
from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._relevance import (
    PRESETS,
    QaRelevance,
    RelevanceMethod,
    Rules,
    over_terms,
    routed,
)


@dataclass(frozen=True, slots=True)
class PartialRelevance(RelevanceMethod):
    r"""Relevance of the last attention map in the row the head reads.

    .. math:: s_j = \tfrac1H\sum_h \bigl(R^L_{A,h,r,j}\bigr)^+, \qquad s_r = 0

    :math:`R^L_A` is the relevance at the last block's map (``batch head query key``). Voita et al.
    2019, as Chefer et al., CVPR 2021, run it; only the part above that map is followed.
    Differs from the paper: Voita et al. score heads; the clamp before the mean is the code's
    (``clamp=False`` leaves it out). ``rules`` as in the method lrp.
    """

    rules: Rules = "ours"
    clamp: bool = True
    qa_relevance: QaRelevance = "position"
    cites: ClassVar[str] = "voita2019analyzing"
    presets: ClassVar[dict[str, dict[str, object]]] = PRESETS

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.RELEVANCE, Site.READOUT})

    def route(self, tape: Tape) -> Route:
        return routed(tape, self.rules, self.qa_relevance, top_only=True)

    def __call__(self, tape: Tape) -> Tensor:
        return over_terms(tape, self._score)

    def _score(self, tape: Tape) -> Tensor:
        maps = tape.relevance(self.route(tape)).attention[-1]
        return tape.read((maps.clamp(min=0) if self.clamp else maps).mean(dim=1))


METHOD = PartialRelevance
