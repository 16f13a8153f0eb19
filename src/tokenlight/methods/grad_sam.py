"""Grad-SAM: attention times the positive part of its gradient, averaged over all blocks."""

import torch
from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduce_to_tokens
from tokenlight.plugin import Tape


class GradSam(AttentionGradientMethod):
    r"""Self-attention where more of it raises the target.

    .. math:: s_j = \frac1{LHn}\sum_{l,h,i} \bigl(A^l_h \odot (G^l_h)^+\bigr)_{i,j}

    Mean over blocks, heads and real queries. Barkan et al. 2021.
    Differs from the paper: nothing known.

    Args:
        reduce: How queries are reduced; ``"cls_row"`` reads one query instead of the mean.
    """

    reduce: Reduce = "mean_query"
    cites = "barkan2021gradsam"
    signed = False
    per_layer = True

    def score(self, tape: Tape) -> Tensor:
        terms = []
        for matrix in tape.attention_maps.mean_positive_products():
            terms.append(reduce_to_tokens(matrix, tape, self.reduce, zero_readout=False))
        return torch.stack(terms, dim=1) / len(terms)
