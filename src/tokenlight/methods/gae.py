"""Generic attention explainability: relevancy maps from attention and its gradient."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.errors import BadInput
from tokenlight.methods._maps import AttentionGradientMethod, Reduce, Tape, reduced
from tokenlight.methods._method import GradientMethod


class GenericAttention(GradientMethod, AttentionGradientMethod):
    r"""Follow positive attention × gradient through all blocks.

    .. math:: M^l = \tfrac1H\sum_h (G^l_h \odot A^l_h)^+, \qquad R \leftarrow R + M^l R, \quad R_0 = I,
        \qquad s = R_{r,:}, \quad s_r = 0

    Chefer et al., ICCV 2021: no row norm, no LRP; an answer's scores are its start's plus its end's.
    Of a model that writes after a source (s: source, t: written) the paper's rules for both:
    self-attention as above, in a decoder for :math:`R^{tt}` and :math:`R^{ts}` alike, and at its
    attention to the source :math:`R^{ts} \leftarrow R^{ts} + (\bar R^{tt})^\top M \bar R^{ss}`, where
    :math:`\bar R` is :math:`R - I` with rows that sum to one, plus :math:`I`.
    Differs from the paper: nothing; ``gradient="attnlrp"`` reads another. What the Mask-LRP
    repository calls GAE is the method transatt.
    """

    variant: Literal["iccv2021"] = "iccv2021"
    reduce: Reduce = "cls_row"
    after_source = True
    cites = "chefer2021generic"
    signed = False

    def __post_init__(self) -> None:
        if self.gradient == "attention_constant":
            raise BadInput(
                "gradient='attention_constant' leaves the maps, whose gradient gae reads, without one; "
                "use gradient='attnlrp', or attcat."
            )

    def score(self, tape: Tape) -> Tensor:
        steps, parts = iter(tape.maps.positive_product()), tape.recording.parts
        first = next(steps)
        relevance = torch.eye(first.shape[-1], device=first.device, dtype=first.dtype) + first
        for number, step in enumerate(steps, start=1):
            if parts is None or parts.reader(number) != "cross":
                relevance = relevance + step @ relevance
                continue
            # R^{tt} and R^{ts} stand in the rows of what was written, R^{ss} in the source's.
            source, written = slice(parts.source), slice(parts.source, None)
            reads = _without_identity(relevance[:, written, written]).mT
            read = _without_identity(relevance[:, source, source])
            relevance[:, written, source] += reads @ step[:, written, source] @ read
        return reduced(relevance, tape, self.reduce if parts is None else "cls_row")


def _without_identity(relevance: Tensor) -> Tensor:
    """Eq. 8 and 9: rows of R − I that sum to one, and I; a row that holds nothing else stays I."""
    identity = torch.eye(relevance.shape[-1], device=relevance.device, dtype=relevance.dtype)
    gathered = relevance - identity
    whole = gathered.sum(dim=-1, keepdim=True)
    return gathered / whole.masked_fill(whole == 0, 1.0) + identity
