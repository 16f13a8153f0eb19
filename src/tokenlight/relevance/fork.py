"""One value, several ways back: the model's own gradient, relevance by a rule, a rewritten gradient."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tokenlight.relevance.case import Operation, RuleCase, RuleSet
from tokenlight.relevance.division import stabilised
from tokenlight.relevance.gradients import norm_scale


class Passage:
    """What the backward passes over one recorded forward carry: gradient, unless told otherwise.

    The state lives here and not in the thread, since autograd runs a device's backward in a thread
    of its own. ``examples`` is the size of the batch; ``ruled``: whether rules may be carried.
    """

    def __init__(self, examples: int, *, ruled: bool = True) -> None:
        self.examples, self.ruled = examples, ruled
        self.rules: RuleSet | None = None

    @contextmanager
    def carrying(self, rules: RuleSet) -> Iterator[None]:
        """Backward passes inside the ``with`` carry relevance by ``rules``."""
        before, self.rules = self.rules, rules
        try:
            yield
        finally:
            self.rules = before

    def fork(
        self, operation: Operation, value: Tensor, operands: tuple[Tensor | None, ...], detail: Any
    ) -> Tensor:
        """``value``, which the model computed from ``operands``, with a rule's way back as well."""
        for operand in operands if self.ruled else ():
            made_by = None if operand is None else operand.grad_fn
            # The node of a value is the context of the fork that made it.
            if getattr(made_by, "_forward_cls", None) is Fork:
                made_by.consumers += 1  # type: ignore[union-attr]
        forked: Tensor = Fork.apply(self, operation, detail, value, *operands)  # type: ignore[no-untyped-call]
        return forked

    def shared(self, operation: Operation, operands: Sequence[Any], of: int = 0) -> list[Any]:
        """``operands`` of a product, each with its share of the gradient where that is rewritten;
        ``of``: with the share that each of so many factors would have."""
        active = tuple(isinstance(one, Tensor) and one.requires_grad for one in operands)
        given = [one for one, on in zip(operands, active, strict=True) if on]
        found = iter(Share.apply(self, operation, active if not of else (True,) * of, *given))  # type: ignore[no-untyped-call]
        return [next(found) if on else one for one, on in zip(operands, active, strict=True)]


def carrying(passage: Passage | None, rules: RuleSet | None) -> AbstractContextManager[None]:
    """Within: backward passes carry gradients rewritten by ``rules``; None: the model's own."""
    if rules is None:
        return nullcontext()
    assert passage is not None, "this recording was made without Site.RELEVANCE_GRADIENT"
    return passage.carrying(rules)


class Fork(torch.autograd.Function):
    """Hand on ``value``. Its gradient goes back into the graph in which the model computed it; what
    a rule answers skips that graph and goes to the operands."""

    @staticmethod
    def forward(
        ctx: Any, passage: Passage, operation: Operation, detail: Any, value: Tensor, *operands: Any
    ) -> Tensor:
        ctx.passage, ctx.operation, ctx.detail = passage, operation, detail
        ctx.consumers = 0  # operations that read the value
        if operation is Operation.NORM and not passage.ruled:  # then neither of these is needed
            ctx.save_for_backward(None, norm_scale(operands[0], *detail), *operands[1:])
        else:
            ctx.save_for_backward(value, *operands)
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
            elif ctx.operation is Operation.NORM and passage.ruled:
                operands[0] = norm_scale(operands[0], *ctx.detail)
            case = RuleCase(value, tuple(operands), passage.examples, ctx.detail, active)
            found = rules.rules[ctx.operation](carried, case)
        return None, None, None, None, *found, *(None for _ in active[len(found) :])


class Share(torch.autograd.Function):
    """Hand on the operands of a product that are activations, and of each one's gradient the share
    that the rule set gives it."""

    @staticmethod
    def forward(
        ctx: Any,
        passage: Passage,
        operation: Operation,
        active: tuple[bool, ...],
        *operands: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.shared = passage, operation, active
        ctx.set_materialize_grads(False)
        return tuple(operand.detach() for operand in operands)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        shares = zip(incoming, Share.kept(ctx, ctx.shared[0].rules), strict=False)
        found = (
            None if carried is None or not kept else carried if kept == 1 else carried * kept
            for carried, kept in shares
        )
        return None, None, None, *found

    @staticmethod
    def kept(ctx: Any, rules: RuleSet | None) -> list[float]:
        """The share of each one's gradient that ``rules`` leave."""
        _, operation, active = ctx.shared
        split = None if rules is None else rules.splits.get(operation)
        shares = (1.0,) * len(active) if split is None else split(active)
        return [share for share, on in zip(shares, active, strict=True) if on]
