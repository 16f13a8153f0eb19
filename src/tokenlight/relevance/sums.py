"""Rules for sums, of two activations or over axes, and for what acts on each element or token alone."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.case import RuleCase
from tokenlight.relevance.division import (
    Divide,
    epsilon_divide,
    safe_divide,
    stabilised,
    stabiliser,
)
from tokenlight.relevance.gradients import norm_scale, norm_slope

Parts = tuple[Tensor, ...]


def balanced(
    relevance: Tensor, terms: tuple[Tensor, Tensor], whole: Tensor, examples: int
) -> tuple[Tensor, Tensor]:
    r"""Share between the two terms by their absolute totals, so that the whole is conserved.

    .. math:: a' = a\odot\tfrac{R}{a+b},\quad
        R_a = a'\,\frac{1}{\sum a'}\,\frac{|\sum a'|}{|\sum a'|+|\sum b'|}\sum R

    and likewise :math:`R_b`. Chefer et al., CVPR 2021, ``layers_ours``; the sums run over one
    example, where the official code, which knows no batch, sums over the tensor. ``whole`` is
    :math:`a+b`, which the model has computed already.
    """
    share = safe_divide(relevance, whole)
    first, second = (_by_example(term * share, examples) for term in terms)
    totals = torch.stack([first.sum(dim=1), second.sum(dim=1)])  # term example
    magnitudes = totals.abs()
    # No guard on this division: where the magnitudes are 0, so are the totals, and the next has one.
    portions = magnitudes / (magnitudes.sum(dim=0) + stabiliser(totals.dtype))
    arrived = _by_example(relevance, examples).sum(dim=1)
    scales = safe_divide(portions.mul_(arrived), totals)[..., None]
    shared = first.mul_(scales[0]), second.mul_(scales[1])
    return shared[0].reshape(relevance.shape), shared[1].reshape(relevance.shape)


def balanced_add(relevance: Tensor, case: RuleCase) -> Parts:
    """:func:`balanced` as the rule of ``a + b``."""
    first, second = case.operands
    return balanced(relevance, (first, second), case.output, case.examples)


def proportional_add(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r""":math:`R_a = a\odot R/(a+b)`: Chefer et al., CVPR 2021, ``layers_lrp``; with
    ``epsilon_divide`` the epsilon rule."""
    share = divide(relevance, case.output)
    return tuple(term * share for term in case.operands)


def balanced_mask(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Attention scores :math:`a` under a mask: :func:`balanced` of :math:`a+b` with :math:`b=0`
    wherever relevance arrives, then the softmax, which passes it.

    .. math:: a' = a\odot\tfrac{R}{a},\quad R_a = a'\,\frac{\sum R}{\sum a'}

    All of it stays on the scores, but for the stabiliser of the division, which takes what stands on
    scores next to 0. The official code adds a mask whether or not it hides a token.
    """
    (carried,) = proportional_mask(relevance, case)
    share = _by_example(carried, case.examples)
    arrived = _by_example(relevance, case.examples).sum(dim=1)
    scales = safe_divide(arrived, share.sum(dim=1))[:, None]
    return (share.mul_(scales).reshape(relevance.shape),)


def proportional_mask(relevance: Tensor, case: RuleCase) -> Parts:
    r""":math:`R_a = a\odot R/a`: the same in ``layers_lrp``, without the totals."""
    # The second operand: the scores before a constant was added, which is no part of them.
    scores = next(found for found in reversed(case.operands) if found is not None)
    # A masked score may be infinite; no relevance stands on it.
    return (stabilised(relevance, scores.clamp(min=torch.finfo(scores.dtype).min)),)


class Pooling(NamedTuple):
    """How an activation was summed: over which axes, whether they were kept, whether to a mean."""

    axes: tuple[int, ...]
    kept: bool
    is_mean: bool


def proportional_total(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r""":math:`R_i = x_i\,R/\sum_j x_j` along the summed axes; a mean is a sum of :math:`x_j/n`."""
    (features,), pooling = case.operands, case.detail
    axes = sorted(axis % features.dim() for axis in pooling.axes)
    count = math.prod(features.shape[axis] for axis in axes) if pooling.is_mean else 1
    share = divide(relevance, case.output)
    for axis in () if pooling.kept else axes:
        share = share.unsqueeze(axis)
    return (features * share / count,)


def _by_example(tensor: Tensor, examples: int) -> Tensor:
    """``example everything-else``; the batch may have been folded into the first axis."""
    if tensor.shape[0] % examples:
        raise UnsupportedModel(
            f"a sum of two activations of shape {tuple(tensor.shape)} does not begin with the "
            f"batch of {examples}, so relevance cannot be shared out within each text; explain the "
            "texts one at a time, or choose a rule set without totals (attnlrp)."
        )
    return tensor.reshape(examples, -1)


def passed(relevance: Tensor, _case: RuleCase) -> Parts:
    r""":math:`R_x = R`: what has one input that matters gives it all (activations, norms, softmax in
    Chefer et al.; activations in AttnLRP)."""
    return (relevance,)


def epsilon_shifted(relevance: Tensor, case: RuleCase) -> Parts:
    r""":math:`y = x + b`: :math:`R_x = x\,R/y`, the constant keeps what it brought.

    The epsilon rule of a bias. It makes :func:`softmax_taylor` blind to a constant added to all
    scores of a row (ALiBi counted from the end of a padded batch), as the softmax itself is. A 0 (of
    a mask that hides no token) takes nothing.
    """
    term, constant = case.operands
    carried = term * epsilon_divide(relevance, case.output)
    return (carried if constant is None else torch.where(constant == 0, relevance, carried),)


def scaled(relevance: Tensor, case: RuleCase) -> Parts:
    r""":math:`y = c\,x`: :math:`R_x = R`, and 0 where the constant is 0, since no :math:`x` got through."""
    factor = case.operands[1]
    return (relevance if factor is None else torch.where(factor == 0, 0.0, relevance),)


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
    proposition 3.4 and section 3.3.3).

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad S=R/y,\quad
        R_x = x\odot\bigl(c\odot S-\overline{c\odot S}\bigr)

    RMSNorm subtracts no mean; where it adds no :math:`\beta`, the rule is :math:`R_x=R`.
    """
    (centres, _), (features, _, bias) = case.detail, case.operands
    if not centres and bias is None:
        return (relevance,)
    scale = norm_scale(features, *case.detail)
    known = replace(case, operands=(scale, *case.operands[1:]))
    carried = features * norm_slope(epsilon_divide(relevance, case.output), known)[0]
    return (carried if centres else torch.where(bias == 0, relevance, carried),)
