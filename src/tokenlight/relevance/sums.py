"""Rules for sums: of two activations (residual paths), and of one activation over its axes (pooling)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.case import Rule, RuleCase
from tokenlight.relevance.division import epsilon_divide, safe_divide, stabilised, stabiliser


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


def balanced_add(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    """:func:`balanced` as the rule of ``a + b``."""
    terms = case.operand(0), case.operand(1)
    return balanced(relevance, terms, case.output, case.examples)


def proportional_add(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`R_a = a\odot R/(a+b)`: Chefer et al., CVPR 2021, ``layers_lrp``."""
    share = safe_divide(relevance, case.output)
    return case.operand(0) * share, case.operand(1) * share


def epsilon_add(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`R_a = a\odot R/(a+b+\varepsilon\operatorname{sign}(a+b))`: the epsilon rule."""
    share = epsilon_divide(relevance, case.output)
    return case.operand(0) * share, case.operand(1) * share


def balanced_mask(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Attention scores :math:`a` under a mask: :func:`balanced` of :math:`a+b` with :math:`b=0`
    wherever relevance arrives, then the softmax, which passes it.

    .. math:: a' = a\odot\tfrac{R}{a},\quad R_a = a'\,\frac{\sum R}{\sum a'}

    All of it stays on the scores, but for the stabiliser of the division, which takes what stands on
    scores next to 0. The official code adds a mask whether or not it hides a token.
    """
    carried, *others = proportional_mask(relevance, case)
    assert carried is not None
    share = _by_example(carried, case.examples)
    arrived = _by_example(relevance, case.examples).sum(dim=1)
    scales = safe_divide(arrived, share.sum(dim=1))[:, None]
    return share.mul_(scales).reshape(relevance.shape), *others


def proportional_mask(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`R_a = a\odot R/a`: the same in ``layers_lrp``, without the totals."""
    # The second operand: the scores before a constant was added, which is no part of them.
    scores = next(found for found in reversed(case.operands) if found is not None)
    # A masked score may be infinite; no relevance stands on it.
    carried = stabilised(relevance, scores.clamp(min=torch.finfo(scores.dtype).min))
    return carried, *(None for _ in case.operands[1:])


class Pooling(NamedTuple):
    """How an activation was summed: over which axes, whether they were kept, whether to a mean."""

    axes: tuple[int, ...]
    kept: bool
    is_mean: bool


def _total(divide: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    def rule(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
        r""":math:`R_i = x_i\,R/\sum_j x_j` along the summed axes; a mean is a sum of :math:`x_j/n`."""
        features, pooling = case.operand(0), case.detail
        axes = sorted(axis % features.dim() for axis in pooling.axes)
        count = math.prod(features.shape[axis] for axis in axes) if pooling.is_mean else 1
        share = divide(relevance, case.output)
        if not pooling.kept:
            for axis in axes:
                share = share.unsqueeze(axis)
        return (features * share / count,)

    return rule


proportional_total = _total(safe_divide)
epsilon_total = _total(epsilon_divide)


def _by_example(tensor: Tensor, examples: int) -> Tensor:
    """``example everything-else``; the batch may have been folded into the first axis."""
    if tensor.shape[0] % examples:
        raise UnsupportedModel(
            f"a sum of two activations of shape {tuple(tensor.shape)} does not begin with the "
            f"batch of {examples}, so relevance cannot be shared out within each text; explain the "
            "texts one at a time, or choose a rule set without totals (attnlrp)."
        )
    return tensor.reshape(examples, -1)
