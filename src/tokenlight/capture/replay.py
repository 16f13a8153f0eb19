"""Replay: device work of a shape that returns, launched as one CUDA graph.

A short pass in half precision waits for Python, which launches its thousand kernels one by one, longer
than for the device. The third time that a shape comes, its pass is recorded; from then on the inputs are
copied to where the recorded pass reads them, and all its kernels are launched at once.

It gives the numbers of the plain pass or none: what it gives first, and what it first gives for other
texts, is held against the plain pass of the same batch; a pass that asks the device something, or reads
a text itself, is never recorded; and a model that was changed in any way is recorded anew. Whether it was is
looked at while the device works: before it starts, only the memory that it reads must be there.
"""

import gc
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tokenlight.capture.transfer import Crossings, Unrepeatable, crossing
from tokenlight.data.target import ResolvedTarget
from tokenlight.relevance.tracing import modules_of

OFTEN, NEVER = 2, -1  # plain passes of a shape before one is recorded; one that cannot be
MOST = 32  # passes of one model that are kept
# By this share of the largest numbers of a replayed pass may differ: some kernels add up in any order, and
# a sum may round the other way.
TOLERANCE = {torch.bfloat16: 2e-3, torch.float16: 3e-4, torch.float32: 1e-6, torch.float64: 1e-13}
TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class Repeatable(Protocol):
    """What a pass leaves, on its way from the device."""

    def numbers(self) -> list[np.ndarray]:
        """All that it computed; here the device is waited for."""

    def again(self) -> Any:
        """The same with the numbers that a replay leaves."""


Pass = TypeVar("Pass", bound=Repeatable)
Work = Callable[[Sequence[Tensor]], Pass]  # the plain pass of a batch, on its numbers or on others


@dataclass(frozen=True, eq=False)
class Returning:
    """A batch whose shape may return. ``given``: its numbers on the device; ``targets``: one class an
    example, or none where the model's own are taken; ``key``: all else that shapes its pass; ``texts``:
    what tells it from another."""

    given: list[Tensor]
    targets: list[ResolvedTarget]
    key: Hashable
    texts: Hashable


class Unread(tuple):  # type: ignore[type-arg]
    """The texts of a batch whose pass is recorded: how many there are may be asked, and no more."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise Unrepeatable

    __iter__ = __getitem__ = __contains__ = _refuse


@dataclass(eq=False)
class Recorded(Generic[Pass]):
    """One recorded pass: where it reads, what it leaves, and the model and texts it was made of."""

    graph: torch.cuda.CUDAGraph
    given: list[Tensor]
    crossings: Crossings
    left: Pass
    look: "Look"
    texts: Hashable
    trials: set[bool] = field(default_factory=set)  # held against plain passes of: other texts?
    targets: list[ResolvedTarget] | None = None  # of the last replay

    def replay(self, batch: Returning) -> Pass:
        """Launch it for other inputs."""
        torch._foreach_copy_(self.given, batch.given)
        if batch.targets != self.targets:
            self.targets = None
            for tensor, made in self.crossings.sent:
                if made is not None:
                    tensor.copy_(made(batch.targets))
            self.targets = batch.targets
        self.graph.replay()
        found: Pass = self.left.again()
        return found


class Replays:
    """The recorded passes of one model."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self.size = sum(weight.numel() for weight in model.parameters())
        # Recorded, or how often it has come.
        self._known: OrderedDict[Hashable, Recorded[Any] | int] = OrderedDict()
        self._guard = threading.Lock()
        self._pool: Any = None

    def forget(self) -> None:
        """Give their memory back."""
        with self._guard:
            self._known.clear()
            self._pool = None

    def holds(self, key: Hashable) -> bool:
        """Whether this pass is recorded."""
        return isinstance(self._known.get(key), Recorded)

    def run(self, batch: Returning, work: Work[Pass]) -> Pass:
        """``work(batch.given)``, or what it would leave."""
        key, given = batch.key, batch.given
        with ExitStack() as undo:
            if not self._guard.acquire(blocking=False):
                return work(given)  # another thread's numbers stand where ours would
            undo.callback(self._guard.release)
            undo.enter_context(torch.cuda.device(given[0].device))
            known = self._known.get(key)
            if isinstance(known, Recorded):
                found: Pass | None = self._replayed(known, batch, work)
                if found is not None:
                    return found
                self._known.clear()  # the model was changed
                known = None
            seen = known or 0
            if seen >= OFTEN:
                return self._learnt(batch, work)
            if seen != NEVER:
                self._known[key] = seen + 1
                self._known.move_to_end(key)
                while len(self._known) > MOST:
                    self._known.popitem(last=False)
            return work(given)

    def _replayed(self, known: Recorded[Pass], batch: Returning, work: Work[Pass]) -> Pass | None:
        """None where the model was changed."""
        if not known.look.in_place():
            return None
        self._known.move_to_end(batch.key)
        trial = {known.texts != batch.texts} - known.trials
        if not trial:
            found = known.replay(batch)
            if known.look.same(self._model):
                return found
            found.numbers()  # what it reads may go when it is through
            return None
        if not known.look.same(self._model):
            return None
        plain, found = work(batch.given), known.replay(batch)
        if _equal(plain.numbers(), found.numbers(), TOLERANCE.get(self._dtype, 0.0)):
            known.trials |= trial
        else:
            self._known[batch.key] = NEVER
        return plain

    def _learnt(self, batch: Returning, work: Work[Pass]) -> Pass:
        """The plain pass, recorded behind it if that can be done."""
        key, given = batch.key, batch.given
        crossings = Crossings()
        with crossing(crossings):
            found = work(given)
        self._known[key] = NEVER
        free, whole = torch.cuda.mem_get_info()  # what earlier passes left lying about is not free
        if free <= whole // 2:
            return found
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        fixed = [tensor.clone() for tensor in given]
        graph = torch.cuda.CUDAGraph()
        crossings.repeating = True
        try:
            with _recording(graph, self._pool), crossing(crossings):
                left = work(fixed)
            look = Look(self._model)
        except Unrepeatable:
            return found
        except Exception:  # noqa: BLE001 - whatever it is, the plain pass has answered
            # One that asked the device leaves torch's random numbers inside a recording.
            with suppress(RuntimeError), _recording(torch.cuda.CUDAGraph(), None):
                torch.zeros(1, device=given[0].device)
            return found
        if crossings.read == len(crossings.sent):
            self._known[key] = Recorded(graph, fixed, crossings, left, look, batch.texts)
        return found


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Within: kernels are recorded instead of launched. Nothing is collected meanwhile: letting go of
    another graph would spoil this one."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)


class Look:
    """A model as it was: all that makes it compute what it does, which is held, and where its tensors lay."""

    def __init__(self, model: nn.Module) -> None:
        self._parts = _parts(model)
        self._tensors = [one for one in self._parts if isinstance(one, Tensor)]
        self._places = [one.data_ptr() for one in self._tensors]

    def in_place(self) -> bool:
        """Whether its tensors lie where they lay, so that what read them there can read them again."""
        return self._places == [one.data_ptr() for one in self._tensors]

    def same(self, model: nn.Module) -> bool:
        """Whether ``model`` is this one, unchanged but for numbers written in place."""
        parts = _parts(model)
        alike = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        return alike and self.in_place()


def _parts(model: nn.Module) -> list[object]:
    """Its modules, their attributes, weights, hooks and configs."""
    found = list[object]()
    for module in modules_of(model):
        own = module.__dict__
        found += own.values()
        for table in TABLES:
            found += own.get(table, {}).values()
        found += getattr(own.get("config"), "__dict__", {}).values()
    return found


def _equal(plain: Sequence[np.ndarray], replayed: Sequence[np.ndarray], tolerance: float) -> bool:
    """Whether two passes left the same numbers, as far as the order of sums allows."""
    pairs = zip(plain, replayed, strict=True)
    return all(np.abs(one - own).max() <= tolerance * np.abs(one).max() for one, own in pairs)
