r"""The few gradients that AttnLRP and CP-LRP rewrite; with them relevance is value × gradient.

Where a rule divides relevance by an output, :math:`R/y` is what a gradient carries, so linear maps,
sums and the softmax's expansion are their own gradients (Achtibat et al. 2024, appendix on efficient
implementation). Nothing divides but the slope of an activation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenlight.relevance.case import RuleCase

NEXT_TO_ZERO = 1e-12  # below it an activation's slope y/x counts as 0


def activation_slope(gradient: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`y = f(x)`, element by element: :math:`g_x = g\,y/x`, so that :math:`x\,g_x = y\,g`."""
    features = case.operand(0)
    slope = (case.output / features).masked_fill_(features.abs() < NEXT_TO_ZERO, 0.0)
    return (slope.mul_(gradient),)


def norm_slope(gradient: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""A norm as a linear map, its deviation :math:`\sigma` a constant.

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad g_x = c\odot g-\overline{c\odot g}

    An RMSNorm subtracts no mean, nor does its gradient. ``detail``: whether a mean is subtracted, and
    what is added to the variance; operands: features, :math:`\gamma`, :math:`\beta`.
    """
    centres, stabiliser = case.detail
    features, weight = case.operand(0), case.operands[1]
    if centres:
        square = features.var(dim=-1, correction=0, keepdim=True)
    else:
        square = features.square().mean(dim=-1, keepdim=True)
    share = gradient * torch.rsqrt(square + stabiliser)
    if weight is not None:
        share = share * weight
    if centres:
        share = share - share.mean(dim=-1, keepdim=True)
    return share, *(None,) * (len(case.operands) - 1)


def equal_parts(active: tuple[bool, ...]) -> tuple[float, ...]:
    """As much to each activation; a constant takes nothing."""
    return (1 / sum(active),) * len(active)


def last_alone(active: tuple[bool, ...]) -> tuple[float, ...]:
    """All to the last factor, the values; the others are constants, unless one is all there is."""
    return (*(0.0 if active[-1] else 1.0 for _ in active[1:]), 1.0)


def first_alone(active: tuple[bool, ...]) -> tuple[float, ...]:
    """All to the numerator."""
    return (1.0, *(0.0 for _ in active[1:]))


def attention_parts(active: tuple[bool, ...]) -> tuple[float, ...]:
    """Half to the values, half to the map, and of that half to the queries, half to the keys."""
    query, key, value = active
    whole = 0.5 if value and (query or key) else 1.0
    half = whole / 2 if query and key else whole
    return half, half, whole
