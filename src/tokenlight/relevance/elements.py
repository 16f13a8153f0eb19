"""Rules for what acts on each element, or on one token alone: most pass relevance through."""

from dataclasses import replace

import torch
from torch import Tensor

from tokenlight.relevance.case import RuleCase
from tokenlight.relevance.division import epsilon_divide
from tokenlight.relevance.gradients import norm_scale, norm_slope


def passed(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`R_x = R`: what has one input that matters gives it all (activations, norms, softmax in
    Chefer et al.; activations in AttnLRP)."""
    return relevance, *(None for _ in case.operands[1:])


def epsilon_shifted(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`y = x + b`: :math:`R_x = x\,R/y`, the constant keeps what it brought.

    The epsilon rule of a bias. It makes :func:`softmax_taylor` blind to a constant added to all
    scores of a row (ALiBi counted from the end of a padded batch), as the softmax itself is. A 0 (of
    a mask that hides no token) takes nothing.
    """
    constant = case.operands[1]
    carried = case.operand(0) * epsilon_divide(relevance, case.output)
    return carried if constant is None else torch.where(constant == 0, relevance, carried), None


def scaled(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`y = c\,x`: :math:`R_x = R`, and 0 where the constant is 0, since no :math:`x` got through."""
    factor = case.operands[1]
    return relevance if factor is None else torch.where(factor == 0, 0.0, relevance), None


def softmax_taylor(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""First-order expansion of the softmax :math:`s(x)` (AttnLRP, proposition 3.1).

    .. math:: R_i = x_i\bigl(R_i - s_i\textstyle\sum_j R_j\bigr)

    Keys that were masked out have :math:`s_i=0` and take no part.
    """
    scores, share = case.operand(0), case.output
    total = relevance.sum(dim=case.detail, keepdim=True)
    carried = torch.where(share == 0, 0.0, scores * (relevance - share * total))
    return carried, *(None for _ in case.operands[1:])


def norm_linear(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""LayerNorm as a linear map, its deviation a constant (Ali et al. 2022, LN-rule; AttnLRP,
    proposition 3.4 and section 3.3.3).

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad S=R/y,\quad
        R_x = x\odot\bigl(c\odot S-\overline{c\odot S}\bigr)

    RMSNorm subtracts no mean; where it adds no :math:`\beta`, the rule is :math:`R_x=R`.
    """
    centres, _ = case.detail
    bias = case.operands[2]
    if not centres and bias is None:
        return passed(relevance, case)
    scaled = replace(case, operands=(norm_scale(case.operand(0), *case.detail), *case.operands[1:]))
    slope, *others = norm_slope(epsilon_divide(relevance, case.output), scaled)
    assert slope is not None
    carried = case.operand(0) * slope
    if not centres and bias is not None:
        carried = torch.where(bias == 0, relevance, carried)
    return carried, *others
