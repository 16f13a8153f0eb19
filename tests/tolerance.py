r"""How far apart two computations of one number may end: derived here, nowhere tried out.

Another processor, batch shape or number of threads adds the same terms in another order. The computed sum
of :math:`n` products is the exact sum for weights that are each moved by about :math:`\sqrt n\,\epsilon/2`
(Higham and Mary 2019), :math:`\epsilon` the spacing of the dtype at one. So two computations may differ by

.. math:: \mathrm{allowed} = 4\sqrt n\,\epsilon\,\kappa

of the largest number compared. The four is two computations, and four times the typical error.
:math:`\kappa`, the condition, is how far the answer moves, of its maximum, when every weight moves by its
own share of one: depth, norms and cancelling sums are all in it. ``condition`` measures it, and a contract
test holds every method to what is assumed here.

:math:`\epsilon` is that of the coarsest dtype inside. Many families keep norms, softmax or rotary angles in
float32 whatever the dtype of their weights; ``EverythingInFloat64`` lifts them for the comparison, so that
no family needs a tolerance of its own.

Conservation is asked to 1e-6 for another reason: rules divide by :math:`x+10^{-9}`, so each division keeps
:math:`10^{-9}/x` of a share for itself, and a thousandth is the smallest :math:`x` that matters.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

TERMS = 64  # the longest sum in the tiny models: their widest layer has 48 features
PLAIN = 2**5  # condition of a forward pass, a gradient, an attention map
DIVIDING = 2**17  # of relevance, which is divided by sums that nearly cancel
COARSE = (torch.float32, torch.float16, torch.bfloat16)


def allowed(dtype: torch.dtype, condition: float, terms: int = TERMS) -> float:
    return 4 * terms**0.5 * torch.finfo(dtype).eps * condition


FLOAT64 = allowed(torch.float64, DIVIDING)  # 9e-10: the law "within 1e-9" of every method
FLOAT32 = allowed(torch.float32, PLAIN)  # 1.2e-4, and not for methods that divide


def close(ours: Any, theirs: Any, tolerance: float = FLOAT64) -> None:
    """Equal within a share of the largest number."""
    largest = np.abs(theirs).max(initial=1e-300)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * largest)


def condition(model: Any, answer: Any, moved: float = 1e-8) -> float:
    """How far ``answer(model)``, an array, moves for each share that the weights of the model move."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in other.parameters():
            draws = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + moved * draws)
    before, after = answer(model), answer(other)
    return float(np.abs(after - before).max() / np.abs(before).max(initial=1e-300) / moved)


class EverythingInFloat64(TorchFunctionMode):
    """Float64 where a float64 model asks for a coarser dtype."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*tree_map(_widened, args), **tree_map(_widened, kwargs or {}))


class Roundings(TorchDispatchMode):
    """Names the operations whose result in a coarser dtype is not the one of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        coarse = [one for one in tree_leaves(made) if _coarse(one)]
        given = [one for one in tree_leaves((args, kwargs)) if _floating(one)]
        if coarse and given and not func._schema.is_mutable:
            wide = tree_leaves(func(*tree_map(_doubled, args), **tree_map(_doubled, kwargs or {})))
            pairs = zip(tree_leaves(made), wide, strict=True)
            if not all(torch.equal(one.double(), two) for one, two in pairs if _coarse(one)):
                self.found.add(str(func))
        return made


def _floating(given: Any) -> bool:
    return isinstance(given, torch.Tensor) and given.is_floating_point()


def _coarse(given: Any) -> bool:
    return _floating(given) and given.dtype in COARSE


def _widened(given: Any) -> Any:
    return torch.float64 if isinstance(given, torch.dtype) and given in COARSE else given


def _doubled(given: Any) -> Any:
    return given.double() if _floating(given) else _widened(given)
