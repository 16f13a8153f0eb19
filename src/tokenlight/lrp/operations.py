"""Parse calls of torch functions as operations: which arguments carry relevance, and by which rule.

Each parser has the signature of the torch function that it parses, names included. It returns None for a call
that no rule covers; such a call runs as it is, and the model is refused if relevance would have to pass it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenlight.lrp.rules import Operation


class OperationCall(NamedTuple):
    """A call as an operation.

    Attributes:
        operation: The operation.
        operands: Operands that the rule reads; None for one that takes no part.
        settings: Settings of the operation, such as the axes of a sum.
        factors: The operands of a product, which share one gradient.
    """

    operation: Operation
    operands: tuple[Tensor | None, ...]
    settings: Any = None
    factors: tuple[Any, ...] = ()


ParsedCall = OperationCall | None
CallParser = Callable[..., ParsedCall]


def is_activation(value: Any) -> bool:
    """Return whether ``value`` is an activation: a tensor that depends on the explained input."""
    return isinstance(value, Tensor) and value.requires_grad


def _as_tensor_constant(constant: Any) -> Tensor | None:
    """Return a constant that differs from element to element; None for a mere number."""
    if isinstance(constant, Tensor) and constant.dim():
        return constant
    return None


# --- matrix products -------------------------------------------------------------------------------


def _parse_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> ParsedCall:
    if not is_activation(input) or is_activation(weight):
        return None
    return OperationCall(Operation.LINEAR, (input, weight, bias))


def _parse_addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ParsedCall:
    """GPT-2's Conv1D: features ``mat1``, weight ``mat2`` (in × out), bias ``input``."""
    has_constant_weights = not is_activation(mat2) and not is_activation(input)
    if not is_activation(mat1) or not has_constant_weights or (beta, alpha) != (1, 1):
        return None
    return OperationCall(Operation.CONV1D, (mat1, mat2.mT, input))


def _parse_matmul(input: Tensor, other: Any = None, *, mat2: Any = None) -> ParsedCall:
    if other is None:
        other = mat2  # the name that bmm and mm use
    if is_activation(input) and is_activation(other):
        return OperationCall(Operation.MATMUL, (input, other), factors=(input, other))
    if is_activation(input) and other.dim() > 1:
        return OperationCall(Operation.LINEAR, (input, other.mT, None))
    if input.dim() > 1 and other.dim() > 1:
        return OperationCall(Operation.MATMUL, (input, other))
    return None


def _parse_einsum(equation: str, *operands: Any) -> ParsedCall:
    # Operands may also be given as one list; a single tensor must not be taken apart.
    if len(operands) == 1 and not isinstance(operands[0], Tensor):
        operands = tuple(operands[0])
    factors = operands
    if len(factors) != 2 or "..." in equation or "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    first, second = inputs.split(",")
    # An index that only one factor has is summed before the product.
    has_lone_index = bool(set(first) - set(second + output) or set(second) - set(first + output))
    # An index that one factor has twice takes a diagonal.
    has_diagonal = len({*first}) < len(first) or len({*second}) < len(second)
    if has_lone_index or has_diagonal:
        return None
    return OperationCall(Operation.MATMUL, factors, (first, second, output), factors)


def _parse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> ParsedCall:
    if is_activation(attn_mask):
        return None
    return OperationCall(Operation.ATTENTION, (), factors=(query, key, value))


# --- sums and products, element by element ---------------------------------------------------------


def _parse_pair(
    both_active: Operation, with_constant: Operation, input: Any, other: Any, *, alpha: float = 1
) -> ParsedCall:
    """Parse a sum or product of two activations, or of an activation and a constant."""
    if is_activation(input) and is_activation(other):
        if alpha != 1:
            return None
        if both_active is Operation.GATE:
            return OperationCall(both_active, (input, other), factors=(input, other))
        return OperationCall(both_active, (input, other))
    if is_activation(input):
        return OperationCall(with_constant, (input, _as_tensor_constant(other)))
    return OperationCall(with_constant, (other, _as_tensor_constant(input)))


def _parse_negation(input: Any, *_: Any) -> ParsedCall:
    return OperationCall(Operation.SCALE, (input, None))


def _parse_division(input: Any, other: Any, *, rounding_mode: str | None = None) -> ParsedCall:
    if not is_activation(input) or rounding_mode is not None:
        return None
    if is_activation(other):
        # All relevance goes to the numerator, so it does not matter how the denominator was computed.
        operands = (input, other.detach())
        return OperationCall(Operation.QUOTIENT, operands, factors=(input, other))
    return OperationCall(Operation.SCALE, (input, None))


def _parse_sum(
    is_mean: bool, input: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> ParsedCall:
    """Parse a sum or mean over some axes."""
    dim = kwargs.get("axis", dim)  # torch accepts numpy's name as well
    if dim is None:
        return None
    if isinstance(dim, int):
        dim = (dim,)
    axes = sorted(axis % input.dim() for axis in dim)
    count = 1
    if is_mean:
        count = math.prod(input.shape[axis] for axis in axes)
    removed_axes = () if keepdim else axes
    return OperationCall(Operation.SUM, (input,), (removed_axes, count))


# --- nonlinear functions and norms -----------------------------------------------------------------


def _parse_activation(input: Any, *args: Any, **kwargs: Any) -> ParsedCall:
    """Parse a function of one activation; ``2 ** x`` and ``x ** y`` are none."""
    has_active_parameter = any(map(is_activation, (*args, *kwargs.values())))
    if not is_activation(input) or has_active_parameter:
        return None
    return OperationCall(Operation.ACTIVATION, (input,))


def _parse_softmax(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> ParsedCall:
    if dim is None:
        return None
    return OperationCall(Operation.SOFTMAX, (input,), dim)


def _parse_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    is_centered: bool = True,
) -> ParsedCall:
    if len(normalized_shape) != 1:
        return None
    return OperationCall(Operation.NORM, (input, weight, bias), (is_centered, eps))


def _parse_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> ParsedCall:
    if eps is None:
        eps = torch.finfo(input.dtype).eps
    return _parse_layer_norm(input, normalized_shape, weight, None, eps, is_centered=False)


# --- maps that are linear in the gradient ----------------------------------------------------------


def _parse_linear_map(*args: Any, **kwargs: Any) -> ParsedCall:
    """Parse a map that is linear in one activation, or that selects values of it."""
    num_activations = sum(map(is_activation, (*args, *kwargs.values())))
    if num_activations != 1:
        return None
    return OperationCall(Operation.LINEAR_MAP, ())


def _parse_placement(*_: Any, **__: Any) -> ParsedCall:
    """Parse a call that writes or adds activations into others at some positions."""
    return OperationCall(Operation.LINEAR_MAP, ())


_NAMES_AND_PARSERS: list[tuple[str, CallParser]] = [
    ("linear", _parse_linear),
    ("addmm", _parse_addmm),
    ("einsum", _parse_einsum),
    ("matmul __matmul__ bmm mm", _parse_matmul),
    (
        "add __add__ __radd__ sub subtract __sub__",
        partial(_parse_pair, Operation.ADD, Operation.ADD_CONSTANT),
    ),
    ("mul multiply __mul__ __rmul__", partial(_parse_pair, Operation.GATE, Operation.SCALE)),
    ("div divide true_divide __truediv__ __div__", _parse_division),
    ("neg negative __neg__ __rsub__", _parse_negation),
    ("softmax", _parse_softmax),
    ("gelu relu relu6 silu mish tanh sigmoid elu selu celu leaky_relu softplus", _parse_activation),
    ("erf hardtanh hardswish hardsigmoid logsigmoid softsign clamp square", _parse_activation),
    ("pow __pow__", _parse_activation),
    ("layer_norm", _parse_layer_norm),
    ("rms_norm", _parse_rms_norm),
    ("scaled_dot_product_attention", _parse_attention),
    ("conv1d conv2d cumsum topk sort repeat_interleave avg_pool1d unfold", _parse_linear_map),
    ("grouped_mm _grouped_mm grouped_mm_fallback", _parse_linear_map),
    ("index_add index_add_ scatter_add scatter_add_", _parse_placement),
    ("copy_ __setitem__", _parse_placement),
    ("sum", partial(_parse_sum, False)),
    ("mean", partial(_parse_sum, True)),
]
# By the name of the torch function.
CALL_PARSERS: dict[str, CallParser] = {}
for _names, _parser in _NAMES_AND_PARSERS:
    CALL_PARSERS.update(dict.fromkeys(_names.split(), _parser))


# --- calls that are rewritten before they are parsed -----------------------------------------------


def _subtract(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    if alpha == 1:
        return torch.add(input, torch.neg(other))
    return torch.add(input, torch.mul(other, -alpha))


def _baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``β·input + α·batch1 @ batch2``: attention scores with ALiBi."""
    return torch.add(torch.mul(torch.bmm(batch1, batch2), alpha), input * beta)


def _normalize(input: Tensor, p: float = 2, dim: int = 1, eps: float = 1e-12, **_: Any) -> Tensor:
    return torch.div(input, input.norm(p, dim, keepdim=True).clamp_min(eps))


# Calls that are several operations in one: the same value by those operations, and the number of arguments
# that must be activations.
DECOMPOSITIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    **dict.fromkeys(("sub", "subtract", "__sub__"), (_subtract, 2)),
    "baddbmm": (_baddbmm, 2),
    "normalize": (_normalize, 1),
}

# A function mode sees an augmented assignment as the function that works in place; each has another
# that leaves its arguments as they are.
OUT_OF_PLACE: dict[str, Callable[..., Tensor]] = {
    "add_": torch.add,
    "sub_": torch.sub,
    "mul_": torch.mul,
    "div_": torch.div,
}
