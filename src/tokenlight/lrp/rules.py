"""Operations, rules and rule sets of LRP, and the rules of Chefer et al.

A rule is a function: relevance of an operation's output in, relevance of its operands out. Rules are called
as the papers call them (``z_plus``, ``halved_product``), so they are nouns; all other functions are verbs.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tokenlight.accel.half_precision import (
    HALF_DTYPES,
    multiply_half_precision,
    multiply_split_matrix,
    split_into_half_precision,
    supports_half_precision,
)
from tokenlight.errors import UnsupportedModel

STABILIZER = 1e-9  # as Chefer's code sets it
OperandRelevances = tuple[Tensor | None, ...]


class Operation(enum.Enum):
    """Every operation of a Transformer that relevance passes through, by its meaning."""

    LINEAR = enum.auto()  # features × weight (+ bias)
    CONV1D = enum.auto()  # the same, in GPT-2's own module
    MATMUL = enum.auto()  # matrix product of two activations, or an einsum of them
    GATE = enum.auto()  # elementwise product of two activations
    ADD = enum.auto()  # sum of two activations
    ADD_CONSTANT = enum.auto()  # activation + constant
    SCALE = enum.auto()  # activation × constant
    QUOTIENT = enum.auto()  # activation / activation
    SUM = enum.auto()  # sum or mean over axes
    SOFTMAX = enum.auto()
    ACTIVATION = enum.auto()  # nonlinear function, element by element
    NORM = enum.auto()  # LayerNorm or RMSNorm
    ATTENTION = enum.auto()  # queries, keys and values in one fused call
    LINEAR_MAP = enum.auto()  # any other linear map, or a selection of values (top-k)


# A gradient passes these by itself; a rule would have to take them apart.
OPERATIONS_WITHOUT_RULE = frozenset({Operation.ATTENTION, Operation.LINEAR_MAP})


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule reads of one executed operation, like the ``ctx`` of an autograd function.

    Attributes:
        output: The value of the operation.
        operands: Tensors, or None for an operand that takes no part.
        batch_size: The number of examples, since some rules sum over one example.
        settings: Settings of the operation, such as the axes of a sum.
        activation_mask: Which operands are activations.
    """

    output: Tensor
    operands: tuple[Any, ...]
    batch_size: int
    settings: Any = None
    activation_mask: tuple[bool, ...] = ()


# Relevance of the output in, relevance of the operands out; an operand that takes no part is None, or left
# out at the end. An operand that was broadcast may get the shape of the output: autograd sums it.
Rule = Callable[[Tensor, RuleContext], Sequence[Tensor | None]]
Divide = Callable[[Tensor, Tensor], Tensor]
# From which operands are activations to the share of its own gradient that each keeps.
GradientShares = Callable[[tuple[bool, ...]], tuple[float, ...]]


@dataclass(frozen=True)
class RuleSet:
    """A table from operation to rule.

    Attributes:
        name: The name of the rule set.
        rules: The rule of each operation.
        starts_at_value: Whether relevance starts from the value of the explained logit (the epsilon
            family), and not from one.
        divides_clones: Whether the relevance of a value that several operations read is divided by it
            and multiplied again (Clone in Chefer et al.'s code).
        rewrites_gradients: Whether the backward pass carries gradients, and relevance is value ×
            gradient. Rules then return gradients, and operations without a rule keep their own.
        gradient_shares: How the gradient of a product is scaled at its factors.
        softmax_temperature: The temperature at which the gradient of a softmax is taken, if not its own.
            The set then has a rule for ``SOFTMAX``; fused attention follows the temperature by itself.
    """

    name: str
    rules: Mapping[Operation, Rule]
    starts_at_value: bool = False
    divides_clones: bool = False
    rewrites_gradients: bool = False
    gradient_shares: Mapping[Operation, GradientShares] = field(default_factory=dict)
    softmax_temperature: float | None = None

    @property
    def map_share(self) -> float:
        """The share of a product's gradient that an attention map keeps; 0 where maps are constants."""
        if Operation.MATMUL not in self.gradient_shares:
            return 1.0
        map_share, _ = self.gradient_shares[Operation.MATMUL]((True, True))
        return map_share


def get_stabilizer(dtype: torch.dtype) -> float:
    """Return Chefer's stabilizer, or the smallest normal number of a dtype that cannot hold it (float16)."""
    return max(STABILIZER, torch.finfo(dtype).tiny)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r"""Return :math:`a/(b+10^{-9})`, whatever the sign of :math:`b`, and 0 where :math:`b=0`.

    As in the code of Chefer et al., CVPR 2021; where :math:`b=-10^{-9}` exactly, the denominator is
    :math:`10^{-9}`.
    """
    shifted = _shift_from_zero(denominator, numerator.dtype)
    return _divide_into(numerator, shifted).masked_fill_(denominator == 0, 0.0)


def stabilize_relevance(
    relevance: Tensor, value: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    r"""Return :math:`x\odot\operatorname{sd}(R, x)`: the relevance of a value that several operations read.

    Clone in Chefer's code: all of the relevance, but for what the stabilizer takes where :math:`x` is
    almost 0. The result has ``dtype`` or a wider one; by default that of the relevance.
    """
    shifted = _shift_from_zero(value, dtype or relevance.dtype)
    return _divide_into(relevance, shifted).mul_(value)  # 0 where x is 0


def _divide_into(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, into the memory of ``denominator`` where the result has its shape."""
    if numerator.shape != denominator.shape or torch.is_grad_enabled():
        return numerator / denominator
    return torch.div(numerator, denominator, out=denominator)


def _shift_from_zero(denominator: Tensor, dtype: torch.dtype) -> Tensor:
    """Add the stabilizer to a denominator, in ``dtype`` or wider: half precision would lose it.

    Returns:
        A new tensor without zeros.
    """
    dtype = torch.promote_types(denominator.dtype, dtype)
    stabilizer = get_stabilizer(dtype)
    is_half = denominator.dtype in HALF_DTYPES and dtype not in HALF_DTYPES
    if is_half and denominator.dim() > 0:
        # One axis, not none, so that the sum is wider than the denominator without a copy of that. No
        # number of half precision is minus the stabilizer, so no sum is zero.
        return denominator + denominator.new_full((1,), stabilizer, dtype=dtype)
    shifted = torch.add(denominator.to(dtype), stabilizer)
    return shifted.masked_fill_(shifted == 0, stabilizer)


def z_plus(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""``y = x Wᵀ + b``, x ``… in``, W ``… out in``: only products of equal signs carry relevance.

    .. math:: Z = W^+x^+ + W^-x^-,\quad S = R/Z,\quad R_x = x^+\odot W^{+\top}S + x^-\odot W^{-\top}S

    Chefer et al., CVPR 2021, ``layers_ours`` with α = 1. The bias takes nothing. :math:`x^+W^+ + x^-W^- =
    \tfrac12(xW + |x||W|)` reuses the product of the forward pass: three matrix products instead of six.
    """
    features, weight, _ = ctx.operands
    # Two-dimensional products where possible: torch is slower with more axes.
    is_batched = weight.dim() > 2
    rows = features if is_batched else features.reshape(-1, weight.shape[1])
    if supports_half_precision(rows, weight):
        return (_z_plus_half(relevance, ctx, rows).view(features.shape),)
    dtype = relevance.dtype
    weight = weight.to(dtype)
    rows = rows.to(dtype)
    abs_rows = rows.abs()
    abs_weight = weight.abs()
    # First 2 Z = xW + |x||W|, in place where the product of the forward pass is no longer needed.
    product = _recover_linear_product(ctx, dtype)
    # Where all signs disagree, Z is 0, and what rounding leaves of xW + |x||W| is no relevance. So xW
    # weighs slightly more, and a denominator that is not positive becomes infinite.
    product_weight = 1 + 16 * torch.finfo(dtype).eps
    if is_batched:
        doubled_z = torch.matmul(abs_rows, abs_weight.mT).add_(product, alpha=product_weight)
    else:
        doubled_z = product.reshape(-1, weight.shape[0])
        doubled_z.addmm_(abs_rows, abs_weight.mT, beta=product_weight)
    torch.threshold_(doubled_z, 0.0, math.inf).add_(2 * STABILIZER)
    # Then R_x = x ⊙ Wᵀ S/2 + |x| ⊙ |W|ᵀ S/2, in which the terms of unequal signs cancel.
    half_share = relevance.reshape(doubled_z.shape) / doubled_z  # S / 2
    row_relevance = torch.matmul(half_share, weight).mul_(rows)
    row_relevance.addcmul_(abs_rows, torch.matmul(half_share, abs_weight))
    return (row_relevance.view(features.shape),)


def _z_plus_half(relevance: Tensor, ctx: RuleContext, rows: Tensor) -> Tensor:
    """Return what :func:`z_plus` does, with products of half-precision matrices, ``row in``.

    Features and weights are in half precision, so products of their magnitudes are exact; S is split.
    """
    _, weight, bias = ctx.operands
    abs_weight = weight.abs()
    abs_rows = rows.abs()
    doubled_z = multiply_half_precision(abs_rows, abs_weight.mT)
    # In place: neither the output nor its difference to the bias is copied to float32.
    product_weight = 1 + 16 * torch.finfo(doubled_z.dtype).eps
    doubled_z.add_(ctx.output.reshape(doubled_z.shape), alpha=product_weight)
    if bias is not None:
        doubled_z.sub_(bias, alpha=product_weight)
    torch.threshold_(doubled_z, 0.0, math.inf).add_(2 * STABILIZER)
    half_share = torch.div(relevance.reshape(doubled_z.shape), doubled_z, out=doubled_z)  # S / 2
    split_share = split_into_half_precision(half_share, weight.dtype)
    del doubled_z, half_share  # both names of one float32 tensor
    row_relevance = multiply_split_matrix(split_share, weight).mul_(rows)
    return row_relevance.addcmul_(multiply_split_matrix(split_share, abs_weight), abs_rows)


def _recover_linear_product(ctx: RuleContext, dtype: torch.dtype) -> Tensor:
    """Return xW of a linear layer, a new tensor: its output without the bias."""
    bias = ctx.operands[2]
    if bias is None:
        return ctx.output.to(dtype, copy=True)
    product: Tensor = ctx.output.to(dtype) - bias
    return product


def z_plus_by_sign(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""Each pair of signs gets the whole relevance, so the sum may double.

    .. math:: R_x = x^+\odot W^{+\top}\frac{R}{W^+x^+} + x^-\odot W^{-\top}\frac{R}{W^-x^-}

    Chefer et al., CVPR 2021, ``layers_lrp`` ("original LRP").
    """
    features, weight, _ = ctx.operands
    feature_relevance = torch.zeros_like(features)
    for bound in ({"min": 0}, {"max": 0}):
        signed_features = features.clamp(**bound)
        signed_weight = weight.clamp(**bound)
        share = safe_divide(relevance, torch.matmul(signed_features, signed_weight.mT))
        signed_relevance = signed_features * torch.matmul(share, signed_weight)
        feature_relevance = feature_relevance + signed_relevance
    return (feature_relevance,)


def mask_lrp_conv1d(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    """Rule of the official Mask-LRP code for GPT-2's Conv1D, for comparison with its scores.

    The Add rule between product and bias, of which the bias part is dropped; then the rule for a product of
    two activations, of which the weight half is dropped: at least half of the relevance is lost each time.
    """
    features, weight, bias = ctx.operands
    product = torch.matmul(features, weight.mT)
    if bias is not None:
        terms = (product, bias.expand_as(product))
        add_ctx = replace(ctx, output=product + bias, operands=terms)
        relevance, _ = balanced_add(relevance, add_ctx)
    return (features * torch.matmul(safe_divide(relevance, product), weight) / 2,)


def halved_product(
    relevance: Tensor, ctx: RuleContext, divide: Divide = safe_divide
) -> OperandRelevances:
    r"""Half of the relevance to each factor of :math:`Z = XY`.

    .. math:: S = R/Z,\quad R_X = \tfrac12 X\odot SY^\top,\quad R_Y = \tfrac12 Y\odot X^\top S

    Chefer et al., CVPR 2021; with denominators stabilized by their sign, AttnLRP, proposition 3.3. A
    constant factor takes nothing; its half goes to the other.
    """
    num_active = sum(ctx.activation_mask)
    share = relevance if num_active == 1 else relevance / num_active
    factor_relevances = compute_contributions(share, ctx, divide)
    results: list[Tensor | None] = []
    for factor_relevance, is_active in zip(factor_relevances, ctx.activation_mask, strict=True):
        results.append(factor_relevance if is_active else None)
    return tuple(results)


def compute_contributions(
    relevance: Tensor, ctx: RuleContext, divide: Divide = safe_divide
) -> tuple[Tensor, Tensor]:
    """Return what each factor of a product contributed; each sums to the whole relevance.

    The settings of ``ctx`` are None for a matrix product, and the indices (first, second, output) of an
    einsum.
    """
    share = divide(relevance, ctx.output)
    # Products need factors as wide as the share.
    first, second = (factor.to(share.dtype) for factor in ctx.operands)
    if ctx.settings is None:
        return first * torch.matmul(share, second.mT), second * torch.matmul(first.mT, share)
    left, right, out = ctx.settings
    return (
        first * torch.einsum(f"{out},{right}->{left}", share, second),
        second * torch.einsum(f"{left},{out}->{right}", first, share),
    )


def halved_gate(relevance: Tensor, _ctx: RuleContext) -> OperandRelevances:
    r""":math:`y = a\odot b`: half to each (AttnLRP, uniform rule), for gated MLPs."""
    return relevance / 2, relevance / 2


def balanced_add(relevance: Tensor, ctx: RuleContext) -> tuple[Tensor, Tensor]:
    r"""Divide relevance between the two terms by their absolute totals, so that it is conserved.

    .. math:: a' = a\odot\tfrac{R}{a+b},\quad
        R_a = a'\,\frac{1}{\sum a'}\,\frac{|\sum a'|}{|\sum a'|+|\sum b'|}\sum R

    and likewise :math:`R_b`. Chefer et al., CVPR 2021, ``layers_ours``; the sums run over one
    example, where the official code, which has no batches, sums over the tensor.
    """
    first_term, second_term = ctx.operands
    share = safe_divide(relevance, ctx.output)
    first = _flatten_by_example(first_term * share, ctx.batch_size)
    second = _flatten_by_example(second_term * share, ctx.batch_size)
    totals = torch.stack([first.sum(dim=1), second.sum(dim=1)])  # ``term example``
    magnitudes = totals.abs()
    # This division needs no guard: where the magnitudes are 0, so are the totals, and the next has one.
    portions = magnitudes / (magnitudes.sum(dim=0) + get_stabilizer(totals.dtype))
    total_relevance = _flatten_by_example(relevance, ctx.batch_size).sum(dim=1)
    scales = safe_divide(portions.mul_(total_relevance), totals)[..., None]
    first_relevance = first.mul_(scales[0]).reshape(relevance.shape)
    second_relevance = second.mul_(scales[1]).reshape(relevance.shape)
    return first_relevance, second_relevance


def proportional_add(
    relevance: Tensor, ctx: RuleContext, divide: Divide = safe_divide
) -> OperandRelevances:
    r""":math:`R_a = a\odot R/(a+b)`: Chefer et al., CVPR 2021, ``layers_lrp``; the epsilon rule."""
    share = divide(relevance, ctx.output)
    return tuple(term * share for term in ctx.operands)


def balanced_mask(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""Attention scores :math:`a` under a mask, then the softmax, which passes relevance on.

    .. math:: a' = a\odot\tfrac{R}{a},\quad R_a = a'\,\frac{\sum R}{\sum a'}

    This is :func:`balanced_add` of :math:`a+b` with :math:`b=0` wherever relevance arrives. All of it stays
    on the scores, but for the stabilizer of the division, which takes that of scores near 0. The
    official code adds a mask whether or not it masks a token.
    """
    (score_relevance,) = proportional_mask(relevance, ctx)
    flat_relevance = _flatten_by_example(score_relevance, ctx.batch_size)
    total_relevance = _flatten_by_example(relevance, ctx.batch_size).sum(dim=1)
    scales = safe_divide(total_relevance, flat_relevance.sum(dim=1))[:, None]
    return (flat_relevance.mul_(scales).reshape(relevance.shape),)


def proportional_mask(relevance: Tensor, ctx: RuleContext) -> tuple[Tensor]:
    r""":math:`R_a = a\odot R/a`: the same in ``layers_lrp``, without the totals."""
    # The last operand, if any, is the scores before a constant was added to them.
    scores = next(operand for operand in reversed(ctx.operands) if operand is not None)
    # A masked score may be infinite; it has no relevance.
    return (stabilize_relevance(relevance, scores.clamp(min=torch.finfo(scores.dtype).min)),)


def proportional_sum(
    relevance: Tensor, ctx: RuleContext, divide: Divide = safe_divide
) -> OperandRelevances:
    r""":math:`R_i = x_i\,R/\sum_j x_j` along the summed axes; a mean is a sum of :math:`x_j/n`.

    The settings of ``ctx`` are the removed axes, lowest first, and n (1 for a sum).
    """
    (features,) = ctx.operands
    axes, count = ctx.settings
    share = divide(relevance, ctx.output)
    for axis in axes:
        share = share.unsqueeze(axis)
    return (features * share / count,)


def _flatten_by_example(tensor: Tensor, batch_size: int) -> Tensor:
    """Return example × everything else; the batch may have been folded into the first axis."""
    if tensor.shape[0] % batch_size:
        raise UnsupportedModel(
            f"A sum of two activations of shape {tuple(tensor.shape)} does not begin with the batch of "
            f"{batch_size}, so relevance cannot be divided within each text. Explain the texts one at a "
            "time, or choose a rule set without totals (attnlrp).",
            code="sum-without-batch-axis",
        )
    return tensor.reshape(batch_size, -1)


def pass_through(relevance: Tensor, _ctx: RuleContext) -> OperandRelevances:
    r""":math:`R_x = R`: an operation with one input gives it all (activations, norms)."""
    return (relevance,)


def pass_through_scale(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r""":math:`y = c\,x`: :math:`R_x = R`, and 0 where the constant is 0, since no :math:`x` gets through."""
    factor = ctx.operands[1]
    if factor is None:
        return (relevance,)
    return (torch.where(factor == 0, 0.0, relevance),)


# Rules that return the relevance itself, so that it keeps its dtype: widening and rounding would cancel.
UNCHANGING_RULES: frozenset[Rule] = frozenset({pass_through, pass_through_scale})
# Rules that read operands in any dtype together with relevance in float32 or wider: element by element a
# narrower operand is widened as it is read, without a copy, and matrix products widen what they must.
MIXED_DTYPE_RULES: frozenset[Rule] = frozenset(
    {
        z_plus,
        halved_gate,
        halved_product,
        balanced_add,
        balanced_mask,
        proportional_sum,
        proportional_mask,
        pass_through,
        pass_through_scale,
    }
)
