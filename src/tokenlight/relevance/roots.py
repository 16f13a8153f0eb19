"""Activations that a model writes out in elementary operations, outside any module of their own.

ESM writes its GELU as ``x * 0.5 * (1 + erf(x / √2))``: taken as a product of two activations, half of
the relevance would go to each. But y_i depends on x_i alone, so it is one activation of x.
"""

from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from tokenlight.relevance.case import Operation
from tokenlight.relevance.operations import Call


class Root(NamedTuple):
    """What a value was made from, element by element; ``bent``: not only scaled and shifted."""

    tensor: Tensor
    bent: bool


class Roots:
    """The roots of the values of one forward pass."""

    def __init__(self) -> None:
        self._found: Any = WeakIdKeyDictionary()

    def clear(self) -> None:
        """Let go of every value."""
        self._found.clear()

    def read(self, call: Call) -> tuple[Call, Root | None]:
        """The call, as an activation of its root where it is one, and that root."""
        root = self._root(call)
        if root is None or not root.bent:
            return call, root
        return Call(Operation.ACTIVATION, (root.tensor,)), root

    def remember(self, value: Any, root: Root | None) -> None:
        """That ``value`` was made from ``root``."""
        if root is not None and value.shape == root.tensor.shape:
            self._found[value] = root

    def _root(self, call: Call) -> Root | None:
        operation, (first, *others) = call.operation, call.operands or (None,)
        if first is None:
            return None
        root = self._found.get(first, Root(first, bent=False))
        if operation is Operation.ACTIVATION:
            return Root(root.tensor, bent=True)
        if operation in (Operation.SCALE, Operation.SHIFT):
            return root if others[0] is None else None  # by a number
        if operation in (Operation.ADD, Operation.GATE):
            other = self._found.get(others[0], Root(others[0], bent=False))  # type: ignore[arg-type]
            if other.tensor is root.tensor:
                return Root(root.tensor, root.bent or other.bent or operation is Operation.GATE)
        return None
