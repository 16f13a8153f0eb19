"""The vocabulary of relevance, and the rules of Chefer et al., one small function each: relevance of an
operation's output in, relevance of its operands out."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tokenlight.errors import UnsupportedModel

STABILISER = 1e-9  # of Chefer's code
Parts = tuple[Tensor | None, ...]
# Every operation of a Transformer that relevance passes through, by its meaning. LINEAR, CONV1D: features
# × weight (+ bias); the second is GPT-2's own module. MATMUL: matrix product of two activations, or an
# einsum of them. GATE: their element-wise product. ADD: their sum. SHIFT, SCALE: an activation plus, or
# times, a constant. QUOTIENT: one over another. TOTAL: sum or mean over axes. ATTENTION: queries, keys
# and values in one fused call. MAP: any other linear map, or a choice among numbers (top-k).
Operation = enum.Enum(
    "Operation",
    "LINEAR CONV1D MATMUL GATE ADD SHIFT SCALE QUOTIENT TOTAL SOFTMAX ACTIVATION NORM ATTENTION MAP",
)
# A gradient goes through these by itself; a rule would have to take them apart.
WITHOUT_RULE = frozenset({Operation.ATTENTION, Operation.MAP})


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One executed operation. ``operands``: tensors, or None. ``examples``: size of the batch, since some
    rules take sums over one example. ``detail``: an operation's own settings, such as the axes of a
    sum. ``active``: which operands are activations."""

    output: Tensor
    operands: tuple[Any, ...]
    examples: int
    detail: Any = None
    active: tuple[bool, ...] = ()


# Relevance of the output in, relevance of the operands out (None, or left out behind the last: takes no
# part). An operand that was broadcast may be answered in the output's shape: autograd sums it back.
Rule = Callable[[Tensor, RuleCase], Sequence[Tensor | None]]
Divide = Callable[[Tensor, Tensor], Tensor]
# Which operands are activations in, the share of its own gradient that each keeps out.
Split = Callable[[tuple[bool, ...]], tuple[float, ...]]


@dataclass(frozen=True)
class RuleSet:
    """A table operation → rule. ``starts_at_value``: from the explained logit itself, so that scores share
    it out (the epsilon family), not from one. ``divides_clones``: relevance of a value that several
    operations read is divided by it and multiplied again (Chefer et al.'s Clone). ``rewrites_gradients``:
    what goes down is the gradient, and relevance is value × gradient; ``rules`` then answer with
    gradients, ``splits`` scale them, and any other operation keeps its own."""

    name: str
    rules: Mapping[Operation, Rule]
    starts_at_value: bool = False
    divides_clones: bool = False
    rewrites_gradients: bool = False
    splits: Mapping[Operation, Split] = field(default_factory=dict)


def stabiliser(dtype: torch.dtype) -> float:
    """Chefer's, or the smallest normal number of a dtype that cannot hold it, as float16 cannot."""
    return max(STABILISER, torch.finfo(dtype).tiny)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r""":math:`a/(b+10^{-9})`, whatever the sign of :math:`b`, and 0 where :math:`b=0` (Chefer et al., CVPR
    2021, code); where :math:`b=-10^{-9}` exactly, the denominator is :math:`10^{-9}`."""
    return (numerator / _shifted(denominator)).masked_fill_(denominator == 0, 0.0)


def stabilised(relevance: Tensor, value: Tensor) -> Tensor:
    r""":math:`x\odot\operatorname{sd}(R, x)`: the relevance of a value that several operations read
    (Clone in Chefer's code), all of it but for what the stabiliser takes where :math:`x` is next to 0."""
    return torch.div(relevance, _shifted(value)).mul_(value)  # 0 where x is 0


def _shifted(denominator: Tensor) -> Tensor:
    tiny = stabiliser(denominator.dtype)
    shifted = denominator + tiny
    return shifted.masked_fill_(shifted == 0, tiny)


def z_plus(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Of ``y = x Wᵀ + b``, x ``… in``, W ``… out in``, only agreeing signs carry; one denominator.

    .. math:: Z = W^+x^+ + W^-x^-,\quad S = R/Z,\quad R_x = x^+\odot W^{+\top}S + x^-\odot W^{-\top}S

    Chefer et al., CVPR 2021, ``layers_ours`` with α = 1. The bias takes nothing. :math:`x^+W^+ + x^-W^- =
    \tfrac12(xW + |x||W|)` uses the forward product again: three matrix products in place of six.
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


def gpt2_official(relevance: Tensor, case: RuleCase) -> Parts:
    """What the official Mask-LRP code does to GPT-2's Conv1D, for comparison with its numbers: the Add
    rule between bias and product, whose bias part is dropped; then the rule for a product of two
    activations, whose weight half is dropped: at least half of the relevance is lost each time."""
    features, weight, bias = case.operands
    product = torch.matmul(features, weight.mT)
    if bias is not None:
        known = replace(case, output=product + bias, operands=(product, bias.expand_as(product)))
        relevance, _ = balanced_add(relevance, known)
    return (features * torch.matmul(safe_divide(relevance, product), weight) / 2,)


def halved_product(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r"""Half of the relevance to each factor of :math:`Z = XY`.

    .. math:: S = R/Z,\quad R_X = \tfrac12 X\odot SY^\top,\quad R_Y = \tfrac12 Y\odot X^\top S

    Chefer et al., CVPR 2021; with denominators stabilised by the sign AttnLRP, proposition 3.3. A
    factor that is a constant takes nothing, its half goes to the other.
    """
    parts = contributions(relevance / sum(case.active), case, divide)
    return tuple(part if own else None for part, own in zip(parts, case.active, strict=True))


def contributions(
    relevance: Tensor, case: RuleCase, divide: Divide = safe_divide
) -> tuple[Tensor, Tensor]:
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


def balanced_add(relevance: Tensor, case: RuleCase) -> tuple[Tensor, Tensor]:
    r"""Share between the two terms by their absolute totals, so that the whole is conserved.

    .. math:: a' = a\odot\tfrac{R}{a+b},\quad
        R_a = a'\,\frac{1}{\sum a'}\,\frac{|\sum a'|}{|\sum a'|+|\sum b'|}\sum R

    and likewise :math:`R_b`. Chefer et al., CVPR 2021, ``layers_ours``; the sums run over one
    example, where the official code, which knows no batch, sums over the tensor.
    """
    share, examples = safe_divide(relevance, case.output), case.examples
    first, second = (_by_example(term * share, examples) for term in case.operands)
    totals = torch.stack([first.sum(dim=1), second.sum(dim=1)])  # term example
    magnitudes = totals.abs()
    # No guard on this division: where the magnitudes are 0, so are the totals, and the next has one.
    portions = magnitudes / (magnitudes.sum(dim=0) + stabiliser(totals.dtype))
    arrived = _by_example(relevance, examples).sum(dim=1)
    scales = safe_divide(portions.mul_(arrived), totals)[..., None]
    shared = first.mul_(scales[0]), second.mul_(scales[1])
    return shared[0].reshape(relevance.shape), shared[1].reshape(relevance.shape)


def proportional_add(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r""":math:`R_a = a\odot R/(a+b)`: Chefer et al., CVPR 2021, ``layers_lrp``; the epsilon rule."""
    share = divide(relevance, case.output)
    return tuple(term * share for term in case.operands)


def balanced_mask(relevance: Tensor, case: RuleCase) -> Parts:
    r"""Attention scores :math:`a` under a mask: :func:`balanced_add` of :math:`a+b` with :math:`b=0`
    wherever relevance arrives, then the softmax, which passes it.

    .. math:: a' = a\odot\tfrac{R}{a},\quad R_a = a'\,\frac{\sum R}{\sum a'}

    All of it stays on the scores, but for the stabiliser of the division, which takes what stands on
    scores next to 0. The official code adds a mask whether or not it hides a token.
    """
    share = _by_example(proportional_mask(relevance, case)[0], case.examples)
    arrived = _by_example(relevance, case.examples).sum(dim=1)
    scales = safe_divide(arrived, share.sum(dim=1))[:, None]
    return (share.mul_(scales).reshape(relevance.shape),)


def proportional_mask(relevance: Tensor, case: RuleCase) -> tuple[Tensor]:
    r""":math:`R_a = a\odot R/a`: the same in ``layers_lrp``, without the totals."""
    # The second operand: the scores before a constant was added, which is no part of them.
    scores = next(found for found in reversed(case.operands) if found is not None)
    # A masked score may be infinite; no relevance stands on it.
    return (stabilised(relevance, scores.clamp(min=torch.finfo(scores.dtype).min)),)


def proportional_total(relevance: Tensor, case: RuleCase, divide: Divide = safe_divide) -> Parts:
    r""":math:`R_i = x_i\,R/\sum_j x_j` along the summed axes; a mean is a sum of :math:`x_j/n`.
    ``detail``: the axes that are gone, lowest first, and n (1 of a sum)."""
    (features,), (axes, count) = case.operands, case.detail
    share = divide(relevance, case.output)
    for axis in axes:
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
    r""":math:`R_x = R`: what has one input that matters gives it all (activations, norms)."""
    return (relevance,)


def scaled(relevance: Tensor, case: RuleCase) -> Parts:
    r""":math:`y = c\,x`: :math:`R_x = R`, and 0 where the constant is 0, since no :math:`x` got through."""
    factor = case.operands[1]
    return (relevance if factor is None else torch.where(factor == 0, 0.0, relevance),)
