r"""AttnLRP and CP-LRP, in two forms.

First, the few gradients that they rewrite. With these, relevance is value × gradient. Where a rule divides
relevance by an output, :math:`R/y` is what a gradient carries, so linear maps, sums and the expansion of the
softmax are their own gradients (Achtibat et al. 2024, appendix on efficient implementation). Nothing is
divided but the slope of an activation.

Second, their rules one by one as the papers write them. Both forms agree where epsilon is negligible.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenlight.lrp.rules import (
    OperandRelevances,
    Operation,
    RuleContext,
    compute_contributions,
    halved_product,
)

MIN_ACTIVATION_INPUT = 1e-12  # below it an activation's slope y/x counts as 0
EPSILON = 1e-6  # as the AttnLRP paper's code sets it


def compute_gradient_constants(
    operation: Operation, value: Tensor, operands: Any, settings: Any
) -> OperandRelevances:
    r"""Return what a rewritten gradient must know of the forward pass, so that its input need not be kept.

    Args:
        operation: ``ACTIVATION`` or ``NORM``.
        value: The output.
        operands: The operands; the first one is the input.
        settings: Of a norm, whether it subtracts the mean, and its stabilizer.

    Returns:
        The slope :math:`y/x` of an activation, or :math:`1/\sigma` and :math:`\gamma` of a norm.
    """
    features, *parameters = operands
    if operation is Operation.NORM:
        return compute_inverse_deviation(features, *settings), parameters[0]
    slope = torch.div(value, functional.hardshrink(features, MIN_ACTIVATION_INPUT))
    return (slope.nan_to_num_(0.0, 0.0, 0.0),)


def activation_gradient(gradient: Tensor, ctx: RuleContext) -> tuple[Tensor]:
    r""":math:`y = f(x)`, element by element: :math:`g_x = g\,y/x`, so that :math:`x\,g_x = y\,g`.

    The operands of ``ctx`` are the :func:`compute_gradient_constants`.
    """
    return (_multiply_wide(ctx.operands[0], gradient),)


def compute_inverse_deviation(
    features: Tensor, is_centered: bool, stabilizer: Tensor | float
) -> Tensor:
    r"""Return :math:`1/\sigma` of each row, float32 at least: what a norm's gradient needs of its input."""
    wide_dtype = torch.promote_types(features.dtype, torch.float32)
    if is_centered and features.is_cuda and isinstance(stabilizer, float):
        # One kernel; only on a GPU does it return float32 for inputs in half precision.
        return torch.native_layer_norm(features, features.shape[-1:], None, None, stabilizer)[2]
    if is_centered:
        variance = features.to(wide_dtype).var(dim=-1, correction=0, keepdim=True)
    else:
        length = torch.linalg.vector_norm(features, dim=-1, keepdim=True, dtype=wide_dtype)
        variance = length.square_().div_(features.shape[-1])
    return variance.add_(stabilizer).rsqrt_()


def norm_gradient(gradient: Tensor, ctx: RuleContext) -> tuple[Tensor]:
    r"""A norm as a linear map, its deviation :math:`\sigma` a constant.

    .. math:: y = c\odot(x-\bar x)+\beta,\ c=\gamma/\sigma,\quad g_x = c\odot g-\overline{c\odot g}

    An RMSNorm subtracts no mean, nor does its gradient. The operands of ``ctx`` are the
    :func:`compute_gradient_constants`; the first of its settings says whether the mean is subtracted.
    """
    scale, weight = ctx.operands
    is_centered = ctx.settings[0]
    if is_centered and gradient.is_cuda and _fits_norm_kernel(gradient, scale, weight):
        return (compute_centered_norm_gradient(gradient, scale, weight),)
    if weight is None:
        scaled = _multiply_wide(scale, gradient)
    else:
        scaled = _multiply_wide(weight, gradient).mul_(scale)
    if is_centered:
        scaled = scaled.sub_(scaled.mean(dim=-1, keepdim=True))
    return (scaled,)


def _fits_norm_kernel(gradient: Tensor, scale: Tensor, weight: Tensor | None) -> bool:
    """Return whether torch's kernel of a LayerNorm's backward takes these tensors."""
    # A stabilizer that was measured per row, or a weight per head, has other shapes.
    is_row_scale = scale.dtype == torch.float32 and scale.shape == (*gradient.shape[:-1], 1)
    if weight is None:
        return is_row_scale
    is_row_weight = weight.shape == gradient.shape[-1:] and weight.dtype == gradient.dtype
    return is_row_scale and is_row_weight


def compute_centered_norm_gradient(
    gradient: Tensor, scale: Tensor, weight: Tensor | None
) -> Tensor:
    r"""Return :math:`c\odot g-\overline{c\odot g}` with :math:`c=\gamma/\sigma`, by one kernel.

    It is the gradient of a LayerNorm whose normalized input is 0: the term that follows from its deviation
    vanishes.
    """
    zeros = torch.zeros_like(gradient, memory_format=torch.contiguous_format)
    result: Tensor = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), zeros, gradient.shape[-1:], torch.zeros_like(scale), scale, weight, None,
        [True, False, False],
    )[0]  # fmt: skip
    return result


def softmax_gradient(gradient: Tensor, ctx: RuleContext, temperature: float) -> tuple[Tensor]:
    r"""The gradient that a softmax would have at another temperature :math:`T` (GIM, Edin et al. 2025).

    .. math:: s^T = \operatorname{softmax}(x/T),\quad g_x = s^T\odot\bigl(g-\textstyle\sum_j s^T_j g_j\bigr)

    The factor :math:`1/T` of a true derivative is left out, as in the authors' code. Since
    :math:`s^T\propto s^{1/T}`, the scores :math:`x` need not be kept. The settings of ``ctx`` are the axis.
    """
    axis = ctx.settings
    softened = ctx.output.pow(1 / temperature)
    probabilities = softened.div_(softened.sum(dim=axis, keepdim=True))
    weighted = probabilities * gradient
    total = weighted.sum(dim=axis, keepdim=True)
    return (weighted.sub_(probabilities.mul_(total)),)


def _multiply_wide(slope: Tensor, gradient: Tensor) -> Tensor:
    """Return the product, computed in the wider dtype and stored in the gradient's, in one kernel."""
    if slope.dtype == gradient.dtype:
        return slope * gradient
    # A batch of gradients (``is_grads_batched``) takes no out=.
    if torch._C._functorch.is_batchedtensor(gradient):
        return (slope * gradient).to(gradient.dtype)
    return torch.mul(slope, gradient, out=torch.empty_like(gradient))


def equal_shares(activation_mask: tuple[bool, ...]) -> tuple[float, ...]:
    """Give each activation the same share."""
    return (1 / sum(activation_mask),) * len(activation_mask)


def numerator_shares(activation_mask: tuple[bool, ...]) -> tuple[float, ...]:
    """Assign all relevance to the numerator of a quotient."""
    return (1.0, *[0.0] * (len(activation_mask) - 1))


def values_only_shares(activation_mask: tuple[bool, ...]) -> tuple[float, ...]:
    """Give all to the last factor, the values; to the others only where the values are constants."""
    has_active_values = activation_mask[-1]
    map_share = float(not has_active_values)
    return (*[map_share] * (len(activation_mask) - 1), 1.0)


def attention_shares(activation_mask: tuple[bool, ...]) -> tuple[float, ...]:
    """Give half to the values and half to the attention map; of that, half each to queries and keys."""
    query, key, value = activation_mask
    value_share = 1.0
    if value and (query or key):
        value_share = 0.5
    map_share = value_share
    if query and key:
        map_share = value_share / 2
    return map_share, map_share, value_share


# --- rule by rule ----------------------------------------------------------------------------------


def epsilon_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r""":math:`a/(b+\varepsilon\operatorname{sign} b)`, with :math:`\operatorname{sign} 0=+1`
    (Bach et al. 2015)."""
    stabilized = torch.where(denominator < 0, denominator - EPSILON, denominator + EPSILON)
    return numerator / stabilized


def epsilon_linear(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""Signed contributions; the relevance of the bias is lost.

    .. math:: R_x = x\odot W^\top\frac{R}{y+\varepsilon\operatorname{sign}y}

    Bach et al. 2015; AttnLRP (Achtibat et al. 2024), equation 8.
    """
    features, weight, _ = ctx.operands
    return (features * torch.matmul(epsilon_divide(relevance, ctx.output), weight),)


def values_only_product(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    """All to the values: the attention map counts as a constant (Ali et al. 2022, AH-rule).

    Where the values are constants, all goes to the map.
    """
    has_active_values = ctx.activation_mask[1]
    if not has_active_values:
        return halved_product(relevance, ctx, epsilon_divide)
    return None, compute_contributions(relevance, ctx, epsilon_divide)[1]


def epsilon_add_constant(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r""":math:`y = x + b`: :math:`R_x = x\,R/y`; the constant keeps its share.

    The epsilon rule of a bias. It makes :func:`softmax_taylor` invariant to a constant added to all scores
    of a row (ALiBi counted from the end of a padded batch), as the softmax itself is. A constant 0, as in a
    mask that masks nothing, takes nothing.
    """
    term, constant = ctx.operands
    term_relevance = term * epsilon_divide(relevance, ctx.output)
    if constant is not None:
        term_relevance = torch.where(constant == 0, relevance, term_relevance)
    return (term_relevance,)


def softmax_taylor(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""First-order expansion of the softmax :math:`s(x)` (AttnLRP, proposition 3.1).

    .. math:: R_i = x_i\bigl(R_i - s_i\textstyle\sum_j R_j\bigr)

    Masked keys have :math:`s_i=0` and take no part.
    """
    scores = ctx.operands[0]
    probabilities = ctx.output
    total = relevance.sum(dim=ctx.settings, keepdim=True)
    score_relevance = scores * (relevance - probabilities * total)
    return (torch.where(probabilities == 0, 0.0, score_relevance),)


def norm_linear(relevance: Tensor, ctx: RuleContext) -> OperandRelevances:
    r"""LayerNorm as a linear map, its deviation a constant (Ali et al. 2022, LN-rule; AttnLRP,
    proposition 3.4 and section 3.3.3): :math:`R_x = x\odot g_x` of :func:`norm_gradient` for
    :math:`g = R/y`. RMSNorm subtracts no mean; where it adds no :math:`\beta`, :math:`R_x=R`.
    """
    is_centered, _ = ctx.settings
    features, weight, bias = ctx.operands
    if not is_centered and bias is None:
        return (relevance,)
    constants = (compute_inverse_deviation(features, *ctx.settings), weight)
    gradient_ctx = replace(ctx, operands=constants)
    (gradient,) = norm_gradient(epsilon_divide(relevance, ctx.output), gradient_ctx)
    feature_relevance = features * gradient
    if not is_centered:
        feature_relevance = torch.where(bias == 0, relevance, feature_relevance)
    return (feature_relevance,)
