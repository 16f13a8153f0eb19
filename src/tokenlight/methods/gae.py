"""Generic attention explainability: relevancy maps from attention and its gradient."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._maps import (
    AttentionGradientMethod,
    Reduce,
    compute_rollout_row,
    reduce_to_tokens,
    resolve_reduce,
)
from tokenlight.methods.base import GRADIENT_RULE_SETS, GradientMethod
from tokenlight.plugin import BadInput, Tape


class GenericAttention(GradientMethod, AttentionGradientMethod):
    r"""Follow positive attention × gradient through all blocks.

    .. math:: M^l = \tfrac1H\sum_h (G^l_h \odot A^l_h)^+, \qquad R \leftarrow R + M^l R, \quad R_0 = I,
        \qquad s = R_{r,:}, \quad s_r = 0

    Chefer et al., ICCV 2021: no row norm, no LRP; an answer's scores are its start's plus its end's.
    Encoder-decoder models (s: source, t: written) follow the rules of the paper: self-attention as above,
    in a decoder for both :math:`R^{tt}` and :math:`R^{ts}`, and at its attention to the source
    :math:`R^{ts} \leftarrow R^{ts} + (\bar R^{tt})^\top M \bar R^{ss}`, where :math:`\bar R` is
    :math:`R - I` with rows that sum to one, plus :math:`I`.
    Differs from the paper: nothing. What the Mask-LRP repository calls GAE is the method transatt.

    Args:
        variant: The version of the paper; there is one.
        reduce: How queries are reduced; ``"cls_row"`` takes the row of the read-out token.
        gradient: ``"attnlrp"`` and ``"gim"`` read the gradients of those methods; those that hold
            attention maps constant are refused.
    """

    variant: Literal["iccv2021"] = "iccv2021"
    reduce: Reduce = "cls_row"
    supports_encoder_decoder = True
    cites = "chefer2021generic"
    signed = False

    def __post_init__(self) -> None:
        super().__post_init__()
        rule_set = GRADIENT_RULE_SETS.get(self.gradient)
        if rule_set is not None and rule_set.map_share == 0:
            raise BadInput(
                f"gae reads the gradient of attention maps, which gradient={self.gradient!r} removes. Use "
                "gradient='attnlrp', or the method attcat.",
                code="attention-without-gradient",
            )

    def score(self, tape: Tape) -> Tensor:
        layout = tape.recording.encoder_decoder
        maps = tape.attention_maps.mean_positive_products()
        if layout is None and resolve_reduce(tape, self.reduce) == "cls_row":
            return compute_rollout_row(maps, tape, row_normalize=False)
        steps = iter(maps)
        first = next(steps)
        relevance = torch.eye(first.shape[-1], device=first.device, dtype=first.dtype) + first
        for index, step in enumerate(steps, start=1):
            if layout is not None and layout.find_map_kind(index) == "cross":
                _add_cross_attention(relevance, step, layout.source_length)
            else:
                relevance = relevance + step @ relevance
        reduce: Reduce = self.reduce if layout is None else "cls_row"
        return reduce_to_tokens(relevance, tape, reduce)


def _add_cross_attention(relevance: Tensor, step: Tensor, source_length: int) -> None:
    """Add attention from written tokens to the source, in place; both are ``batch query key``."""
    # R^{tt} and R^{ts} are in the rows of the written tokens, R^{ss} in those of the source.
    source = slice(source_length)
    written = slice(source_length, None)
    written_relevance = _normalize_relevance(relevance[:, written, written])
    source_relevance = _normalize_relevance(relevance[:, source, source])
    attention = step[:, written, source]
    relevance[:, written, source] += written_relevance.mT @ attention @ source_relevance


def _normalize_relevance(relevance: Tensor) -> Tensor:
    """Divide the rows of R − I by their sums and add I (Eq. 8 and 9); a row of zeros stays zero."""
    identity = torch.eye(relevance.shape[-1], device=relevance.device, dtype=relevance.dtype)
    mixed = relevance - identity
    row_sums = mixed.sum(dim=-1, keepdim=True)
    return mixed / row_sums.masked_fill(row_sums == 0, 1.0) + identity
