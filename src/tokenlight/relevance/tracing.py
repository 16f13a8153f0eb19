"""Run an unmodified model so that its one forward serves gradient and relevance alike."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokenlight.relevance.case import WITHOUT_RULE, Operation
from tokenlight.relevance.fork import Passage
from tokenlight.relevance.operations import AUGMENTED, READERS, REWRITES, Call, active
from tokenlight.relevance.roots import Roots
from tokenlight.relevance.units import Unit, is_candidate, norm_of, unit_of
from tokenlight.relevance.walk import Strangers, is_fork, is_structural, nodes_above, unshifted

_READ = READERS.keys() | REWRITES.keys() | AUGMENTED.keys()
_NONLINEAR = frozenset(
    {Operation.ACTIVATION, Operation.NORM}
)  # a rewritten gradient replaces theirs


@dataclass(frozen=True)
class Ways:
    """The ways back that one forward must offer: relevance by ``rules``, rewritten ``gradients``,
    the model's ``own`` gradients. Without ``rules`` the graph is the model's own but for the few
    operations whose gradient is rewritten."""

    rules: bool = True
    gradients: bool = False
    own: bool = True


@contextmanager
def forked(
    model: nn.Module, *, examples: int, watch: bool = True, ways: Ways | None = None
) -> Iterator[tuple[Passage, Strangers]]:
    """Every operation inside the ``with`` keeps its value and gets other ways back.

    ``examples`` is the size of the batch. Also given: the operations that were not understood, for
    :func:`tokenlight.relevance.walk.check`; without ``watch``, for a pass whose like was checked
    before, they are not looked for. Values and gradients stay the model's own.
    """
    passage, strangers = Passage(examples), Strangers(model)
    mode = _Forking(passage, strangers, ways or Ways(), watch=watch)
    handles = [
        handle
        for module in modules_of(model)
        if is_candidate(module)
        for handle in _unit_hooks(module, mode)
    ]
    try:
        with mode:
            yield passage, strangers
    finally:
        mode.roots.clear()
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
    """Give each call its ways back; inside a unit, leave it alone."""

    def __init__(self, passage: Passage, strangers: Strangers, ways: Ways, *, watch: bool) -> None:
        super().__init__()
        self.passage, self.ways, self.watch = passage, ways, watch
        self.strangers = strangers
        self.roots = Roots()
        self.depth = 0  # of units entered

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        # Most calls only move numbers, and a model makes hundreds: out with them first.
        if self.depth or not (self.watch or name in _READ) or not torch.is_grad_enabled():
            return func(*args, **keywords)
        given = (*args, *keywords.values())
        if not any(map(_holds_active, given)):
            return func(*args, **keywords)
        if name in AUGMENTED and _is_augmented_assignment(sys._getframe(1)):
            func = AUGMENTED[name]
            name = func.__name__
        call = self._read(name, args, keywords)
        if call is None and name in REWRITES and sum(map(active, given)) >= REWRITES[name].least:
            with self:
                return REWRITES[name].written(*args, **keywords)
        if call is None:
            return self._watched(func, args, keywords) if self.watch else func(*args, **keywords)
        return self._taken(func, call, args, keywords)

    def _read(self, name: str, args: Any, keywords: Any) -> Call | None:
        reader = READERS.get(name)
        in_place = reader is None and name.endswith("_") and not name.endswith("__")
        if in_place and not self.ways.rules and not is_fork(args[0].grad_fn):
            reader = READERS.get(name[:-1])
        call = None if reader is None else reader(*args, **keywords)
        if call is None or (self.ways.rules and call.operation in WITHOUT_RULE):
            return None
        # What is rewritten would have to keep the value that is overwritten.
        rewritten = call.operation in _NONLINEAR or sum(map(active, call.factors)) > 1
        return None if in_place and rewritten else call

    def _taken(self, func: Callable[..., Any], call: Call, args: Any, keywords: Any) -> Any:
        """A call that is understood."""
        call, root = self.roots.read(call)
        replaced = call.operation in _NONLINEAR
        if self.ways.gradients and sum(map(active, call.factors)) > 1:
            shared = self.passage.shared(call.operation, call.factors)
            args, keywords = _exchanged(args, keywords, call.factors, shared)
        before = _made_by(args, keywords)
        # Nobody will ask for the gradient that a rewritten one replaces: its parts need not be kept.
        with torch.set_grad_enabled(self.ways.own or self.ways.rules or not replaced):
            value = func(*args, **keywords)
        if self.watch and self.ways.gradients:
            for made in _tensors(args[0] if value is None else value):  # ``x[i] = y`` gives None
                self.strangers.know(nodes_above(made, before))
        if self.ways.rules or replaced:
            operands = call.operands
            if call.operation is Operation.SOFTMAX:
                operands = (*operands, unshifted(operands[0]))
            value = self.passage.fork(call.operation, value, operands, call.detail)
        self.roots.remember(value, root)
        return value

    def _watched(self, func: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A call without a rule goes through; where it does more than move numbers, or overwrites
        what a rule will read, the nodes it puts into the graph are remembered by its name."""
        name = getattr(func, "__name__", "")
        before = _made_by(args, keywords)
        spoils = name.endswith("_") and not name.endswith("__") and is_fork(args[0].grad_fn)
        made = func(*args, **keywords)
        for tensor in _tensors(made):
            for node in nodes_above(tensor, before):
                if not is_structural(node) or (spoils and node is tensor.grad_fn):
                    self.strangers.add(node, name, _calling_module())
        return made


def _holds_active(value: Any) -> bool:
    return active(value) or (isinstance(value, tuple | list) and any(map(active, value)))


def _tensors(made: Any) -> list[Tensor]:
    """The tensors on the graph among what a call gave."""
    found = made if isinstance(made, tuple | list) else (made,)
    return [one for one in found if isinstance(one, Tensor) and one.grad_fn is not None]


def _made_by(args: Any, keywords: Any) -> set[Any]:
    """The graph's nodes that made the arguments of a call."""
    given = (*args, *keywords.values())
    return {one.grad_fn for value in given for one in _tensors(value)}


def _exchanged(
    args: Any, keywords: Any, old: Sequence[Any], new: Sequence[Any]
) -> tuple[Any, dict[str, Any]]:
    """A call's arguments with each of ``old`` replaced by its like in ``new``, in turn."""
    pending = list(zip(old, new, strict=True))

    def exchange(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(exchange, value))
        for place, (before, after) in enumerate(pending):
            if value is before:
                del pending[place]
                return after
        return value

    return tuple(map(exchange, args)), {name: exchange(value) for name, value in keywords.items()}


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
    """Make a module that is one operation a unit, for as long as it runs."""
    running: list[Unit | None] = []

    def enter(_module: nn.Module, args: Any) -> None:
        asked = not mode.depth and len(args) == 1 and active(args[0]) and torch.is_grad_enabled()
        unit = unit_of(module, args[0]) if asked else None
        running.append(unit)
        if unit is not None and unit.operation in _NONLINEAR:
            mode.depth += 1
            torch.set_grad_enabled(mode.ways.own or mode.ways.rules)

    def leave(_module: nn.Module, args: Any, output: Any) -> Any:
        unit = running.pop()
        if unit is None:
            return None
        if unit.operation is Operation.MAP:
            if mode.watch and mode.ways.gradients:
                for made in _tensors(output):
                    mode.strangers.know(nodes_above(made, {args[0].grad_fn}))
            return None
        torch.set_grad_enabled(True)
        mode.depth -= 1
        if not isinstance(output, Tensor):  # an error is on its way
            return None
        operands: tuple[Tensor, ...] = (args[0],)
        detail: Any = None
        if unit.operation is Operation.NORM:
            norm = norm_of(module, unit, args[0])
            operands, detail = (args[0], norm.weight, norm.bias), (norm.centres, norm.stabiliser)
        return mode.passage.fork(unit.operation, output, operands, detail)

    return [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave, always_call=True),
    ]
