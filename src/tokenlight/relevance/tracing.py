"""Run an unmodified model so that its one forward serves gradient and relevance alike."""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tokenlight.relevance import walk
from tokenlight.relevance.case import WITHOUT_RULE, Operation
from tokenlight.relevance.fork import Passage
from tokenlight.relevance.operations import AUGMENTED, READERS, REWRITES, Call, active
from tokenlight.relevance.units import Roots, is_candidate, norm_of, unit_of

_READ = READERS.keys() | REWRITES.keys() | AUGMENTED.keys()
# Neither do these rewrite a gradient, nor are they part of what does.
_PLAIN = frozenset({"linear", "addmm", "softmax", "sum", "mean"})
# A rewritten gradient replaces theirs.
_NONLINEAR = frozenset({Operation.ACTIVATION, Operation.NORM})


@dataclass(frozen=True)
class Ways:
    """The ways back that one forward must offer: relevance by ``rules``, rewritten ``gradients``,
    the model's ``own`` gradients. Without ``rules`` the graph is the model's own but for the few
    operations whose gradient is rewritten."""

    rules: bool = True
    gradients: bool = False
    own: bool = True


@dataclass
class _SeenModules:
    """What watched passes of a model showed of its modules, by their classes: those that were called;
    those in whose own code a gradient is rewritten (None: in no module's); and those of them whose
    whole output goes through one product of activations (LlamaMLP), so that the gradient may be
    halved behind them as well, and those of which this was not so."""

    called: set[type] = field(default_factory=set)
    rewriting: set[type | None] = field(default_factory=set)
    halved: set[type] = field(default_factory=set)
    unlike: set[type] = field(default_factory=set)

    def harmless(self, cls: type) -> bool:
        """Whether no gradient is rewritten in modules of this class."""
        return cls in self.called and cls not in self.rewriting


_seen: WeakKeyDictionary[nn.Module, _SeenModules] = WeakKeyDictionary()


@contextmanager
def forked(
    model: nn.Module,
    *,
    examples: int,
    watch: bool = True,
    ways: Ways | None = None,
    passage: Passage | None = None,
) -> Iterator[tuple[Passage, walk.Strangers]]:
    """Every operation inside the ``with`` keeps its value and gets other ways back.

    ``examples`` is the size of the batch. Also given: the operations that were not understood, for
    :func:`tokenlight.relevance.walk.check`. Without ``watch``, for a pass whose like was checked
    before, they are not looked for, and where nothing but gradients is rewritten modules that
    rewrite none are left alone. ``passage``: that of a pass which is computed again. Values and
    gradients stay the model's own.
    """
    ways, seen = ways or Ways(), _seen.setdefault(model, _SeenModules())
    passage = passage or Passage(examples, ruled=ways.rules)
    strangers = walk.Strangers(model, watching=watch)
    mode = _Forking(passage, strangers, ways, seen)
    chosen = [
        module
        for module in modules_of(model)
        if watch or is_candidate(module) or not (mode.everywhere or seen.harmless(type(module)))
    ]
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


def attended(
    passage: Passage, strangers: walk.Strangers, attend: Callable[..., Any], *factors: Tensor
) -> Any:
    """Fused attention over queries, keys and values, as one operation of a pass that is forked."""
    shared = passage.shared(Operation.ATTENTION, factors)
    with torch._C.DisableTorchFunction():
        made = attend(*shared)
    if strangers.watching:
        strangers.know(made, _made_by(shared, {}))
    return made


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

    def __init__(
        self, passage: Passage, strangers: walk.Strangers, ways: Ways, seen: _SeenModules
    ) -> None:
        super().__init__()
        self.passage, self.ways, self.watch = passage, ways, strangers.watching
        self.strangers, self.seen = strangers, seen
        self.read = _READ if ways.rules else _READ - _PLAIN
        self.roots = Roots()
        self.shifted: dict[Any, Tensor] = {}  # by the node of the sum, until a softmax has read it
        self.everywhere = self.watch or ways.rules or None in seen.rewriting
        self.depth = 0  # of units entered
        # Modules whose calls are looked at, and the gradients each rewrote (None: a slope).
        self.running: list[tuple[type, list[Operation | None]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        name = getattr(func, "__name__", "")
        # Most calls only move numbers, and a model makes hundreds: out with them first.
        if self.depth or not (self.watch or name in self.read) or not torch.is_grad_enabled():
            return func(*args, **keywords)
        given = (*args, *keywords.values())
        if not any(map(_holds_active, given)):
            return func(*args, **keywords)
        if name in AUGMENTED and _is_augmented_assignment(sys._getframe(1)):
            func = AUGMENTED[name]
            name = func.__name__
        if name in REWRITES and sum(map(active, given)) >= REWRITES[name][1]:
            with self:
                return REWRITES[name][0](*args, **keywords)
        call = self._read(name, args, keywords)
        if call is None:
            return self._watched(func, args, keywords) if self.watch else func(*args, **keywords)
        return self._taken(func, call, args, keywords)

    def _read(self, name: str, args: Any, keywords: Any) -> Call | None:
        reader = READERS.get(name)
        in_place = reader is None and name.endswith("_") and not name.endswith("__")
        if in_place and not self.ways.rules and not walk.is_fork(args[0].grad_fn):
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
        splits = self.ways.gradients and sum(map(active, call.factors)) > 1
        if self.watch and (replaced or splits):
            cls, rewritten = self.running[-1] if self.running else (None, [])
            self.seen.rewriting.add(cls)
            rewritten.append(None if replaced else call.operation)
        if splits:
            shared = self.passage.shared(call.operation, call.factors)
            args, keywords = _exchanged(args, keywords, call.factors, shared)
        before = _made_by(args, keywords) if self.watch else set()
        # Nobody will ask for the gradient that a rewritten one replaces: its parts need not be kept.
        with torch.set_grad_enabled(not replaced or self.ways.own or self.ways.rules):
            value = func(*args, **keywords)
        if self.watch and self.ways.gradients:
            # ``x[i] = y`` gives None.
            self.strangers.know(args[0] if value is None else value, before)
        if self.ways.rules or replaced:
            operands = call.operands
            if call.operation is Operation.SOFTMAX:
                operands = (*operands, walk.unshifted(operands[0], self.shifted))
                self.shifted.clear()
            value = self.passage.fork(call.operation, value, operands, call.detail)
            if call.operation is Operation.SHIFT and operands[0] is not None:
                self.shifted[value.grad_fn] = operands[0].detach()
        self.roots.remember(value, root)
        return value

    def _watched(self, func: Callable[..., Any], args: Any, keywords: Any) -> Any:
        """A call without a rule goes through; where it does more than move numbers, or overwrites
        what a rule will read, the nodes it puts into the graph are remembered by its name."""
        name = getattr(func, "__name__", "")
        before = _made_by(args, keywords)
        spoils = name.endswith("_") and not name.endswith("__") and walk.is_fork(args[0].grad_fn)
        made = func(*args, **keywords)
        for tensor in walk.tensors(made):
            for node in walk.nodes_above(tensor, before):
                if not walk.is_structural(node) or (spoils and node is tensor.grad_fn):
                    self.strangers.add(node, name, _calling_module())
        return made

    def called(
        self, module: nn.Module, forward: Callable[..., Any], *args: Any, **named: Any
    ) -> Any:
        """A module's own forward: as a unit where it is one operation; the calls of any other are
        looked at, unless all are anyway."""
        unit = None
        if self.watch:
            self.seen.called.add(type(module))
        if not self.depth and len(args) == 1 and not named and active(args[0]):
            unit = unit_of(module, args[0]) if torch.is_grad_enabled() else None
        if unit is None:
            return self._looked_into(type(module), forward, *args, **named)
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

    def _looked_into(self, cls: type, forward: Callable[..., Any], *args: Any, **named: Any) -> Any:
        seen = self.seen
        if not self.watch and (self.everywhere or self.running or seen.harmless(cls)):
            return forward(*args, **named)
        if not self.watch and cls in seen.halved:
            made = forward(*args, **named)
            return self.passage.shared(Operation.GATE, (made,), of=2)[0] if active(made) else made
        rewritten: list[Operation | None] = []
        self.running.append((cls, rewritten))
        try:
            with nullcontext() if self.everywhere else self:
                made = forward(*args, **named)
        finally:
            self.running.pop()
        if rewritten:
            given = _made_by(args, named)
            through = rewritten == [Operation.GATE] and _through_one_product(given, made)
            (seen.halved if through else seen.unlike).add(cls)
            seen.halved -= seen.unlike
        return made


def _through_one_product(given: set[Any], output: Any) -> bool:
    """Whether no gradient goes from a module's output to what it was ``given`` but through the
    factors of a product."""
    if not isinstance(output, Tensor) or output.grad_fn is None:
        return False
    pending: list[Any] = [output.grad_fn]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in given:
            return False
        if node is not None and node not in seen and not walk.is_share(node):
            seen.add(node)
            pending.extend(below for below, _ in node.next_functions)
    return True


def _holds_active(value: Any) -> bool:
    return active(value) or (isinstance(value, tuple | list) and any(map(active, value)))


def _made_by(args: Any, keywords: Any) -> set[Any]:
    """The graph's nodes that made the arguments of a call."""
    given = (*args, *keywords.values())
    return {one.grad_fn for value in given for one in walk.tensors(value)}


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
