"""Rules for what acts on each element, or on one token alone: most pass relevance through."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenlight.relevance.case import Case
from tokenlight.relevance.division import epsilon_divide


def passed(relevance: Tensor, case: Case) -> tuple[Tensor | None, ...]:
    r""":math:`R_x = R`: what has one input that matters gives it all (activations, norms, softmax in
    Chefer et al.; activations in AttnLRP)."""
    return relevance, *(None for _ in case.operands[1:])


def epsilon_shifted(relevance: Tensor, case: Case) -> tuple[Tensor | None, ...]:
    r""":math:`y = x + b`: :math:`R_x = x\,R/y`, the constant keeps what it brought.

    The epsilon rule of a bias. It makes :func:`softmax_taylor` blind to a constant added to all
    scores of a row (ALiBi counted from the end of a padded batch), as the softmax itself is. A mere
    number added to all elements takes nothing, nor does a 0 (of a mask that hides no token).
    """
    constant = case.operands[1]
    if constant is None:
        return passed(relevance, case)
    carried = case.operand(0) * epsilon_divide(relevance, case.output)
    return torch.where(constant == 0, relevance, carried), None


def scaled(relevance: Tensor, case: Case) -> tuple[Tensor | None, ...]:
    r""":math:`y = c\,x`: :math:`R_x = R`, and 0 where the constant is 0, since no :math:`x` got through."""
    factor = case.operands[1]
    return relevance if factor is None else torch.where(factor == 0, 0.0, relevance), None


def softmax_taylor(relevance: Tensor, case: Case) -> tuple[Tensor | None, ...]:
    r"""First-order expansion of the softmax :math:`s(x)` (AttnLRP, proposition 3.1).

    .. math:: R_i = x_i\bigl(R_i - s_i\textstyle\sum_j R_j\bigr)

    Keys that were masked out have :math:`s_i=0` and take no part.
    """
    scores, share = case.operand(0), case.output
    total = relevance.sum(dim=case.detail, keepdim=True)
    return (torch.where(share == 0, 0.0, scores * (relevance - share * total)),)


def norm_linear(relevance: Tensor, case: Case) -> tuple[Tensor | None, ...]:
    r"""LayerNorm as a linear map, its deviation a constant (Ali et al. 2022, LN-rule; AttnLRP,
    proposition 3.4 and section 3.3.3).

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad S=R/y,\quad
        R_x = x\odot\bigl(c\odot S-\overline{c\odot S}\bigr)

    RMSNorm subtracts no mean; the rule is then :math:`R_x=R`.
    """
    centres, stabiliser = case.detail
    if not centres:
        return passed(relevance, case)
    features, weight = case.operand(0), case.operands[1]
    variance = features.var(dim=-1, correction=0, keepdim=True)
    slope = torch.rsqrt(variance + stabiliser)
    if weight is not None:
        slope = slope * weight
    share = slope * epsilon_divide(relevance, case.output)
    return features * (share - share.mean(dim=-1, keepdim=True)), *(None,) * (
        len(case.operands) - 1
    )
