"""Attention times its gradient, summed over all blocks."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduce_to_tokens
from tokenlight.methods.att_gradcam import AttentionGradCam
from tokenlight.methods.grad_sam import GradSam
from tokenlight.plugin import Tape


class AttentionTimesGradients(AttentionGradientMethod):
    r"""Attention weighted by what it does to the target, in every block.

    .. math:: s_j = \sum_l \tfrac1H\sum_h (G^l_h \odot A^l_h)_{r,j}

    Qiang et al. 2022, figure 2 ("AttGrads"): no ReLU; the read-out token keeps its own score.
    Differs from the paper: it gives no reduction to tokens; we read the read-out token's row. The
    official code computes att_gradcam under this name (``preset="official"``).

    Args:
        variant: ``"paper"``; ``"gradcam_last"`` is the method att_gradcam, ``"grad_sam"`` the method
            grad_sam.
        reduce: How queries are reduced; ``"cls_row"`` takes the row of the read-out token.
    """

    variant: Literal["paper", "gradcam_last", "grad_sam"] = "paper"
    reduce: Reduce = "cls_row"
    cites = "qiang2022attcat"
    per_layer = True
    presets = {"paper": {}, "official": {"variant": "gradcam_last"}}

    def __call__(self, tape: Tape) -> Tensor:
        if self.variant == "gradcam_last":
            return AttentionGradCam(reduce=self.reduce)(tape)[:, None]
        if self.variant == "grad_sam":
            # The default of one method stands for the default of the other.
            reduce: Reduce = "mean_query" if self.reduce == "cls_row" else self.reduce
            return GradSam(reduce)(tape)
        return super().__call__(tape)

    def score(self, tape: Tape) -> Tensor:
        terms = []
        for matrix in tape.attention_maps.mean_products():
            terms.append(reduce_to_tokens(matrix, tape, self.reduce, zero_readout=False))
        return torch.stack(terms, dim=1)
