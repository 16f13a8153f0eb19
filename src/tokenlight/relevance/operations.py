"""From torch functions to operations: which of a call's arguments carry relevance, and how.

Each reader has the signature of the torch function it reads, names included. It answers None where the
call means nothing here; the call then goes through untouched, and is found on the path of relevance.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenlight.relevance.rules import Operation as On


class Call(NamedTuple):
    """A call as an operation on operands; ``factors``: those of them that share one gradient."""

    operation: On
    operands: tuple[Tensor | None, ...]
    detail: Any = None
    factors: tuple[Any, ...] = ()


Read = Call | None


def active(value: Any) -> bool:
    """Whether ``value`` is an activation: a tensor that the explained input reaches."""
    return isinstance(value, Tensor) and value.requires_grad


def _tensor(constant: Any) -> Tensor | None:
    """A constant that differs from element to element; None for a mere number."""
    return constant if isinstance(constant, Tensor) and constant.dim() else None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Read:
    reads = active(input) and not active(weight)
    return Call(On.LINEAR, (input, weight, bias)) if reads else None


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Read:
    """GPT-2's Conv1D: features ``mat1``, weight ``mat2`` (``in out``), bias ``input``."""
    if not active(mat1) or active(mat2) or active(input) or (beta, alpha) != (1, 1):
        return None
    return Call(On.CONV1D, (mat1, mat2.mT, input))


def _matmul(input: Tensor, other: Any = None, *, mat2: Any = None) -> Read:
    other = mat2 if other is None else other  # as bmm and mm call it
    if active(input) and active(other):
        return Call(On.MATMUL, (input, other), None, (input, other))
    if active(input) and other.dim() > 1:
        return Call(On.LINEAR, (input, other.mT, None))
    return Call(On.MATMUL, (input, other)) if input.dim() > 1 and other.dim() > 1 else None


def _einsum(equation: str, *operands: Any) -> Read:
    given = operands[0] if len(operands) == 1 else operands
    if len(given) != 2 or "..." in equation or "->" not in equation:
        return None
    inputs, out = equation.replace(" ", "").split("->")
    left, right = inputs.split(",")
    # An index that only one factor has was summed alone; one that a factor has twice, a diagonal.
    alone = set(left) - set(right + out) or set(right) - set(left + out)
    if alone or len({*left}) < len(left) or len({*right}) < len(right):
        return None
    return Call(On.MATMUL, tuple(given), (left, right, out), tuple(given))


def _pair(both: On, with_constant: On, input: Any, other: Any, *, alpha: float = 1) -> Read:
    """A sum or product of two activations, or of one and a constant."""
    if active(input) and active(other):
        factors = (input, other) if both is On.GATE else ()
        return Call(both, (input, other), None, factors) if alpha == 1 else None
    term, constant = (input, other) if active(input) else (other, input)
    return Call(with_constant, (term, _tensor(constant)))


def _divide(input: Any, other: Any, *, rounding_mode: str | None = None) -> Read:
    if not active(input) or rounding_mode is not None:
        return None
    if active(other):
        # The numerator takes all, so nothing need be known about how the denominator was made.
        return Call(On.QUOTIENT, (input, other.detach()), None, (input, other))
    return Call(On.SCALE, (input, None))


def _softmax(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Read:
    return None if dim is None else Call(On.SOFTMAX, (input,), dim)


def _activation(input: Any, *others: Any, **named: Any) -> Read:
    """Of one activation alone: ``2 ** x`` and ``x ** y`` are none."""
    alone = active(input) and not any(map(active, (*others, *named.values())))
    return Call(On.ACTIVATION, (input,)) if alone else None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *_: Any, **__: Any
) -> Read:
    factors = query, key, value
    return None if active(attn_mask) else Call(On.ATTENTION, (), None, factors)


def _map(*given: Any, **named: Any) -> Read:
    """A map that is linear in one activation, or picks numbers out of it."""
    return Call(On.MAP, ()) if sum(map(active, (*given, *named.values()))) == 1 else None


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    centres: bool = True,
) -> Read:
    one_axis = len(normalized_shape) == 1
    return Call(On.NORM, (input, weight, bias), (centres, eps)) if one_axis else None


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Read:
    added = torch.finfo(input.dtype).eps if eps is None else eps
    return _layer_norm(input, normalized_shape, weight, None, added, centres=False)


def _pool(mean: bool, input: Tensor, dim: Any = None, keepdim: bool = False, **more: Any) -> Read:
    dim = more.get("axis", dim)  # torch takes numpy's name, too
    if dim is None:
        return None
    axes = sorted(axis % input.dim() for axis in ((dim,) if isinstance(dim, int) else dim))
    count = math.prod(input.shape[axis] for axis in axes) if mean else 1
    return Call(On.TOTAL, (input,), (() if keepdim else axes, count))


READERS: dict[str, Callable[..., Read]] = {
    name: reader
    for names, reader in (
        ("linear", _linear),
        ("addmm", _addmm),
        ("einsum", _einsum),
        ("matmul __matmul__ bmm mm", _matmul),
        ("add __add__ __radd__ sub subtract __sub__", partial(_pair, On.ADD, On.SHIFT)),
        ("mul multiply __mul__ __rmul__", partial(_pair, On.GATE, On.SCALE)),
        ("div divide true_divide __truediv__ __div__", _divide),
        ("neg negative __neg__ __rsub__", lambda x, *_: Call(On.SCALE, (x, None))),
        ("softmax", _softmax),
        ("gelu relu relu6 silu mish tanh sigmoid elu selu celu leaky_relu softplus", _activation),
        ("erf hardtanh hardswish hardsigmoid logsigmoid softsign clamp square", _activation),
        ("pow __pow__", _activation),
        ("layer_norm", _layer_norm),
        ("rms_norm", _rms_norm),
        ("scaled_dot_product_attention", _attention),
        ("conv1d conv2d cumsum topk sort repeat_interleave avg_pool1d unfold", _map),
        ("grouped_mm _grouped_mm grouped_mm_fallback", _map),
        # Sums of activations, laid out by places.
        ("index_add index_add_ scatter_add scatter_add_", lambda *_, **__: Call(On.MAP, ())),
        ("copy_ __setitem__", lambda *_, **__: Call(On.MAP, ())),
        ("sum", partial(_pool, False)),
        ("mean", partial(_pool, True)),
    )
    for name in names.split()
}


def _difference(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    return torch.add(input, torch.neg(other) if alpha == 1 else torch.mul(other, -alpha))


def _offset_product(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``β·input + α·batch1 @ batch2``: attention scores with ALiBi."""
    return torch.add(torch.mul(torch.bmm(batch1, batch2), alpha), input * beta)


def _unit_length(input: Tensor, p: float = 2, dim: int = 1, eps: float = 1e-12, **_: Any) -> Tensor:
    return torch.div(input, input.norm(p, dim, keepdim=True).clamp_min(eps))


# Calls that are two operations in one, written as those, with the same value; where at least so many
# of the arguments are activations.
REWRITES: dict[str, tuple[Callable[..., Tensor], int]] = {
    **dict.fromkeys(("sub", "subtract", "__sub__"), (_difference, 2)),
    "baddbmm": (_offset_product, 2),
    "normalize": (_unit_length, 1),
}

# Augmented assignments reach a function mode as these; each has a twin that changes nothing.
AUGMENTED: dict[str, Callable[..., Tensor]] = {
    f"{name}_": getattr(torch, name) for name in ("add", "sub", "mul", "div")
}
