"""Run an unmodified model so that its one forward serves gradient and relevance alike."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokenlight.relevance.case import Operation
from tokenlight.relevance.fork import Passage
from tokenlight.relevance.operations import AUGMENTED, READERS, REWRITES, active
from tokenlight.relevance.walk import Strangers, is_fork, is_structural, nodes_above

# Modules that write a norm or an activation out in elementary operations: one unit each, since
# their parts have no relevance rule of their own (NewGELU written out leaks a thousandth).
_NORM = re.compile(r"(Norm|LayerNorm|RMSNorm)\d*$")
_ACTIVATION = re.compile(r"(GELU|Gelu|SiLU|ReLU|Swish|Tanh|Activation)$")
_FORKED = READERS.keys() | REWRITES.keys() | AUGMENTED.keys()


@contextmanager
def forked(
    model: nn.Module, *, examples: int, watch: bool = True
) -> Iterator[tuple[Passage, Strangers]]:
    """Every operation inside the ``with`` keeps its value and gets a second way back.

    ``examples`` is the size of the batch. Also given: the operations that were not understood, for
    :func:`tokenlight.relevance.walk.check`; without ``watch``, for a pass whose like was checked
    before, they are not looked for. Values and gradients stay the model's own.
    """
    passage, strangers = Passage(examples), Strangers(model)
    mode = _Forking(passage, strangers, watch=watch)
    handles = [handle for module in modules_of(model) for handle in _unit_hooks(module, mode)]
    try:
        with mode:
            yield passage, strangers
    finally:
        for handle in handles:
            handle.remove()


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The model and every module in it, each once: ``model.modules()`` in a fifth of its time."""
    modules: list[nn.Module] = [model]
    seen: set[nn.Module] = {model}
    for module in modules:  # grows as it is walked
        if module._modules:
            for child in module._modules.values():
                if child is not None and child not in seen:
                    seen.add(child)
                    modules.append(child)
    return modules


class _Forking(TorchFunctionMode):
    """Swap each call for a fork; inside a unit, leave it alone."""

    def __init__(self, passage: Passage, strangers: Strangers, *, watch: bool) -> None:
        super().__init__()
        self.passage = passage
        self.watch = watch
        self.strangers = strangers
        self.depth = 0  # of units entered

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        # Most calls only move numbers, and a model makes hundreds: out with them first.
        if self.depth or not (self.watch or name in _FORKED) or not torch.is_grad_enabled():
            return func(*args, **keywords)
        given = (*args, *keywords.values())
        if not any(map(_holds_active, given)):
            return func(*args, **keywords)
        if name in AUGMENTED and _is_augmented_assignment(sys._getframe(1)):
            func = AUGMENTED[name]
            name = func.__name__
        reader = READERS.get(name)
        reading = reader(*args, **keywords) if reader is not None else None
        if reading is None and name in REWRITES and sum(map(active, given)) > 1:
            with self:
                return REWRITES[name](*args, **keywords)
        if reading is None:
            return self._watched(func, args, keywords) if self.watch else func(*args, **keywords)
        value = func(*args, **keywords)
        return self.passage.fork(reading.operation, value, reading.operands, reading.detail)

    def _watched(self, func: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A call without a rule goes through; where it does more than move numbers, or overwrites
        what a rule will read, the nodes it puts into the graph are remembered by its name."""
        name = getattr(func, "__name__", "")
        before = {value.grad_fn for value in args if isinstance(value, Tensor)}
        spoils = name.endswith("_") and not name.endswith("__") and is_fork(args[0].grad_fn)
        made = func(*args, **keywords)
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                for node in nodes_above(tensor, before):
                    if not is_structural(node) or (spoils and node is tensor.grad_fn):
                        self.strangers.add(node, name, _calling_module())
        return made


def _holds_active(value: Any) -> bool:
    return active(value) or (isinstance(value, tuple | list) and any(map(active, value)))


def _is_augmented_assignment(frame: FrameType) -> bool:
    """Whether the caller wrote ``x += y``, which binds x to whatever comes back, and not
    ``x.add_(y)``, after which others may still hold the old x."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "BINARY_OP"


def _calling_module() -> nn.Module | None:
    frame = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _unit_hooks(module: nn.Module, mode: _Forking) -> list[Any]:
    operation = _unit(module)
    if operation is None:
        return []
    # A norm with a bias subtracts the mean; RMSNorm has none.
    centres = getattr(module, "bias", None) is not None
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", 0.0))
    detail = (centres, epsilon) if operation is Operation.NORM else None
    constants = (getattr(module, "weight", None),) if operation is Operation.NORM else ()

    def enter(_module: nn.Module, _args: Any) -> None:
        mode.depth += 1

    def leave(_module: nn.Module, args: Any, output: Any) -> Any:
        mode.depth -= 1
        alone = isinstance(output, Tensor) and len(args) == 1 and active(args[0])
        if mode.depth or not alone or not output.requires_grad or output.shape != args[0].shape:
            return None
        return mode.passage.fork(operation, output, (args[0], *constants), detail)

    return [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave, always_call=True),
    ]


def _unit(module: nn.Module) -> Operation | None:
    kind = type(module)
    operation = _unit_named(kind.__module__, kind.__name__)
    if operation is None or kind.forward is nn.LayerNorm.forward:
        return None
    trained = operation is Operation.ACTIVATION and next(module.parameters(), None) is not None
    return None if trained or next(module.children(), None) is not None else operation


@cache
def _unit_named(home: str, name: str) -> Operation | None:
    if _NORM.search(name):
        return Operation.NORM
    if home == "transformers.activations" or _ACTIVATION.search(name):
        return Operation.ACTIVATION
    return None
