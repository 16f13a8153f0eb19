"""Rules for a linear map: ``y = x Wᵀ + b``, x ``… in``, W ``… out in``."""

import math

import torch
from torch import Tensor

from tokenlight.relevance.case import RuleCase
from tokenlight.relevance.division import STABILISER, epsilon_divide, safe_divide
from tokenlight.relevance.sums import balanced


def z_plus(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Only agreeing signs carry, with one denominator.

    .. math:: Z = W^+x^+ + W^-x^-,\quad S = R/Z,\quad R_x = x^+\odot W^{+\top}S + x^-\odot W^{-\top}S

    Chefer et al., CVPR 2021, ``layers_ours`` with α = 1. The bias takes nothing. With
    :math:`x^+W^+ + x^-W^- = \tfrac12(xW + |x||W|)` the forward product is used again, so the rule
    costs three matrix products, not six.
    """
    features, weight, bias = case.operand(0), case.operand(1), case.operands[2]
    # A matrix times a matrix: what torch makes of more axes costs more than small products do.
    batched = weight.dim() > 2
    rows = features if batched else features.reshape(-1, weight.shape[1])
    absolute, absolute_weight = rows.abs(), weight.abs()
    signed = case.output.clone() if bias is None else case.output - bias
    # What rounding leaves of xW + |x||W| where all signs disagree is no relevance: Z is 0 there.
    # So xW weighs a little more, and what is not positive counts as infinite.
    weighed = 1 + 16 * torch.finfo(signed.dtype).eps
    if batched:
        doubled = torch.matmul(absolute, absolute_weight.mT).add_(signed, alpha=weighed)
    else:
        doubled = signed.reshape(-1, weight.shape[0])
        doubled.addmm_(absolute, absolute_weight.mT, beta=weighed)  # 2 Z
    torch.threshold_(doubled, 0.0, math.inf).add_(2 * STABILISER)
    share = relevance.reshape(doubled.shape) / doubled  # S / 2
    carried = torch.matmul(share, weight).mul_(rows)
    carried.addcmul_(absolute, torch.matmul(share, absolute_weight))
    return carried.view(features.shape), None, None


def z_plus_separate(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Each pair of signs is given the whole relevance, so that the sum may double.

    .. math:: R_x = x^+\odot W^{+\top}\frac{R}{W^+x^+} + x^-\odot W^{-\top}\frac{R}{W^-x^-}

    Chefer et al., CVPR 2021, ``layers_lrp`` ("original LRP").
    """
    features, weight = case.operand(0), case.operand(1)
    carried = torch.zeros_like(features)
    for part, matrix in (
        (features.clamp(min=0), weight.clamp(min=0)),
        (features.clamp(max=0), weight.clamp(max=0)),
    ):
        share = safe_divide(relevance, torch.matmul(part, matrix.mT))
        carried = carried + part * torch.matmul(share, matrix)
    return carried, None, None


def epsilon(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Signed contributions; what the bias contributed is lost to it.

    .. math:: R_x = x\odot W^\top\frac{R}{y+\varepsilon\operatorname{sign}y}

    Bach et al. 2015; AttnLRP (Achtibat et al. 2024), equation 8.
    """
    share = epsilon_divide(relevance, case.output)
    return case.operand(0) * torch.matmul(share, case.operand(1)), None, None


def gpt2_official(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""What the official Mask-LRP code does to GPT-2's Conv1D, for comparison with its numbers.

    The Add rule between bias and product, whose bias part is dropped; then the rule for a product of
    two activations, whose weight half is dropped: at least half of the relevance is lost each time.
    """
    features, weight, bias = case.operand(0), case.operand(1), case.operands[2]
    product = torch.matmul(features, weight.mT)
    if bias is not None:
        terms = product, bias.expand_as(product)
        relevance, _ = balanced(relevance, terms, product + bias, case.examples)
    return features * torch.matmul(safe_divide(relevance, product), weight) / 2, None, None
