"""Grad-SAM: attention times the positive part of its gradient, averaged over all blocks."""

import torch
from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod, Reduce, Tape, reduced


class GradSam(AttentionGradientMethod):
    r"""Self-attention kept where raising it raises the target.

    .. math:: s_j = \frac1{LHn}\sum_{l,h,i} \bigl(A^l_h \odot (G^l_h)^+\bigr)_{i,j}

    Mean over blocks, heads and real queries. Barkan et al. 2021.
    Differs from the paper: nothing known; ``reduce="cls_row"`` reads one query instead.
    """

    reduce: Reduce = "mean_query"
    cites = "barkan2021gradsam"
    signed = False
    per_layer = True

    def score(self, tape: Tape) -> Tensor:
        kept = tape.maps.positive_product()
        terms = [reduced(matrix, tape, self.reduce, zero_readout=False) for matrix in kept]
        return torch.stack(terms, dim=1) / len(terms)
