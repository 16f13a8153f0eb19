"""The rules of AttnLRP and CP-LRP one by one, as the papers write them: what rewritten gradients equal where
epsilon is nothing."""

from dataclasses import replace

import torch
from torch import Tensor

from tokenlight.relevance.rules import Parts, RuleCase, contributions, halved_product
from tokenlight.relevance.slopes import norm_scale, norm_slope

EPSILON = 1e-6  # as the AttnLRP paper's code sets it


def epsilon_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r""":math:`a/(b+\varepsilon\operatorname{sign} b)`, with :math:`\operatorname{sign} 0=+1`
    (Bach et al. 2015)."""
    away = torch.where(denominator < 0, denominator - EPSILON, denominator + EPSILON)
    return numerator / away


def epsilon(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Signed contributions; what the bias contributed is lost to it.

    .. math:: R_x = x\odot W^\top\frac{R}{y+\varepsilon\operatorname{sign}y}

    Bach et al. 2015; AttnLRP (Achtibat et al. 2024), equation 8.
    """
    features, weight, _ = case.operands
    return (features * torch.matmul(epsilon_divide(relevance, case.output), weight),)


def second_only_product(relevance: Tensor, case: RuleCase) -> Parts:
    """All to the values: the attention map counts as a constant (Ali et al. 2022, AH-rule). Where the
    values are constants, to what is none."""
    if not case.active[1]:
        return halved_product(relevance, case, epsilon_divide)
    return None, contributions(relevance, case, epsilon_divide)[1]


def epsilon_shifted(relevance: Tensor, case: RuleCase) -> Parts:
    r""":math:`y = x + b`: :math:`R_x = x\,R/y`, the constant keeps what it brought.

    The epsilon rule of a bias. It makes :func:`softmax_taylor` blind to a constant added to all
    scores of a row (ALiBi counted from the end of a padded batch), as the softmax itself is. A 0 (of
    a mask that hides no token) takes nothing.
    """
    term, constant = case.operands
    carried = term * epsilon_divide(relevance, case.output)
    return (carried if constant is None else torch.where(constant == 0, relevance, carried),)


def softmax_taylor(relevance: Tensor, case: RuleCase) -> Parts:
    r"""First-order expansion of the softmax :math:`s(x)` (AttnLRP, proposition 3.1).

    .. math:: R_i = x_i\bigl(R_i - s_i\textstyle\sum_j R_j\bigr)

    Keys that were masked out have :math:`s_i=0` and take no part.
    """
    scores, share = case.operands[0], case.output
    total = relevance.sum(dim=case.detail, keepdim=True)
    return (torch.where(share == 0, 0.0, scores * (relevance - share * total)),)


def norm_linear(relevance: Tensor, case: RuleCase) -> Parts:
    r"""LayerNorm as a linear map, its deviation a constant (Ali et al. 2022, LN-rule; AttnLRP,
    proposition 3.4 and section 3.3.3): :math:`R_x = x\odot g_x` of :func:`norm_slope` for
    :math:`g = R/y`. RMSNorm subtracts no mean; where it adds no :math:`\beta`, :math:`R_x=R`.
    """
    (centres, _), (features, weight, bias) = case.detail, case.operands
    if not centres and bias is None:
        return (relevance,)
    known = replace(case, operands=(norm_scale(features, *case.detail), weight))
    carried = features * norm_slope(epsilon_divide(relevance, case.output), known)[0]
    return (carried if centres else torch.where(bias == 0, relevance, carried),)
