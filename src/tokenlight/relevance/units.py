"""Which modules are one operation each: told by what they compute, not by what they are called.

A module that writes a norm or an activation out in elementary operations is a unit, since its parts
have no rule of their own (NewGELU written out leaks a thousandth). It is given a few rows of numbers:
where y_i depends on x_i alone and not linearly it is an activation; where it answers as a norm with
some weight, bias, mean and stabiliser would, it is that norm; where it is affine, a map. Whatever is
none of these is looked at operation by operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tokenlight.relevance.case import Operation

LARGE, SMALL = 2.0**13, 2.0**-10  # scales at which a norm's stabiliser means nothing, and something


class Norm(NamedTuple):
    """A norm over the last axis: weight and bias, whether it subtracts the mean, its stabiliser."""

    weight: Tensor
    bias: Tensor
    centres: bool
    stabiliser: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """The norm of ``rows``, written out."""
        kept = rows - rows.mean(dim=-1, keepdim=True) if self.centres else rows
        square = kept.square().mean(dim=-1, keepdim=True)
        return kept * torch.rsqrt(square + self.stabiliser) * self.weight + self.bias


@dataclass(frozen=True)
class Unit:
    """What a module is: an operation; of a norm whether it centres, and the axes its weight has."""

    operation: Operation
    centres: bool = False
    axes: tuple[int, ...] = ()


_known: WeakKeyDictionary[nn.Module, Unit | None] = WeakKeyDictionary()


def is_candidate(module: nn.Module) -> bool:
    """Whether the module may be a unit: it has no parts, and is none of torch's own, which call one
    function each."""
    own = type(module).__module__.startswith("torch.nn.modules")
    return not own and next(iter(module._modules.values()), None) is None


@torch.no_grad()
def unit_of(module: nn.Module, features: Tensor) -> Unit | None:
    """What ``module`` computes, asked once of each; ``features`` is what it was called with."""
    if module not in _known:
        _known[module] = _asked(module, features)
    return _known[module]


@torch.no_grad()
def norm_of(module: nn.Module, unit: Unit, features: Tensor) -> Norm:
    """The norm that ``module`` is at present: its weights may have changed since it was asked."""
    signs = _signs(unit.axes, features)
    rows = torch.stack([LARGE * signs, -LARGE * signs, SMALL * signs])
    above, below, small = module.forward(rows.to(features.dtype)).to(signs.dtype)
    bias, odd = (above + below) / 2, (above - below) / 2
    kept = signs - signs.mean(dim=-1, keepdim=True) if unit.centres else signs
    square = kept.square().mean(dim=-1, keepdim=True)
    weight = odd * torch.sqrt(square) / kept
    # At the small scale c the output is smaller by √(c²σ² / (c²σ² + ε)).
    shrunk = (odd * (small - bias)).sum(dim=-1, keepdim=True) / odd.square().sum(-1, keepdim=True)
    added = SMALL**2 * square * (shrunk**-2 - 1)
    return Norm(weight, bias, unit.centres, added.clamp(min=0.0).nan_to_num(0.0))


def _signs(axes: tuple[int, ...], features: Tensor) -> Tensor:
    """+1 and −1 in turn: mean 0 and deviation 1 where the width is even."""
    wide = torch.promote_types(features.dtype, torch.float32)
    signs = torch.ones(axes, dtype=wide, device=features.device)
    signs[..., 1::2] = -1.0
    return signs


def _asked(module: nn.Module, features: Tensor) -> Unit | None:
    if isinstance(module, nn.Linear):  # quantised, say: affine but for its rounding
        return Unit(Operation.MAP)
    width = features.shape[-1]
    if features.dim() < 2 or width < 4 or not features.is_floating_point():
        return None
    lone = (1,) * (features.dim() - 2)
    # Norms of a head's queries may have a weight for each head.
    for axes in dict.fromkeys([(*lone, width), (*lone[1:], *features.shape[-2:])]):
        try:
            unit = _unit(module, features, axes)
        except (RuntimeError, ValueError, TypeError, IndexError):
            continue  # it does not take numbers of this shape
        if unit is not None:
            return unit
    return None


def _unit(module: nn.Module, features: Tensor, axes: tuple[int, ...]) -> Unit | None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.promote_types(features.dtype, torch.float32)
    several = tuple(
        3 if size == 1 else size for size in axes
    )  # of each axis, so that none is mixed unseen
    rows = torch.randn(3, *several, generator=generator, dtype=wide).to(features.device) * 2
    first, second, chosen = rows
    other = torch.where(chosen > 0, first, second)
    asked = torch.stack([first, second, other, first + second, torch.zeros_like(first), first + 1])
    asked = asked.to(features.dtype)
    answers: Any = module.forward(asked)
    if not isinstance(answers, Tensor) or answers.shape[:-1] != asked.shape[:-1]:
        return None
    y, z, mixed, added, nothing, shifted = answers.to(wide)
    # The same but for rounding, which some modules do in float32.
    allowed = max(8 * torch.finfo(features.dtype).eps, 2e-5) * float(y.abs().max())

    def near(one: Tensor, other: Tensor) -> bool:
        return bool((one - other).abs().max() <= allowed)

    if near(added + nothing, y + z):  # affine
        return Unit(Operation.MAP)
    if answers.shape != asked.shape:
        return None
    if near(mixed, torch.where(chosen > 0, y, z)):
        return Unit(Operation.ACTIVATION)
    unit = Unit(Operation.NORM, near(shifted, y), axes)
    answered = norm_of(module, unit, features)(asked[:2].to(wide))
    return unit if near(answered[0], y) and near(answered[1], z) else None
