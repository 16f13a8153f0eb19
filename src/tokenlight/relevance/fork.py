"""One value, two ways back: the model's own gradient, or relevance by a rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tokenlight.relevance.case import Case, Operation, RuleSet
from tokenlight.relevance.division import stabilised


class Passage:
    """What the backward passes over one recorded forward carry: gradient, unless told otherwise.

    The state lives here and not in the thread, since autograd runs a device's backward in a thread
    of its own. ``examples`` is the size of the batch.
    """

    def __init__(self, examples: int) -> None:
        self.examples = examples
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
        """``value``, which the model computed from ``operands``, with both ways back."""
        for operand in operands:
            made_by = None if operand is None else operand.grad_fn
            # The node of a value is the context of the fork that made it.
            if getattr(made_by, "_forward_cls", None) is Fork:
                made_by.consumers += 1  # type: ignore[union-attr]
        forked: Tensor = Fork.apply(self, operation, detail, value, *operands)  # type: ignore[no-untyped-call]
        return forked


class Fork(torch.autograd.Function):
    """Hand on ``value``. Its gradient goes back into the graph in which the model computed it; its
    relevance skips that graph and goes to the operands."""

    @staticmethod
    def forward(
        ctx: Any,
        passage: Passage,
        operation: Operation,
        detail: Any,
        value: Tensor,
        *operands: Tensor | None,
    ) -> Tensor:
        ctx.forked = passage, operation, detail
        ctx.consumers = 0  # operations that read the value
        ctx.save_for_backward(value, *operands)
        ctx.set_materialize_grads(False)  # the way not taken stays empty and costs nothing
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        (carried,) = incoming
        passage, operation, detail = ctx.forked
        rules: RuleSet | None = passage.rules
        if carried is None or rules is None:
            return None, None, None, carried, *(None,) * (len(ctx.needs_input_grad) - 4)
        value, *operands = ctx.saved_tensors
        if rules.divides_clones and ctx.consumers > 1:
            carried = stabilised(carried, value)
        case = Case(value, tuple(operands), passage.examples, detail)
        return None, None, None, None, *rules.rules[operation](carried, case)
