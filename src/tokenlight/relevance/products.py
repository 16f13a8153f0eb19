"""Rules for linear maps, and for products of two activations: attention scores and values, gates."""

import math

import torch
from torch import Tensor

from tokenlight.relevance.case import RuleCase
from tokenlight.relevance.division import STABILISER, Divide, epsilon_divide, safe_divide
from tokenlight.relevance.sums import balanced

Parts = tuple[Tensor | None, ...]


def z_plus(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Of ``y = x Wᵀ + b``, x ``… in``, W ``… out in``, only agreeing signs carry; one denominator.

    .. math:: Z = W^+x^+ + W^-x^-,\quad S = R/Z,\quad R_x = x^+\odot W^{+\top}S + x^-\odot W^{-\top}S

    Chefer et al., CVPR 2021, ``layers_ours`` with α = 1. The bias takes nothing. With
    :math:`x^+W^+ + x^-W^- = \tfrac12(xW + |x||W|)` the forward product is used again, so the rule
    costs three matrix products, not six.
    """
    features, weight, bias = case.operands
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
    return (carried.view(features.shape),)


def z_plus_separate(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Each pair of signs is given the whole relevance, so that the sum may double.

    .. math:: R_x = x^+\odot W^{+\top}\frac{R}{W^+x^+} + x^-\odot W^{-\top}\frac{R}{W^-x^-}

    Chefer et al., CVPR 2021, ``layers_lrp`` ("original LRP").
    """
    features, weight, _ = case.operands
    carried = torch.zeros_like(features)
    for side in ({"min": 0}, {"max": 0}):
        part, matrix = features.clamp(**side), weight.clamp(**side)
        share = safe_divide(relevance, torch.matmul(part, matrix.mT))
        carried = carried + part * torch.matmul(share, matrix)
    return (carried,)


def epsilon(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Signed contributions; what the bias contributed is lost to it.

    .. math:: R_x = x\odot W^\top\frac{R}{y+\varepsilon\operatorname{sign}y}

    Bach et al. 2015; AttnLRP (Achtibat et al. 2024), equation 8.
    """
    features, weight, _ = case.operands
    return (features * torch.matmul(epsilon_divide(relevance, case.output), weight),)


def gpt2_official(relevance: Tensor, case: RuleCase) -> Parts:
    r"""What the official Mask-LRP code does to GPT-2's Conv1D, for comparison with its numbers.

    The Add rule between bias and product, whose bias part is dropped; then the rule for a product of
    two activations, whose weight half is dropped: at least half of the relevance is lost each time.
    """
    features, weight, bias = case.operands
    product = torch.matmul(features, weight.mT)
    if bias is not None:
        terms = product, bias.expand_as(product)
        relevance, _ = balanced(relevance, terms, product + bias, case.examples)
    return (features * torch.matmul(safe_divide(relevance, product), weight) / 2,)


def halved_product(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r"""Half of the relevance to each factor of :math:`Z = XY`.

    .. math:: S = R/Z,\quad R_X = \tfrac12 X\odot SY^\top,\quad R_Y = \tfrac12 Y\odot X^\top S

    Chefer et al., CVPR 2021; with denominators stabilised by the sign AttnLRP, proposition 3.3. A
    factor that is a constant takes nothing, its half goes to the other.
    """
    parts = contributions(relevance / sum(case.active), case, divide)
    return tuple(part if own else None for part, own in zip(parts, case.active, strict=True))


def second_only_product(relevance: Tensor, case: RuleCase) -> Parts:
    """All to the values: the attention map counts as a constant (Ali et al. 2022, AH-rule). Where the
    values are constants, to what is none."""
    if not case.active[1]:
        return halved_product(relevance, case, epsilon_divide)
    return None, contributions(relevance, case, epsilon_divide)[1]


def contributions(relevance: Tensor, case: RuleCase, divide: Divide) -> tuple[Tensor, Tensor]:
    """What each factor of a product contributed, each summing to the whole relevance: of a matrix
    product, or of the einsum whose indices (first, second, output) ``detail`` holds."""
    first, second = case.operands
    share = divide(relevance, case.output)
    if case.detail is None:
        return first * torch.matmul(share, second.mT), second * torch.matmul(first.mT, share)
    left, right, out = case.detail
    return (
        first * torch.einsum(f"{out},{right}->{left}", share, second),
        second * torch.einsum(f"{left},{out}->{right}", first, share),
    )


def halved_gate(relevance: Tensor, _case: RuleCase) -> Parts:
    r""":math:`y = a\odot b`: half to each (AttnLRP, uniform rule), for gated MLPs."""
    return relevance / 2, relevance / 2
