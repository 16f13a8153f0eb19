"""Grad-CAM over the heads of the last attention map."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.errors import NotFinite
from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduce_to_tokens
from tokenlight.plugin import Tape


class AttentionGradCam(AttentionGradientMethod):
    r"""Heads of the last block weighted by their mean gradient.

    .. math:: w_h = \operatorname{mean}_{i,j} G^L_{h,i,j}, \quad
        M = \bigl(\tfrac1H\sum_h w_h A^L_h\bigr)^+, \quad
        s = \Bigl(\frac{M-\min M}{\max M-\min M}\Bigr)_{r,:}, \quad s_r = 0

    "GradCAM" of Mask-LRP, "AttGrads" in AttCAT's code, Chefer et al. 2021's baseline, over real tokens.
    Differs from the official codes: if the clamped map is constant, they divide 0 by 0 and rank by NaN;
    see ``nan_policy``.

    Args:
        nan_policy: What to do if the clamped map is constant: return zeros (``"zero"``) or raise an error
            (``"nan"``).
        reduce: How queries are reduced; ``"cls_row"`` takes the row of the read-out token.
    """

    nan_policy: Literal["zero", "nan"] = "zero"
    reduce: Reduce = "cls_row"
    cites = "chefer2021transformer"
    signed = False

    def score(self, tape: Tape) -> Tensor:
        gradient = tape.attention_gradients[-1]
        num_cells = tape.lengths.to(gradient.dtype)[:, None] ** 2
        weights = gradient.sum(dim=(2, 3)) / num_cells  # batch head
        weighted_maps = weights[:, :, None, None] * tape.attention[-1]
        matrix = weighted_maps.mean(dim=1).clamp(min=0)  # batch query key
        # Scale each map to [0, 1] over its real tokens.
        is_real = tape.token_mask[:, :, None] & tape.token_mask[:, None, :]
        lowest = matrix.masked_fill(~is_real, torch.inf).amin(dim=(1, 2), keepdim=True)
        highest = matrix.masked_fill(~is_real, 0.0).amax(dim=(1, 2), keepdim=True)
        extent = highest - lowest
        is_constant = extent <= 0
        if self.nan_policy == "nan" and bool(is_constant.any()):
            raise NotFinite(
                f"The clamped attention map of text {int(is_constant.flatten().nonzero()[0])} of the batch "
                "is constant, so scaling it to [0, 1] divides 0 by 0. Use nan_policy='zero'.",
                code="constant-attention-map",
            )
        scaled = (matrix - lowest) / extent.masked_fill(is_constant, 1.0)
        scaled = scaled.masked_fill(is_constant | ~is_real, 0.0)
        return reduce_to_tokens(scaled, tape, self.reduce)
