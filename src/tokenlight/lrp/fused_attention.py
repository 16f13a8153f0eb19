"""Fused attention as one operation of a traced pass, and once more at another temperature."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokenlight.lrp.backward import BackwardMode, TemperedAttend
from tokenlight.lrp.rules import Operation
from tokenlight.lrp.unsupported import UnsupportedOps, list_input_nodes

Function = Callable[..., Any]


def trace_attention(
    backward_mode: BackwardMode,
    unsupported_ops: UnsupportedOps,
    attend: Function,
    attend_tempered: TemperedAttend,
    *factors: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Call fused attention over queries, keys and values as one operation of a traced pass.

    Args:
        backward_mode: The mode of the pass.
        unsupported_ops: The operations of the pass without a rule.
        attend: Computes attention and the sums of its rows from ``factors``.
        attend_tempered: Computes attention from a temperature and ``factors``.
        *factors: Queries, keys and values.
    """
    shared_factors = backward_mode.share_gradient(Operation.ATTENTION, factors)
    with torch._C.DisableTorchFunction():
        output, row_sums = attend(*shared_factors)
        output = backward_mode.temper_attention(attend_tempered, output, factors)
    if unsupported_ops.is_collecting:
        unsupported_ops.mark_supported(output, list_input_nodes((*shared_factors, *factors)))
    return output, row_sums


def attend_at_temperature(
    attend: Function, args: Any, keywords: Any, temperature: float, *factors: Tensor
) -> Tensor:
    """Call ``scaled_dot_product_attention`` once more, with scores and mask divided by a temperature.

    Args:
        attend: The function.
        args: The positional arguments of the first call.
        keywords: Its keyword arguments.
        temperature: Divisor of the scores.
        *factors: Queries, keys and values, in place of those of the first call.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = dict(zip(names, args, strict=False)) | keywords
    arguments.update(zip(names, factors, strict=False))
    mask = arguments.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        arguments["attn_mask"] = mask / temperature
    scaling = arguments.get("scale")
    if scaling is None:
        scaling = factors[0].shape[-1] ** -0.5
    arguments["scale"] = scaling / temperature
    output: Tensor = attend(**arguments)
    return output
