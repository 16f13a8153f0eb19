"""Attention times its gradient, summed over all blocks."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import AttentionGradientMethod, Reduce, Tape, reduced
from tokenlight.methods.att_gradcam import AttentionGradCam
from tokenlight.methods.grad_sam import GradSam


class AttentionTimesGradients(AttentionGradientMethod):
    r"""Attention weighted by what it does to the target, in every block.

    .. math:: s_j = \sum_l \tfrac1H\sum_h (G^l_h \odot A^l_h)_{r,j}

    Qiang et al. 2022, figure 2 ("AttGrads"): no ReLU; the read-out token keeps its own score.
    Differs from the paper: it gives no reduction to tokens; we read the read-out token's row. The
    official code computes att_gradcam under this name (``variant="gradcam_last"``,
    ``preset="official"``). ``variant="grad_sam"`` is the method grad_sam.
    """

    variant: Literal["paper", "gradcam_last", "grad_sam"] = "paper"
    reduce: Reduce = "cls_row"
    cites = "qiang2022attcat"
    per_layer = True
    presets = {"paper": {}, "official": {"variant": "gradcam_last"}}

    def __call__(self, tape: Tape) -> Tensor:
        if self.variant == "gradcam_last":
            return AttentionGradCam(reduce=self.reduce)(tape)[:, None]
        if self.variant == "grad_sam":  # whose default is another
            return GradSam("mean_query" if self.reduce == "cls_row" else self.reduce)(tape)
        return super().__call__(tape)

    def score(self, tape: Tape) -> Tensor:
        matrices = tape.maps.mean_product()
        terms = [reduced(matrix, tape, self.reduce, zero_readout=False) for matrix in matrices]
        return torch.stack(terms, dim=1)
