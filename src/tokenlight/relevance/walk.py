"""After the forward: is every operation between the output and the lowest layer understood?"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.case import RuleSet
from tokenlight.relevance.fork import Share

# Operations that only move numbers: autograd's own backward carries relevance through them.
_STRUCTURAL = frozenset(
    {
        "AccumulateGrad", "Alias", "AsStrided", "Cat", "Chunk", "Clone", "ConstantPadNd", "Copy",
        "Expand", "Flip", "Gather", "Index", "IndexPut", "IndexSelect", "MaskedFill", "MaskedScatter",
        "Max", "Movedim", "Narrow", "Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice",
        "Split", "SplitWithSizes", "Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "Unfold",
        "UnsafeSplit", "UnsafeView", "Unsqueeze", "View", "Where",
    }
)  # fmt: skip


def _plain(node: Any) -> str:
    """``ViewBackward0`` as ``View``."""
    name = str(node.name()) if hasattr(node, "name") else type(node).__name__
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("s").removesuffix("Backward")


def is_structural(node: Any) -> bool:
    """Whether the graph's node only moves numbers."""
    return _plain(node) in _STRUCTURAL


def is_fork(node: Any) -> bool:
    """Whether the graph's node is one of ours."""
    return node is not None and _plain(node) == "Fork"


def is_share(node: Any) -> bool:
    """Whether the graph's node hands on the factors of a product."""
    return _plain(node) == "Share"


def tensors(made: Any) -> list[Tensor]:
    """The tensors on the graph among what a call gave."""
    found = made if isinstance(made, tuple | list) else (made,)
    return [one for one in found if isinstance(one, Tensor) and one.grad_fn is not None]


def nodes_above(made: Tensor, before: set[Any]) -> Iterator[Any]:
    """The nodes from ``made`` down to those in ``before``, forks and leaves, which are left out."""
    pending: list[Any] = [made.grad_fn]
    seen = {None, *before}
    while pending:
        node = pending.pop()
        if node not in seen and not is_fork(node):
            seen.add(node)
            yield node
            pending.extend(below for below, _ in node.next_functions)


def unshifted(scores: Any, shifted: Mapping[Any, Tensor]) -> Tensor | None:
    """What ``scores`` were before constants were added to them (a mask; ALiBi, which MPT counts from
    the end of the padded row), if any were; ``shifted``: what was, by the node of its sum."""
    node, found = scores.grad_fn, None
    while node is not None:
        if node in shifted:
            found, node = shifted[node], node.next_functions[1][0]
        elif is_structural(node) and node.next_functions:
            node = node.next_functions[0][0]
        else:
            break
    return found if found is not None and found.shape == scores.shape else None


class Strangers:
    """Operations without a rule, with the module that called them; and the nodes of those whose own
    gradient is relevant. Holds the graph's nodes, so it must not outlive the check."""

    def __init__(self, model: nn.Module, *, watching: bool = True) -> None:
        self._model, self.watching = model, watching
        self.found: dict[Any, tuple[str, str]] = {}
        self.known: set[Any] = set()

    def know(self, made: Any, before: set[Any]) -> None:
        """That what was ``made`` above the nodes ``before`` is an operation that is understood."""
        for one in tensors(made):
            self.known.update(n for n in nodes_above(one, before) if n not in self.found)

    def add(self, node: Any, operation: str, module: nn.Module | None) -> None:
        """Remember who made ``node``."""
        path = next((name for name, m in self._model.named_modules() if m is module), "")
        owner = "" if module is None else f"{path} ({type(module).__name__})".strip()
        # A call that hands its argument on (dropout at rest) is not the one that made the node.
        self.found.setdefault(node, (operation, owner))

    def describe(self, node: Any) -> str:
        """Operation and module of ``node`` in words."""
        if node in self.found:
            operation, owner = self.found[node]
            return f"the operation {operation!r} in {owner or 'a function outside any module'}"
        return f"the operation {_plain(node)!r}, which torch's function mode does not show"


def check(
    outputs: Iterable[Tensor], floor: Tensor, strangers: Strangers, rules: RuleSet | None = None
) -> None:
    """Raise UnsupportedModel unless every node on the paths of relevance from ``outputs`` down to
    ``floor`` is a fork or only moves numbers; where ``rules`` rewrite gradients, those on the paths
    of the gradient."""
    pending = [tensor.grad_fn for tensor in outputs]
    seen: set[Any] = {None, floor.grad_fn}
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            pending.extend(edge for edge, _ in _edges(node, strangers, rules))


def _edges(node: Any, strangers: Strangers, rules: RuleSet | None) -> Any:
    """Where relevance goes on from ``node``."""
    if is_fork(node):
        # The first edge leads into the graph of the value, where only gradients go.
        skips = rules is None or node.operation in rules.rules
        return node.next_functions[1:] if skips else node.next_functions[:1]
    if is_share(node):
        edges = zip(node.next_functions, Share.kept(node, rules), strict=True)
        return [edge for edge, kept in edges if kept]
    known = is_structural(node) or (rules is not None and node in strangers.known)
    if known and node not in strangers.found:
        return node.next_functions
    raise UnsupportedModel(
        f"{strangers.describe(node)} has no relevance rule, so relevance cannot be "
        "followed through this model; choose a method that needs none, such as attcat."
    )
