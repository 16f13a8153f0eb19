r"""Tolerances between two computations of one value, derived from the arithmetic.

Another processor, batch shape or number of threads adds the same terms in another order. The computed sum
of :math:`n` products is the exact sum for weights that are each moved by about :math:`\sqrt n\,\epsilon/2`
(Higham and Mary 2019), :math:`\epsilon` the spacing of the dtype at one. So two computations may differ by

.. math:: \mathrm{tolerance} = 4\sqrt n\,\epsilon\,\kappa

of the largest number compared. The four is two computations, and four times the typical error.
:math:`\kappa`, the condition, is how far the answer moves, of its maximum, when every weight moves by its
own share of one: depth, norms and cancelling sums are all in it. ``condition_number`` measures it, and a
contract test holds every method to what is assumed here.

:math:`\epsilon` is that of the coarsest dtype inside. Many families keep norms, softmax or rotary angles in
float32 whatever the dtype of their weights; ``EverythingInFloat64`` lifts them for the comparison, so that
no family needs a tolerance of its own.

Conservation is asked to 1e-6 for another reason: rules divide by :math:`x+10^{-9}`, so each division keeps
:math:`10^{-9}/x` of a share for itself, and a thousandth is the smallest :math:`x` that matters.
"""

from __future__ import annotations

import copy
from types import MethodWrapperType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

TERMS = 64  # the longest sum in the tiny models: their widest layer has 48 features
PASS_CONDITION = 2**5  # of a forward pass, a gradient, an attention map
RELEVANCE_CONDITION = 2**17  # of relevance, which is divided by sums that nearly cancel
LOW_PRECISION = (torch.float32, torch.float16, torch.bfloat16)


def tolerance_for(dtype: torch.dtype, condition: float, terms: int = TERMS) -> float:
    """Return the largest relative difference that rounding explains."""
    return 4 * terms**0.5 * torch.finfo(dtype).eps * condition


# 9e-10: the law "within 1e-9" of every method.
FLOAT64 = tolerance_for(torch.float64, RELEVANCE_CONDITION)
FLOAT32 = tolerance_for(torch.float32, PASS_CONDITION)  # 1.2e-4, and not for methods that divide


def assert_close(actual: Any, expected: Any, tolerance: float = FLOAT64) -> None:
    """Assert that two arrays differ by at most ``tolerance`` times the largest magnitude."""
    largest = np.abs(expected).max(initial=1e-300)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * largest)


def condition_number(model: Any, answer: Any, step: float = 1e-8) -> float:
    """Return how far ``answer(model)`` moves, relative to its maximum, per relative change of the weights."""
    moved_model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in moved_model.parameters():
            draws = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + step * draws)
    before = answer(model)
    after = answer(moved_model)
    return float(np.abs(after - before).max() / np.abs(before).max(initial=1e-300) / step)


class EverythingInFloat64(TorchFunctionMode):
    """Compute in float64 where a float64 model casts to a lower precision."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Every operation of every model comes through here, and every look at a shape or a device: these
        # are most of the calls.
        if type(func) is MethodWrapperType:
            return func(*args)
        func = torch.Tensor.double if func is torch.Tensor.float else func
        # A dtype is always an argument of its own: nested arguments hold none.
        for value in args:
            if type(value) is torch.dtype:
                args = tuple(_widen_dtype(value) for value in args)
                break
        if not kwargs:
            return func(*args)
        return func(*args, **{name: _widen_dtype(value) for name, value in kwargs.items()})


class RoundingRecorder(TorchDispatchMode):
    """Record the operations whose result in a lower precision differs from that in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        coarse = [tensor for tensor in tree_leaves(output) if _is_coarse(tensor)]
        inputs = [tensor for tensor in tree_leaves((args, kwargs)) if _is_floating(tensor)]
        if coarse and inputs and not func._schema.is_mutable:
            wide_outputs = tree_leaves(
                func(*tree_map(_widen, args), **tree_map(_widen, kwargs or {}))
            )
            pairs = zip(tree_leaves(output), wide_outputs, strict=True)
            for tensor, exact in pairs:
                if _is_coarse(tensor) and not torch.equal(tensor.double(), exact):
                    self.operations.add(str(func))
        return output


def _is_floating(value: Any) -> bool:
    """Return whether a value is a tensor of floating-point numbers."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_coarse(value: Any) -> bool:
    """Return whether a value is a tensor in a lower precision than float64."""
    return _is_floating(value) and value.dtype in LOW_PRECISION


def _widen_dtype(value: Any) -> Any:
    """Return float64 for a floating-point dtype of a lower precision."""
    return torch.float64 if isinstance(value, torch.dtype) and value in LOW_PRECISION else value


def _widen(value: Any) -> Any:
    """Return a floating-point tensor or dtype in float64."""
    return value.double() if _is_floating(value) else _widen_dtype(value)
