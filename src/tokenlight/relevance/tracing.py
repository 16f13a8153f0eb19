"""Run an unmodified model so that its one forward serves gradient and relevance alike."""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokenlight.relevance import fork
from tokenlight.relevance.fork import Passage, Strangers
from tokenlight.relevance.operations import AUGMENTED, READERS, REWRITES, Call, active
from tokenlight.relevance.rules import WITHOUT_RULE, Operation
from tokenlight.relevance.units import Roots, is_candidate, norm_of, unit_of

Function = Callable[..., Any]
_READ = READERS.keys() | REWRITES.keys() | AUGMENTED.keys()
# Neither do these rewrite a gradient, nor are they part of what does.
_PLAIN = frozenset({"linear", "addmm", "softmax", "sum", "mean"})
# A rewritten gradient replaces theirs.
_NONLINEAR = frozenset({Operation.ACTIVATION, Operation.NORM})
# What watched passes of a model showed of its modules, by their classes: no gradient is rewritten in
# their own code; their whole output goes through one product of activations (LlamaMLP), so that the
# gradient may be halved behind them as well; or neither. None: code that is in no module rewrites some.
_HARMLESS, _HALVED, _REWRITING = range(3)
_seen: WeakKeyDictionary[nn.Module, dict[type | None, int]] = WeakKeyDictionary()


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
    model: nn.Module,
    *,
    examples: int,
    watch: bool = True,
    ways: Ways | None = None,
    passage: Passage | None = None,
) -> Iterator[tuple[Passage, Strangers]]:
    """Every operation inside the ``with`` keeps its value and gets other ways back.

    ``examples`` is the size of the batch. Also given: the operations that were not understood. Without
    ``watch``, for a pass whose like was checked before, they are not looked for, and where nothing but
    gradients is rewritten modules that rewrite none are left alone. ``passage``: that of a pass which
    is computed again. Values and gradients stay the model's own.
    """
    ways, seen = ways or Ways(), _seen.setdefault(model, {})
    passage = passage or Passage(examples, ruled=ways.rules, own=ways.own)
    strangers = Strangers(model, watching=watch)
    mode = _Forking(passage, strangers, ways, seen)
    chosen = modules_of(model)
    if not watch:
        others = (
            () if mode.everywhere else {c for c in map(type, chosen) if seen.get(c) != _HARMLESS}
        )
        chosen = [module for module in chosen if is_candidate(module) or type(module) in others]
    before = [module.__dict__.get("forward") for module in chosen]
    try:
        for module in chosen:
            module.__dict__["forward"] = partial(mode.called, module, module.forward)
        with mode if mode.everywhere else nullcontext():
            yield passage, strangers
    finally:
        mode.roots.clear()
        for module, own in zip(chosen, before, strict=True):
            module.__dict__.pop("forward", None)
            if own is not None:
                module.__dict__["forward"] = own


def attended(passage: Passage, strangers: Strangers, attend: Function, *factors: Tensor) -> Any:
    """Fused attention over queries, keys and values, as one operation of a pass that is forked."""
    shared = passage.shared(Operation.ATTENTION, factors)
    with torch._C.DisableTorchFunction():
        made = attend(*shared)
    if strangers.watching:
        strangers.know(made, _made_by(shared))
    return made


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The model and every module in it, each once: ``model.modules()`` in a fifth of its time."""
    modules, seen = [model], {model}
    for module in modules:  # grows as it is walked
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                modules.append(child)
    return modules


class _Forking(TorchFunctionMode):
    """Give each call its ways back; inside a unit, leave it alone."""

    def __init__(
        self, passage: Passage, strangers: Strangers, ways: Ways, seen: dict[type | None, int]
    ) -> None:
        super().__init__()
        self.passage, self.strangers, self.ways, self.seen = passage, strangers, ways, seen
        self.watch, self.roots = strangers.watching, Roots()
        self.read = _READ if ways.rules else _READ - _PLAIN
        self.shifted: dict[Any, Tensor] = {}  # by the node of the sum, until a softmax has read it
        self.everywhere = self.watch or ways.rules or None in seen
        self.depth = 0  # of units entered
        # Modules whose calls are looked at, and the gradients each rewrote (None: a slope).
        self.running: list[tuple[nn.Module | None, list[Operation | None]]] = [(None, [])]

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        # Most calls only move numbers, and a model makes hundreds: out with them first.
        if self.depth or not (self.watch or name in self.read) or not torch.is_grad_enabled():
            return func(*args, **keywords)
        given = (*args, *keywords.values())
        if not any(map(_holds_active, given)):
            return func(*args, **keywords)
        if name in AUGMENTED:
            # ``x += y`` binds x to whatever comes back; after ``x.add_(y)`` others may hold the old x.
            frame = sys._getframe(1)
            if dis.opname[frame.f_code.co_code[frame.f_lasti]] == "BINARY_OP":
                func = AUGMENTED[name]
                name = func.__name__
        if name in REWRITES and sum(map(active, given)) >= REWRITES[name][1]:
            with self:
                return REWRITES[name][0](*args, **keywords)
        call = self._read(name, args, keywords)
        if call is not None:
            return self._taken(func, call, args, keywords)
        return self._watched(func, args, keywords) if self.watch else func(*args, **keywords)

    def _read(self, name: str, args: Any, keywords: Any) -> Call | None:
        reader = READERS.get(name)
        in_place = reader is None and name.endswith("_") and not name.endswith("__")
        if in_place and not self.ways.rules and not fork.is_fork(args[0].grad_fn):
            reader = READERS.get(name[:-1])
        call = None if reader is None else reader(*args, **keywords)
        if call is None or (self.ways.rules and call.operation in WITHOUT_RULE):
            return None
        # What is rewritten would have to keep the value that is overwritten.
        rewritten = call.operation in _NONLINEAR or sum(map(active, call.factors)) > 1
        return None if in_place and rewritten else call

    def _taken(self, func: Function, call: Call, args: Any, keywords: Any) -> Any:
        """A call that is understood."""
        call, root = self.roots.read(call)
        replaced = call.operation in _NONLINEAR
        splits = self.ways.gradients and sum(map(active, call.factors)) > 1
        if self.watch and (replaced or splits):
            module, rewritten = self.running[-1]
            rewritten.append(None if replaced else call.operation)
            if module is None:
                self.seen[None] = _REWRITING
        if splits:
            shared = self.passage.shared(call.operation, call.factors)
            args, keywords = _exchanged(args, keywords, call.factors, shared)
        before = _made_by((*args, *keywords.values())) if self.watch else set()
        # Nobody will ask for the gradient that a rewritten one replaces: its parts need not be kept.
        with torch.set_grad_enabled(not replaced or self.ways.own or self.ways.rules):
            value = func(*args, **keywords)
        if self.watch and self.ways.gradients:
            # ``x[i] = y`` gives None.
            self.strangers.know(args[0] if value is None else value, before)
        if self.ways.rules or replaced:
            operands = call.operands
            if call.operation is Operation.SOFTMAX:
                operands = (*operands, fork.unshifted(operands[0], self.shifted))
                self.shifted.clear()
            value = self.passage.fork(call.operation, value, operands, call.detail)
            if call.operation is Operation.SHIFT and operands[0] is not None:
                self.shifted[value.grad_fn] = operands[0].detach()
        self.roots.remember(value, root)
        return value

    def _watched(self, func: Function, args: Any, keywords: Any) -> Any:
        """A call without a rule goes through; where it does more than move numbers, or overwrites
        what a rule will read, the nodes it puts into the graph are remembered by its name."""
        name = getattr(func, "__name__", "")
        before = _made_by((*args, *keywords.values()))
        spoils = name.endswith("_") and not name.endswith("__") and fork.is_fork(args[0].grad_fn)
        made = func(*args, **keywords)
        for tensor in fork.tensors(made):
            for node in fork.nodes_above(tensor, before):
                if not fork.is_structural(node) or (spoils and node is tensor.grad_fn):
                    self.strangers.add(node, name, self.running[-1][0])
        return made

    def called(self, module: nn.Module, forward: Function, *args: Any, **named: Any) -> Any:
        """A module's own forward: as a unit where it is one operation; the calls of any other are
        looked at, unless all are anyway."""
        unit = None
        if self.watch:
            self.seen.setdefault(type(module), _HARMLESS)
        if not self.depth and len(args) == 1 and not named and active(args[0]):
            unit = unit_of(module, args[0]) if torch.is_grad_enabled() else None
        if unit is None:
            return self._looked_into(module, forward, *args, **named)
        if unit.operation is Operation.MAP:
            made = forward(*args)
            if self.watch and self.ways.gradients:
                self.strangers.know(made, {args[0].grad_fn})
            return made
        self.depth += 1
        try:
            with torch.set_grad_enabled(self.ways.own or self.ways.rules):
                value = forward(*args)
        finally:
            self.depth -= 1
        operands: tuple[Tensor | None, ...] = args
        detail: Any = None
        if unit.operation is Operation.NORM:
            norm = norm_of(module, unit, args[0])
            operands, detail = (args[0], norm.weight, norm.bias), (norm.centres, norm.stabiliser)
        return self.passage.fork(unit.operation, value, operands, detail)

    def _looked_into(self, module: nn.Module, forward: Function, *args: Any, **named: Any) -> Any:
        seen = self.seen.get(type(module))
        if not self.watch:
            if self.everywhere or len(self.running) > 1 or seen == _HARMLESS:
                return forward(*args, **named)
            if seen == _HALVED:
                made, shared = forward(*args, **named), self.passage.shared
                return shared(Operation.GATE, (made,), of=2)[0] if active(made) else made
        rewritten: list[Operation | None] = []
        self.running.append((module, rewritten))
        try:
            with nullcontext() if self.everywhere else self:
                made = forward(*args, **named)
        finally:
            self.running.pop()
        if rewritten:
            through = rewritten == [Operation.GATE] and active(made)
            if through:  # and no gradient goes to what it was given but through the factors?
                above = fork.nodes_above(made, set(), fork.Share)
                through = _made_by((*args, *named.values())).isdisjoint(above)
            found = _HALVED if through else _REWRITING
            self.seen[type(module)] = max(self.seen[type(module)], found)
        return made


def _holds_active(value: Any) -> bool:
    return active(value) or (isinstance(value, tuple | list) and any(map(active, value)))


def _made_by(given: Sequence[Any]) -> set[Any]:
    """The graph's nodes that made the arguments of a call."""
    return {one.grad_fn for value in given for one in fork.tensors(value)}


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
