r"""AttnLRP and CP-LRP: the few gradients they rewrite; and, below, their rules one by one as the papers write
them, which those gradients equal where epsilon is nothing.

With the former, relevance is value × gradient. Where a rule divides relevance by an output, :math:`R/y`
is what a gradient carries, so linear maps, sums and the softmax's expansion are their own gradients
(Achtibat et al. 2024, appendix on efficient implementation). Nothing divides but an activation's slope.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenlight.relevance.rules import Operation, Parts, RuleCase, contributions, halved_product

NEXT_TO_ZERO = 1e-12  # below it an activation's slope y/x counts as 0
EPSILON = 1e-6  # as the AttnLRP paper's code sets it


def constants(operation: Operation, value: Tensor, operands: Any, detail: Any) -> Parts:
    r"""All that a rewritten gradient must know of the forward, where neither input nor output is kept for
    it: an activation's slope :math:`y/x`, or a norm's :math:`1/\sigma` and :math:`\gamma`."""
    features, *others = operands
    if operation is Operation.NORM:
        return norm_scale(features, *detail), others[0]
    slope = torch.div(value, functional.hardshrink(features, NEXT_TO_ZERO))
    return (slope.nan_to_num_(0.0, 0.0, 0.0),)


def activation_slope(gradient: Tensor, case: RuleCase) -> tuple[Tensor]:
    r""":math:`y = f(x)`, element by element: :math:`g_x = g\,y/x`, so that :math:`x\,g_x = y\,g`.
    ``operands``: its :func:`constants`."""
    return (_product(case.operands[0], gradient),)


def norm_scale(features: Tensor, centres: bool, stabiliser: Tensor | float) -> Tensor:
    r""":math:`1/\sigma` of each row, float32 at least: all that a norm's gradient must know of its input."""
    wide = torch.promote_types(features.dtype, torch.float32)
    if centres and features.is_cuda and isinstance(stabiliser, float):
        # In one kernel, which a GPU alone lets keep float32 of half precision.
        return torch.native_layer_norm(features, features.shape[-1:], None, None, stabiliser)[2]
    if centres:
        square = features.to(wide).var(dim=-1, correction=0, keepdim=True)
    else:
        length = torch.linalg.vector_norm(features, dim=-1, keepdim=True, dtype=wide)
        square = length.square_().div_(features.shape[-1])
    return square.add_(stabiliser).rsqrt_()


def norm_slope(gradient: Tensor, case: RuleCase) -> tuple[Tensor]:
    r"""A norm as a linear map, its deviation :math:`\sigma` a constant.

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad g_x = c\odot g-\overline{c\odot g}

    An RMSNorm subtracts no mean, nor does its gradient. ``detail``: whether one is subtracted;
    operands: its :func:`constants`.
    """
    scale, weight = case.operands
    share = _product(scale, gradient) if weight is None else _product(weight, gradient).mul_(scale)
    return (share.sub_(share.mean(dim=-1, keepdim=True)) if case.detail[0] else share,)


def _product(slope: Tensor, gradient: Tensor) -> Tensor:
    """Their product, computed in the wider dtype and written in the gradient's, in one step."""
    if slope.dtype == gradient.dtype:
        return slope * gradient
    return torch.mul(slope, gradient, out=torch.empty_like(gradient))


def last_alone(active: tuple[bool, ...]) -> tuple[float, ...]:
    """All to the last factor, the values; the others are constants, unless one is all there is."""
    return (*(0.0 if active[-1] else 1.0 for _ in active[1:]), 1.0)


def attention_parts(active: tuple[bool, ...]) -> tuple[float, ...]:
    """Half to the values, half to the map, and of that half to the queries, half to the keys."""
    query, key, value = active
    whole = 0.5 if value and (query or key) else 1.0
    half = whole / 2 if query and key else whole
    return half, half, whole


# --- rule by rule ----------------------------------------------------------------------------------


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
