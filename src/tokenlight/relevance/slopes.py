r"""The few gradients that AttnLRP and CP-LRP rewrite.

With those, relevance is value × gradient. Where a rule divides relevance by an output, :math:`R/y` is
what a gradient carries, so linear maps, sums and the softmax's expansion are their own gradients
(Achtibat et al. 2024, appendix on efficient implementation). Nothing divides but an activation's slope.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenlight.relevance.rules import Operation, Parts, RuleCase

NEXT_TO_ZERO = 1e-12  # below it an activation's slope y/x counts as 0


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
