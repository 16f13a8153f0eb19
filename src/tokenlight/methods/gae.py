"""Generic attention explainability: relevancy maps from attention and its gradient."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.methods._maps import AttentionGradientMethod, Reduce, reduced


class GenericAttention(AttentionGradientMethod):
    r"""Follow positive attention × gradient through all blocks.

    .. math:: M^l = \tfrac1H\sum_h (G^l_h \odot A^l_h)^+, \qquad R \leftarrow R + M^l R, \quad R_0 = I,
        \qquad s = R_{r,:}, \quad s_r = 0

    Chefer et al., ICCV 2021, self-attention encoder; no row norm, no LRP. Scores are not negative;
    an answer's are its start's plus its end's.
    Differs from the paper: nothing. What the Mask-LRP repository calls GAE is the method transatt.
    """

    variant: Literal["iccv2021"] = "iccv2021"
    reduce: Reduce = "cls_row"
    cites = "chefer2021generic"
    signed = False

    def score(self, tape: Tape) -> Tensor:
        first = tape.attention[0]
        relevance = torch.eye(first.shape[-1], device=first.device, dtype=first.dtype)
        relevance = relevance.expand(first.shape[0], -1, -1)
        for maps, gradient in zip(tape.attention, tape.attention_gradient, strict=True):
            relevance = relevance + (maps * gradient).clamp(min=0).mean(dim=1) @ relevance
        return reduced(relevance, tape, self.reduce)
