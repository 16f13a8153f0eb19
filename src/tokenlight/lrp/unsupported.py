"""Walk the autograd graph of a traced pass, and refuse operations that no rule covers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from tokenlight.errors import UnsupportedModel
from tokenlight.lrp.backward import GradientShare, RuleFunction, is_function_node
from tokenlight.lrp.rules import RuleSet

# Operations that only move values: autograd's own backward carries relevance through them.
STRUCTURAL_NODES = {
    "AccumulateGrad", "Alias", "AsStrided", "Cat", "Chunk", "Clone", "ConstantPadNd", "Copy", "Expand",
    "Flip", "Gather", "Index", "IndexPut", "IndexSelect", "MaskedFill", "MaskedScatter", "Max", "Movedim",
    "Narrow", "Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice", "Split", "SplitWithSizes",
    "Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "Unfold", "UnsafeSplit", "UnsafeView",
    "Unsqueeze", "View", "Where",
}  # fmt: skip


def get_operation_name(node: Any) -> str:
    """Return ``View`` for the node ``ViewBackward0``."""
    name = str(node.name()) if hasattr(node, "name") else type(node).__name__
    name = name.rpartition("::")[2].rstrip("0123456789")
    return name.removesuffix("s").removesuffix("Backward")


def is_structural(node: Any) -> bool:
    """Return whether a node only moves values."""
    return get_operation_name(node) in STRUCTURAL_NODES


def list_graph_tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors with a graph among the outputs of a call."""
    if not isinstance(outputs, tuple | list):
        outputs = (outputs,)
    tensors = []
    for value in outputs:
        if isinstance(value, Tensor) and value.grad_fn is not None:
            tensors.append(value)
    return tensors


def list_input_nodes(arguments: Sequence[Any]) -> set[Any]:
    """Return the nodes that made the arguments of a call."""
    nodes: set[Any] = set()
    for argument in arguments:
        nodes.update(tensor.grad_fn for tensor in list_graph_tensors(argument))
    return nodes


def iter_new_nodes(
    output: Tensor, input_nodes: set[Any], stop: type = RuleFunction
) -> Iterator[Any]:
    """Yield the nodes from ``output`` down to, but not including, where a call began.

    Args:
        output: A tensor that the call returned.
        input_nodes: The nodes of its arguments.
        stop: Nodes of this function end the walk, too.
    """
    pending: list[Any] = [output.grad_fn]
    visited = {None, *input_nodes}
    while pending:
        node = pending.pop()
        if node in visited or is_function_node(node, stop):
            continue
        visited.add(node)
        yield node
        pending.extend(next_node for next_node, _ in node.next_functions)


def find_unshifted(scores: Any, unshifted_by_node: Mapping[Any, Tensor]) -> Tensor | None:
    """Return attention scores before constants were added to them; None if none were.

    Such constants are masks, and ALiBi, which MPT counts from the end of the padded row.

    Args:
        scores: The input of a softmax.
        unshifted_by_node: The activation of each sum of an activation and a constant, by its node.
    """
    node = scores.grad_fn
    unshifted = None
    while node is not None:
        if node in unshifted_by_node:
            unshifted = unshifted_by_node[node]
            node = node.next_functions[1][0]  # the activation; edge 0 leads to the sum itself
        elif is_structural(node) and node.next_functions:
            node = node.next_functions[0][0]
        else:
            break
    if unshifted is None or unshifted.shape != scores.shape:
        return None
    return unshifted


class UnsupportedOps:
    """Collects the operations of a pass without a rule, to refuse those on the path of relevance.

    It holds nodes of the graph, so it must not outlive the check.

    Args:
        model: The model, for the paths of its modules in messages.
        is_collecting: Whether operations are collected at all.

    Attributes:
        calls_by_node: The name and the module of each call without a rule, by the nodes it made.
        supported_nodes: Nodes of operations through which a rewritten gradient passes unchanged.
    """

    def __init__(self, model: nn.Module, *, is_collecting: bool = True) -> None:
        self._model = model
        self.is_collecting = is_collecting
        self.calls_by_node: dict[Any, tuple[str, str]] = {}
        self.supported_nodes: set[Any] = set()

    def mark_supported(self, outputs: Any, input_nodes: set[Any]) -> None:
        """Mark the nodes between the arguments of a supported call and its ``outputs``."""
        for tensor in list_graph_tensors(outputs):
            for node in iter_new_nodes(tensor, input_nodes):
                if node not in self.calls_by_node:
                    self.supported_nodes.add(node)

    def add(self, node: Any, operation: str, module: nn.Module | None) -> None:
        """Remember that ``operation``, called in ``module``, made ``node``."""
        owner = "a function outside any module"
        if module is not None:
            paths = (name for name, part in self._model.named_modules() if part is module)
            owner = f"{next(paths, '')} ({type(module).__name__})".strip()
        # A call that returns its argument (dropout in evaluation mode) did not make the node.
        self.calls_by_node.setdefault(node, (operation, owner))

    def check(
        self, outputs: Iterable[Tensor], lowest: Tensor, rules: RuleSet | None = None
    ) -> None:
        """Check that relevance can be followed from ``outputs`` down to ``lowest``.

        Args:
            outputs: Tensors at which relevance starts.
            lowest: The tensor at which it ends.
            rules: Rules that rewrite gradients; None for rules that carry relevance.

        Raises:
            UnsupportedModel: An operation on the path has no rule and does more than move values.
        """
        pending = [tensor.grad_fn for tensor in outputs]
        visited: set[Any] = {None, lowest.grad_fn}
        while pending:
            node = pending.pop()
            if node not in visited:
                visited.add(node)
                pending.extend(
                    next_node for next_node, _ in self._list_relevance_edges(node, rules)
                )

    def _list_relevance_edges(self, node: Any, rules: RuleSet | None) -> Any:
        """Return the edges along which relevance goes on from ``node``."""
        if is_function_node(node):
            # The first edge leads into the graph of the value, where only gradients go.
            skips_graph = rules is None or node.operation in rules.rules
            if skips_graph:
                return node.next_functions[1:]
            return node.next_functions[:1]
        if is_function_node(node, GradientShare):
            shares = GradientShare.resolve_shares(node, rules)
            edges = []
            for edge, share in zip(node.next_functions, shares, strict=True):
                if share:
                    edges.append(edge)
            return edges
        self._check_node(node, rules)
        return node.next_functions

    def _check_node(self, node: Any, rules: RuleSet | None) -> None:
        """Refuse a node that is neither structural nor, for rewritten gradients, known to be linear."""
        if node in self.calls_by_node:
            operation, owner = self.calls_by_node[node]
            raise UnsupportedModel(
                f"The operation {operation!r} in {owner} has no relevance rule, so relevance cannot be "
                "followed through this model. Use a method that needs none, such as attcat.",
                code="operation-without-rule",
            )
        is_supported = rules is not None and node in self.supported_nodes
        if not is_supported and not is_structural(node):
            raise UnsupportedModel(
                f"The internal torch operation {get_operation_name(node)!r} "
                "has no relevance rule, so relevance cannot be followed through this model. Use a method "
                "that needs none, such as attcat.",
                code="hidden-operation-without-rule",
            )
