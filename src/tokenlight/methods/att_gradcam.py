"""Grad-CAM over the heads of the last attention map."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.errors import NotFinite
from tokenlight.methods._maps import AttentionGradientMethod, Reduce, Tape, reduced


class AttentionGradCam(AttentionGradientMethod):
    r"""Heads of the last block weighted by their mean gradient.

    .. math:: w_h = \operatorname{mean}_{i,j} G^L_{h,i,j}, \quad
        M = \bigl(\tfrac1H\sum_h w_h A^L_h\bigr)^+, \quad
        s = \Bigl(\frac{M-\min M}{\max M-\min M}\Bigr)_{r,:}, \quad s_r = 0

    "GradCAM" of Mask-LRP, "AttGrads" in AttCAT's code, Chefer et al. 2021's baseline, over real tokens.
    Differs from the official codes: where the clamped map is constant they divide 0 by 0 and rank
    by NaN; we give zeros (``nan_policy="zero"``) or refuse with the reason (``"nan"``).
    """

    nan_policy: Literal["zero", "nan"] = "zero"
    reduce: Reduce = "cls_row"
    cites = "chefer2021transformer"
    signed = False

    def score(self, tape: Tape) -> Tensor:
        maps, gradient = tape.attention[-1], tape.attention_gradient[-1]
        cells = tape.lengths.to(gradient.dtype)[:, None] ** 2
        weights = gradient.sum(dim=(2, 3)) / cells  # batch head
        matrix = (weights[:, :, None, None] * maps).mean(dim=1).clamp(min=0)  # batch query key
        real = tape.real[:, :, None] & tape.real[:, None, :]
        low = matrix.masked_fill(~real, torch.inf).amin(dim=(1, 2), keepdim=True)
        high = matrix.masked_fill(~real, 0.0).amax(dim=(1, 2), keepdim=True)
        width = high - low
        flat = width <= 0
        if self.nan_policy == "nan" and bool(flat.any()):
            raise NotFinite(
                f"the clamped attention map of text {int(flat.flatten().nonzero()[0])} of the batch "
                "is constant, so its scaling to [0, 1] divides 0 by 0; use nan_policy='zero'."
            )
        scaled = ((matrix - low) / width.masked_fill(flat, 1.0)).masked_fill(flat, 0.0)
        return reduced(scaled.masked_fill(~real, 0.0), tape, self.reduce)
