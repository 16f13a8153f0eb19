"""Which modules are one operation each: told by what they compute, not by what they are called.

A module that writes a norm or an activation out in elementary operations is a unit, since its parts
have no rule of their own (NewGELU written out leaks a thousandth). It is given a few rows of numbers:
where y_i depends on x_i alone and not linearly it is an activation; where it answers as a norm would,
it is that norm; where it is affine, a map. Whatever is none of these is looked at operation by operation.

An activation may be written out outside any module of its own, too: ESM's GELU is no product of two
activations, ``x * 0.5`` and ``1 + erf(x / √2)``, but one activation of its root x.
"""

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from tokenlight.relevance.operations import Call
from tokenlight.relevance.rules import Operation

LARGE, SMALL = 2.0**13, 2.0**-10  # scales at which a norm's stabiliser means nothing, and something


class Norm(NamedTuple):
    """A norm over the last axis: weight and bias, whether it subtracts the mean, its stabiliser."""

    weight: Tensor | None
    bias: Tensor | None
    centres: bool
    stabiliser: Tensor | float

    def __call__(self, rows: Tensor) -> Tensor:
        """The norm of ``rows``, written out."""
        kept = rows - rows.mean(dim=-1, keepdim=True) if self.centres else rows
        square = kept.square().mean(dim=-1, keepdim=True)
        normed = kept * torch.rsqrt(square + self.stabiliser)
        weighted = normed if self.weight is None else normed * self.weight
        return weighted if self.bias is None else weighted + self.bias


# Where a module keeps the numbers of its norm: the names of weight, with what is added to it, and bias
# (None where it has none), and the stabiliser.
Written = tuple[str | None, float, str | None, float]


class Unit(NamedTuple):
    """What a module is: an operation; of a norm whether it centres, the axes its weight has, and
    where its numbers are, if that could be found out."""

    operation: Operation
    centres: bool = False
    axes: tuple[int, ...] = ()
    written: Written | None = None


_known: WeakKeyDictionary[nn.Module, Unit | None] = WeakKeyDictionary()


def is_candidate(module: nn.Module) -> bool:
    """Whether the module may be a unit: it has no parts, and is none of torch's own, which call one
    function each."""
    own = type(module).__module__.startswith("torch.nn.modules")
    return not own and next(iter(module._modules.values()), None) is None


def unit_of(module: nn.Module, features: Tensor) -> Unit | None:
    """What ``module`` computes, asked once of each; ``features`` is what it was called with."""
    if module not in _known:
        _known[module] = _asked(module, features) if is_candidate(module) else None
    return _known[module]


def norm_of(module: nn.Module, unit: Unit, features: Tensor) -> Norm:
    """The norm that ``module`` is at present: its weights may have changed since it was asked."""
    if unit.written is None:
        return _measured(module, unit, features)
    name, plus, bias, stabiliser = unit.written
    weight: Any = None if name is None else getattr(module, name)
    added = None if bias is None else getattr(module, bias)
    if plus:  # in float32, as models do: half precision would round the sum
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + plus
    return Norm(weight, added, unit.centres, stabiliser)


@torch.no_grad()
def _measured(module: nn.Module, unit: Unit, features: Tensor) -> Norm:
    """The norm as it answers, whatever its numbers are called."""
    wide = torch.promote_types(features.dtype, torch.float32)
    # +1 and −1 in turn: mean 0 and deviation 1 where the width is even.
    signs = torch.ones(unit.axes, dtype=wide, device=features.device)
    signs[..., 1::2] = -1.0
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


@torch.no_grad()
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
    # Several of each axis, so that none is mixed unseen.
    several = tuple(3 if size == 1 else size for size in axes)
    rows = torch.randn(3, *several, generator=generator, dtype=wide).to(features.device) * 2
    first, second, chosen = rows
    other = torch.where(chosen > 0, first, second)
    # Rows of thousands of numbers have nearly one deviation, and a norm of them differs from an activation
    # by less than half precision rounds, unless some of the numbers are far larger.
    apart = torch.where(chosen > 0, first, 16 * second)
    nothing = torch.zeros_like(first)
    asked = torch.stack([first, second, other, apart, first + second, nothing, first + 1])
    asked = asked.to(features.dtype)
    answers: Any = module.forward(asked)
    if not isinstance(answers, Tensor) or answers.shape[:-1] != asked.shape[:-1]:
        return None
    y, z, mixed, spread, added, nothing, shifted = answers.to(wide)
    # The same but for rounding, which some modules do in float32.
    allowed = max(8 * torch.finfo(features.dtype).eps, 2e-5) * float(y.abs().max())

    def near(one: Tensor, other: Tensor) -> bool:
        return bool((one - other).abs().max() <= allowed)

    if near(added + nothing, y + z):  # affine
        return Unit(Operation.MAP)
    if answers.shape != asked.shape:
        return None
    if near(mixed, torch.where(chosen > 0, y, z)) and near(torch.where(chosen > 0, spread, y), y):
        return Unit(Operation.ACTIVATION)
    unit = Unit(Operation.NORM, near(shifted, y), axes)
    answered = norm_of(module, unit, features)(asked[:2].to(wide))
    if not (near(answered[0], y) and near(answered[1], z)):
        return None
    return unit._replace(written=_written(module, unit, features))


def _written(module: nn.Module, unit: Unit, features: Tensor) -> Written | None:
    """Which of the module's parameters its weight and bias are, found by answers with others in their
    places, and which of its numbers the stabiliser; None where any of this is not plain to see."""
    own = dict(module._parameters)
    numbers = [one for one in vars(module).values() if isinstance(one, float) and 0 <= one < 1e-2]
    if any(p is not None and p.is_meta for p in own.values()) or len(set(numbers)) != 1:
        return None
    generator = torch.Generator().manual_seed(1)
    others = {
        name: nn.Parameter(torch.randn(p.shape, generator=generator).to(p), requires_grad=False)
        for name, p in own.items()
        if p is not None
    }
    try:
        module._parameters.update(others)
        norm: Any = _measured(module, unit, features)
    finally:
        module._parameters.update(own)
    rounding = 4 * max(8 * torch.finfo(features.dtype).eps, 2e-5)

    def same(found: Tensor, given: Tensor) -> bool:
        fits = given.dim() == 0 or given.numel() == found.numel()
        return fits and bool((found.flatten() - given.to(found).flatten()).abs().max() <= rounding)

    weights = ((name, plus, p + plus) for name, p in others.items() for plus in (0.0, 1.0))
    given = (*weights, (None, 0.0, torch.ones(())))
    weighted = [(name, plus) for name, plus, p in given if same(norm.weight, p)]
    biases = (*others.items(), (None, torch.zeros(())))
    shifted = [name for name, p in biases if same(norm.bias, p)]
    off = float((norm.stabiliser - numbers[0]).abs().max())
    plain = weighted and shifted and off <= 0.1 * numbers[0] + rounding * SMALL**2
    return (*weighted[0], shifted[0], numbers[0]) if plain else None


class Root(NamedTuple):
    """What a value was made from, element by element; ``bent``: not only scaled and shifted."""

    tensor: Tensor
    bent: bool = False


class Roots(WeakIdKeyDictionary):
    """The roots of the values of one forward pass."""

    def read(self, call: Call) -> tuple[Call, Root | None]:
        """The call, as an activation of its root where it is one, and that root."""
        root = self._root(call)
        if root is not None and root.bent:
            call = Call(Operation.ACTIVATION, (root.tensor,))
        return call, root

    def remember(self, value: Any, root: Root | None) -> None:
        """That ``value`` was made from ``root``."""
        if root is not None and value.shape == root.tensor.shape:
            self[value] = root

    def _root(self, call: Call) -> Root | None:
        operation, (first, *others) = call.operation, call.operands or (None,)
        if first is None:
            return None
        root: Root = self.get(first, Root(first))  # type: ignore[no-untyped-call]
        if operation is Operation.ACTIVATION:
            return Root(root.tensor, bent=True)
        if operation in (Operation.SCALE, Operation.SHIFT):
            return root if others[0] is None else None  # by a number
        if operation in (Operation.ADD, Operation.GATE):
            other = self.get(others[0], Root(others[0]))  # type: ignore[no-untyped-call, arg-type]
            if other.tensor is root.tensor:
                return Root(root.tensor, root.bent or other.bent or operation is Operation.GATE)
        return None
