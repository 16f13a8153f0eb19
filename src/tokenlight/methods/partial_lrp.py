"""Partial LRP: relevance of the last block's attention."""

from torch import Tensor

from tokenlight.methods._relevance import RuledRelevance, Site, Tape


class PartialRelevance(RuledRelevance):
    r"""Relevance of the last attention map in the row the head reads.

    .. math:: s_j = \tfrac1H\sum_h \bigl(R^L_{A,h,r,j}\bigr)^+, \qquad s_r = 0

    :math:`R^L_A` is the relevance at the last block's map (``batch head query key``). Voita et al.
    2019, as Chefer et al., CVPR 2021, run it.
    Differs from the paper: Voita et al. score heads; the clamp before the mean is the code's
    (``clamp=False`` leaves it out). ``rules`` as in the method lrp.
    """

    clamp: bool = True
    cites = "voita2019analyzing"
    top_only = True
    needs = frozenset({Site.RELEVANCE, Site.READOUT})

    def of_logit(self, tape: Tape) -> Tensor:
        maps = self.flow(tape).attention[-1]
        return tape.read((maps.clamp(min=0) if self.clamp else maps).mean(dim=1))
