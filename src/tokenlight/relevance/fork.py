"""One value, several ways back: the model's own gradient, relevance by a rule, a rewritten gradient;
and, after the forward, whether every operation on the way down is understood."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.attnlrp import constants
from tokenlight.relevance.rules import Operation, Parts, RuleCase, RuleSet, stabilised

# Operations that only move numbers: autograd's own backward carries relevance through them.
_STRUCTURAL = {
    "AccumulateGrad", "Alias", "AsStrided", "Cat", "Chunk", "Clone", "ConstantPadNd", "Copy", "Expand",
    "Flip", "Gather", "Index", "IndexPut", "IndexSelect", "MaskedFill", "MaskedScatter", "Max", "Movedim",
    "Narrow", "Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice", "Split", "SplitWithSizes",
    "Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "Unfold", "UnsafeSplit", "UnsafeView",
    "Unsqueeze", "View", "Where",
}  # fmt: skip


class Passage:
    """What the backward passes over one recorded forward carry: gradient, unless told otherwise. It is
    not kept by thread, since autograd runs a device's backward in a thread of its own. ``examples`` is
    the size of the batch; ``ruled``: whether rules may be carried; ``own``: the model's own gradients."""

    def __init__(self, examples: int, *, ruled: bool = True, own: bool = True) -> None:
        self.examples, self.ruled, self.own = examples, ruled, own
        self.rules: RuleSet | None = None

    def fork(self, operation: Operation, value: Tensor, operands: Parts, detail: Any) -> Tensor:
        """``value``, which the model computed from ``operands``, with a rule's way back as well."""
        for operand in operands if self.ruled else ():
            made_by: Any = None if operand is None else operand.grad_fn
            if is_fork(made_by):  # the node of a value is the context of the fork that made it
                made_by.consumers += 1
        forked: Tensor = Fork.apply(self, operation, detail, value, *operands)  # type: ignore[no-untyped-call]
        return forked

    def shared(self, operation: Operation, operands: Sequence[Any], of: int = 0) -> list[Any]:
        """``operands`` of a product, each with its share of the gradient where that is rewritten;
        ``of``: with the share that each of so many factors would have."""
        active = tuple(isinstance(one, Tensor) and one.requires_grad for one in operands)
        given = [one for one, on in zip(operands, active, strict=True) if on]
        how = self, operation, (True,) * of or active
        found = iter(Share.apply(how, *given))  # type: ignore[no-untyped-call]
        return [next(found) if on else one for one, on in zip(operands, active, strict=True)]


@contextmanager
def carrying(passage: Passage | None, rules: RuleSet | None) -> Iterator[None]:
    """Within: backward passes carry relevance, or gradients rewritten, by ``rules``; None: as before."""
    if rules is None:
        yield
        return
    assert passage is not None, "this recording was made without a site of relevance"
    before, passage.rules = passage.rules, rules
    try:
        yield
    finally:
        passage.rules = before


class Fork(torch.autograd.Function):
    """Hand on ``value``. Its gradient goes back into the graph in which the model computed it; what
    a rule answers skips that graph and goes to the operands."""

    @staticmethod
    def forward(
        ctx: Any, passage: Passage, operation: Operation, detail: Any, value: Tensor, *operands: Any
    ) -> Tensor:
        ctx.passage, ctx.operation, ctx.detail = passage, operation, detail
        ctx.consumers = 0  # operations that read the value
        # The graph of an activation's own gradient holds its input in any case.
        if passage.ruled or (passage.own and operation is Operation.ACTIVATION):
            ctx.save_for_backward(value, *operands)
        else:
            ctx.save_for_backward(None, *constants(operation, value, operands, detail))
        ctx.set_materialize_grads(False)  # the way not taken stays empty and costs nothing
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        (carried,), passage, active = incoming, ctx.passage, ctx.needs_input_grad[4:]
        rules: RuleSet | None = passage.rules
        if carried is None or rules is None or ctx.operation not in rules.rules:
            return None, None, None, carried, *(None for _ in active)
        rewrites = rules.rewrites_gradients
        # Rules compute in float32 at least: half precision cannot hold their stabilisers, and a
        # forward under autocast leaves operands of several dtypes.
        with nullcontext() if rewrites else torch.autocast(carried.device.type, enabled=False):
            value, *operands = ctx.saved_tensors
            if not rewrites:
                given = (carried, value, *operands)
                dtypes = (one.dtype for one in given if one is not None)
                dtype = reduce(torch.promote_types, dtypes, torch.float32)
                wide: Any = [None if one is None else one.to(dtype) for one in given]
                carried, value, *operands = wide
                if rules.divides_clones and ctx.consumers > 1:
                    carried = stabilised(carried, value)
            elif value is not None:
                operands = [*constants(ctx.operation, value, operands, ctx.detail)]
            case = RuleCase(value, tuple(operands), passage.examples, ctx.detail, active)
            found = rules.rules[ctx.operation](carried, case)
        return None, None, None, None, *found, *(None for _ in active[len(found) :])


class Share(torch.autograd.Function):
    """Hand on the operands of a product that are activations, and of each one's gradient the share
    that the rule set gives it."""

    @staticmethod
    def forward(ctx: Any, shared: Any, *operands: Tensor) -> tuple[Tensor, ...]:
        ctx.shared = shared  # passage, operation, which operands are activations
        ctx.set_materialize_grads(False)
        return tuple(operand.detach() for operand in operands)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        shares = zip(incoming, Share.kept(ctx, ctx.shared[0].rules), strict=False)
        found = (
            None if carried is None or not kept else carried if kept == 1 else carried * kept
            for carried, kept in shares
        )
        return None, *found

    @staticmethod
    def kept(ctx: Any, rules: RuleSet | None) -> list[float]:
        """The share of each one's gradient that ``rules`` leave."""
        _, operation, active = ctx.shared
        split = None if rules is None else rules.splits.get(operation)
        shares = (1.0,) * len(active) if split is None else split(active)
        return [share for share, on in zip(shares, active, strict=True) if on]


def is_fork(node: Any, kind: type = Fork) -> bool:
    """Whether the graph's node is one of ours: a fork, or (``kind``) the share of a product's factors."""
    return getattr(node, "_forward_cls", None) is kind


def _plain(node: Any) -> str:
    """``ViewBackward0`` as ``View``."""
    name = str(node.name()) if hasattr(node, "name") else type(node).__name__
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("s").removesuffix("Backward")


def is_structural(node: Any) -> bool:
    """Whether the graph's node only moves numbers."""
    return _plain(node) in _STRUCTURAL


def tensors(made: Any) -> list[Tensor]:
    """The tensors on the graph among what a call gave."""
    found = made if isinstance(made, tuple | list) else (made,)
    return [one for one in found if isinstance(one, Tensor) and one.grad_fn is not None]


def nodes_above(made: Tensor, before: set[Any], stop: type = Fork) -> Iterator[Any]:
    """The nodes from ``made`` down to those in ``before``, to forks (or another ``stop``) and leaves,
    which are left out."""
    pending: list[Any] = [made.grad_fn]
    seen = {None, *before}
    while pending:
        node = pending.pop()
        if node not in seen and not is_fork(node, stop):
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

    def check(self, outputs: Iterable[Tensor], floor: Tensor, rules: RuleSet | None = None) -> None:
        """Raise UnsupportedModel unless every node on the paths of relevance from ``outputs`` down to
        ``floor`` is a fork or only moves numbers; where ``rules`` rewrite gradients, those on the paths
        of the gradient."""
        pending = [tensor.grad_fn for tensor in outputs]
        seen: set[Any] = {None, floor.grad_fn}
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                pending.extend(edge for edge, _ in self._edges(node, rules))

    def _edges(self, node: Any, rules: RuleSet | None) -> Any:
        """Where relevance goes on from ``node``."""
        if is_fork(node):
            # The first edge leads into the graph of the value, where only gradients go.
            skips = rules is None or node.operation in rules.rules
            return node.next_functions[1:] if skips else node.next_functions[:1]
        if is_fork(node, Share):
            edges = zip(node.next_functions, Share.kept(node, rules), strict=True)
            return [edge for edge, kept in edges if kept]
        known = is_structural(node) or (rules is not None and node in self.known)
        if known and node not in self.found:
            return node.next_functions
        said = f"the operation {_plain(node)!r}, which torch's function mode does not show,"
        if node in self.found:
            operation, owner = self.found[node]
            said = f"the operation {operation!r} in {owner or 'a function outside any module'}"
        raise UnsupportedModel(
            f"{said} has no relevance rule, so relevance cannot be followed through this model; "
            "choose a method that needs none, such as attcat."
        )
