"""Partial LRP: relevance of the last block's attention."""

from torch import Tensor

from tokenlight.methods._relevance import RuleBasedRelevance
from tokenlight.plugin import Site, Tape


class PartialRelevance(RuleBasedRelevance):
    r"""Relevance of the last attention map in the row the head reads.

    .. math:: s_j = \tfrac1H\sum_h \bigl(R^L_{A,h,r,j}\bigr)^+, \qquad s_r = 0

    :math:`R^L_A` is the relevance at the last block's map (``batch head query key``). Voita et al.
    2019, as Chefer et al., CVPR 2021, run it.
    Differs from the paper: Voita et al. score heads; the clamp before the mean comes from the code.

    Args:
        clamp: Keep only positive relevance before the mean.
        rules: As in lrp.
        qa_relevance: As in lrp.
    """

    clamp: bool = True
    cites = "voita2019analyzing"
    last_block_only = True
    needs = frozenset({Site.RELEVANCE, Site.READOUT})

    def score_logit(self, tape: Tape) -> Tensor:
        relevance = self.propagate(tape).attention[-1]
        if self.clamp:
            relevance = relevance.clamp(min=0)
        return tape.read_rows(relevance.mean(dim=1))
