"""Replay passes whose shape returns as CUDA graphs.

A short pass in half precision takes longer in Python, which launches its thousand kernels one by one, than
on the device. The third time that a shape comes, its pass is captured as a CUDA graph. From then on the
inputs are copied to the tensors that the graph reads, and all its kernels are launched at once.

A replay must give the values of the eager pass:

* The first replay, and the first one for other texts, is compared with the eager pass of the same batch. They
  may differ by as much as eager passes of that batch do among themselves: some fused kernels add up in any
  order.
* A pass that reads values from the device, or reads a text itself, is never captured.
* A model that was changed is captured again. Its modules, their attributes, weights, hooks and configs are
  compared by identity, so that a list or table that was changed in place is not noticed; numbers written into
  a weight need no new capture. The model is compared while the device works; before that, only the memory
  that the graph reads must still be in place.

All graphs of a model share one pool of memory, which is about as large as the largest pass. It has a limit
(:func:`get_default_graph_bytes`); a graph that exceeds it takes the place of all others, or is given up if
it is too large alone.
"""

import gc
import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from tokenlight.accel.executor import (
    CaptureExecutor,
    LoggingExecutor,
    NotCapturable,
    Transfer,
    executing_with,
)
from tokenlight.accel.modules import list_modules
from tokenlight.accel.precision import PrecisionSettings
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import BadInput

WARMUP_PASSES = 2  # eager passes of a shape before its pass is captured
MAX_GRAPHS = 64  # graphs and counters kept for one model
GRAPH_BYTES_VARIABLE = "TOKENLIGHT_CUDA_GRAPH_BYTES"
MIN_GRAPH_BYTES = 1 << 30  # memory that graphs may take on a small device
GRAPH_SHARE = 0.05  # of the memory of a large one
# A replay may differ by this share of the largest value even where eager passes agree to the bit: a sum may
# round the other way.
RELATIVE_TOLERANCE = {
    torch.bfloat16: 2e-3,
    torch.float16: 3e-4,
    torch.float32: 1e-6,
    torch.float64: 1e-13,
}
# The same for products of float32 that are rounded to TF32 (as many bits as float16) or to bfloat16.
PRODUCT_TOLERANCE = {"tf32": 3e-4, "bf16": 2e-3}
# By how much more than eager passes among themselves a replay may differ from one of them. All are draws of
# the same noise; a graph that reads stale values is off by the values themselves.
NOISE_FACTOR = 3.0
# Eager passes by which noise is measured before a graph is given up: two of them may agree by chance.
MAX_NOISE_PASSES = 3
MODULE_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class Replayable(Protocol):
    """The results of a pass, on their way from the device.

    They must not refer to the owner of the graphs, which would then never be freed.
    """

    def fetch_arrays(self) -> list[np.ndarray]:
        """Wait for the device and return all values that the pass computed."""

    def refresh(self) -> Any:
        """Return the same results with the values of the last replay."""


def get_default_graph_bytes() -> int:
    """Return how much device memory the graphs of one model may take.

    The environment variable ``TOKENLIGHT_CUDA_GRAPH_BYTES`` sets it; 0 turns graphs off. Otherwise it is 5 %
    of the device or 1 GiB, whichever is larger.

    Raises:
        BadInput: The variable is not a whole number of at least 0.
    """
    setting = os.environ.get(GRAPH_BYTES_VARIABLE)
    if setting is None:
        _, total_bytes = torch.cuda.mem_get_info()
        return max(MIN_GRAPH_BYTES, int(GRAPH_SHARE * total_bytes))
    if not setting.isdecimal():
        raise BadInput(
            f"The environment variable {GRAPH_BYTES_VARIABLE} is {setting!r}, not a number of bytes. Set it "
            "to a whole number such as 2000000000, or to 0 to use no CUDA graphs.",
            code="graph-bytes-variable",
        )
    return int(setting)


PassT = TypeVar("PassT", bound=Replayable)
# Runs the pass of a batch eagerly on the given input tensors.
RunPass = Callable[[Sequence[Tensor]], PassT]


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """A batch whose shape may return.

    Attributes:
        tensors: Its inputs on the device.
        targets: One class per example; empty if the device picks the predicted classes.
        shape_key: Everything else that determines the operations of its pass.
        text_key: Tells its texts from others.
        precision: How its pass rounds.
    """

    tensors: list[Tensor]
    targets: list[ResolvedTarget]
    shape_key: Hashable
    text_key: Hashable
    precision: PrecisionSettings

    @property
    def explains_predictions(self) -> bool:
        """Whether the device picks the predicted classes."""
        return not self.targets


@dataclass(eq=False)
class CapturedGraph(Generic[PassT]):
    """A captured pass.

    Attributes:
        graph: The CUDA graph.
        inputs: The tensors from which the graph reads its inputs.
        transfers: The other tensors that the pass sent to the device.
        outputs: The results, which each replay overwrites.
        snapshot: The model at the time of the capture.
        text_key: The texts of the captured batch.
        is_checked_on_own_texts: Whether a replay of these texts was compared with an eager pass.
        is_checked_on_other_texts: The same for a replay of any other texts.
        targets: The targets of the last replay; None if they are unknown.
    """

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    transfers: list[Transfer]
    outputs: PassT
    snapshot: "ModelSnapshot"
    text_key: Hashable
    is_checked_on_own_texts: bool = False
    is_checked_on_other_texts: bool = False
    targets: list[ResolvedTarget] | None = None

    def is_checked_for(self, batch: ReplayBatch) -> bool:
        """Return whether a replay of texts like those of ``batch``, the same or others, was compared."""
        if batch.text_key == self.text_key:
            return self.is_checked_on_own_texts
        return self.is_checked_on_other_texts

    def mark_checked_for(self, batch: ReplayBatch) -> None:
        """Remember that the replay of ``batch`` gave the values of its eager pass."""
        if batch.text_key == self.text_key:
            self.is_checked_on_own_texts = True
        else:
            self.is_checked_on_other_texts = True

    def replay(self, batch: ReplayBatch) -> PassT:
        """Launch the graph for the inputs and targets of ``batch``."""
        torch._foreach_copy_(self.inputs, batch.tensors)
        if batch.targets != self.targets:
            self._send_targets(batch.targets)
        self.graph.replay()
        results: PassT = self.outputs.refresh()
        return results

    def _send_targets(self, targets: list[ResolvedTarget]) -> None:
        self.targets = None  # unknown until all tensors are written
        for transfer in self.transfers:
            if transfer.remake is not None:
                transfer.tensor.copy_(transfer.remake(targets))
        self.targets = targets


@dataclass(frozen=True)
class EagerShape:
    """A shape whose pass is not captured.

    Attributes:
        num_passes: How many eager passes it had.
        is_capturable: Whether its pass may be captured once it had enough of them.
    """

    num_passes: int = 0
    is_capturable: bool = True


NOT_CAPTURABLE = EagerShape(is_capturable=False)


class GraphCache:
    """The CUDA graphs of one model.

    Args:
        model: The model.
        dtype: The dtype it computes in.
        max_bytes: Device memory that the graphs may take; None for :func:`get_default_graph_bytes`.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, max_bytes: int | None = None) -> None:
        self._model = model
        self._dtype = dtype
        self._max_bytes = max_bytes
        self.num_parameters = sum(weight.numel() for weight in model.parameters())
        # By shape key.
        self._entries: OrderedDict[Hashable, CapturedGraph[Any] | EagerShape] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: Any = None
        self._pool_bytes = 0
        # One for all captures: torch keeps 32 MB for products on every stream that ever multiplied.
        self._stream: Any = None

    @property
    def max_bytes(self) -> int:
        """Device memory that the graphs may take; 0 if none is captured."""
        if self._max_bytes is None:
            self._max_bytes = get_default_graph_bytes()
        return self._max_bytes

    def clear(self) -> None:
        """Drop all graphs; their memory returns to the cache of torch."""
        with self._lock:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        self._entries.clear()
        # The pool is freed together with the last graph that uses it.
        self._pool = None
        self._pool_bytes = 0

    def has_graph(self, key: Hashable) -> bool:
        """Return whether the pass of this shape is captured."""
        return isinstance(self._entries.get(key), CapturedGraph)

    def run(self, batch: ReplayBatch, run_pass: RunPass[PassT]) -> PassT:
        """Run the pass of ``batch``: replay its graph, or run it eagerly and perhaps capture it.

        Args:
            batch: The batch.
            run_pass: Runs the pass eagerly on the tensors that it is given.

        Returns:
            What ``run_pass(batch.tensors)`` returns, or the same results from a replay.
        """
        if not self._lock.acquire(blocking=False):
            # Another thread uses the tensors into which our inputs would be copied.
            return run_pass(batch.tensors)
        with ExitStack() as cleanup:
            cleanup.callback(self._lock.release)
            cleanup.enter_context(torch.cuda.device(batch.tensors[0].device))
            return self._run_locked(batch, run_pass)

    def _run_locked(self, batch: ReplayBatch, run_pass: RunPass[PassT]) -> PassT:
        entry = self._entries.get(batch.shape_key)
        if isinstance(entry, CapturedGraph):
            results: PassT | None = self._try_replay(entry, batch, run_pass)
            if results is not None:
                return results
            # The model was changed, so all graphs are out of date.
            self._drop_graphs()
            entry = None
        shape = entry or EagerShape()
        if not shape.is_capturable:
            return run_pass(batch.tensors)
        if shape.num_passes >= WARMUP_PASSES and self._has_room():
            return self._run_and_capture(batch, run_pass)
        self._count_pass(batch.shape_key, shape)
        return run_pass(batch.tensors)

    def _has_room(self) -> bool:
        """Return whether the device has memory for a capture.

        A pass that finds none stays eager and asks again next time. A capture cannot use the memory that
        torch caches, so that memory is given back to the device first where it is needed.
        """
        if self.max_bytes == 0:
            return False
        free_bytes, _ = torch.cuda.mem_get_info()
        if free_bytes >= self.max_bytes:
            return True
        cached_bytes = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        # As much again is left for the passes that are not captured.
        if free_bytes + cached_bytes < 2 * self.max_bytes:
            return False
        torch.cuda.empty_cache()
        return True

    def _count_pass(self, key: Hashable, shape: EagerShape) -> None:
        """Count one more eager pass of a shape; drop the entries that were not used for longest."""
        self._entries[key] = EagerShape(shape.num_passes + 1)
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_GRAPHS:
            self._entries.popitem(last=False)

    def _try_replay(
        self, captured: CapturedGraph[PassT], batch: ReplayBatch, run_pass: RunPass[PassT]
    ) -> PassT | None:
        """Replay a graph; return None if the model was changed since its capture."""
        if not captured.snapshot.is_memory_unchanged():
            return None
        self._entries.move_to_end(batch.shape_key)
        if not captured.is_checked_for(batch):
            if not captured.snapshot.matches(self._model):
                return None
            return self._replay_and_compare(captured, batch, run_pass)
        # The model is compared while the device works.
        results = captured.replay(batch)
        if captured.snapshot.matches(self._model):
            return results
        # Wait: the memory that the replay reads must stay until it has ended.
        results.fetch_arrays()
        return None

    def _replay_and_compare(
        self, captured: CapturedGraph[PassT], batch: ReplayBatch, run_pass: RunPass[PassT]
    ) -> PassT:
        """Run a batch both ways; stop using the graph if the results differ."""
        eager_results = run_pass(batch.tensors)
        expected = eager_results.fetch_arrays()
        replayed = captured.replay(batch).fetch_arrays()
        gap = _compute_relative_gap(expected, replayed)
        allowed_gap = self._choose_tolerance(batch.precision)
        # Only where the replay is not the same to rounding are further eager passes worth their time.
        for _ in range(MAX_NOISE_PASSES):
            if gap <= allowed_gap:
                break
            noise = _compute_relative_gap(expected, run_pass(batch.tensors).fetch_arrays())
            allowed_gap = max(allowed_gap, NOISE_FACTOR * noise)
        is_same = gap <= allowed_gap
        if is_same:
            captured.mark_checked_for(batch)
        else:
            self._entries[batch.shape_key] = NOT_CAPTURABLE
        return eager_results

    def _choose_tolerance(self, precision: PrecisionSettings) -> float:
        """Return by which share a replay may differ from an eager pass without noise."""
        tolerance = RELATIVE_TOLERANCE.get(self._dtype, 0.0)
        if self._dtype == torch.float32:
            tolerance = max(tolerance, PRODUCT_TOLERANCE.get(precision.product_precision, 0.0))
        if precision.autocast_dtype is not None and self._dtype != torch.float64:
            tolerance = max(tolerance, RELATIVE_TOLERANCE.get(precision.autocast_dtype, 0.0))
        return tolerance

    def _run_and_capture(self, batch: ReplayBatch, run_pass: RunPass[PassT]) -> PassT:
        """Run a batch eagerly, then capture its pass if that is possible."""
        logging = LoggingExecutor()
        with executing_with(logging):
            results = run_pass(batch.tensors)
        # Unless the capture succeeds, it is not tried again.
        self._entries[batch.shape_key] = NOT_CAPTURABLE
        bytes_before = torch.cuda.memory_reserved()
        captured = self._capture(batch, run_pass, logging.transfers)
        self._pool_bytes += max(0, torch.cuda.memory_reserved() - bytes_before)
        if captured is None:
            if not any(isinstance(entry, CapturedGraph) for entry in self._entries.values()):
                # No graph holds the pool, so it went with the attempt and nothing counts against the limit.
                self._pool = None
                self._pool_bytes = 0
            return results
        if self._pool_bytes <= self.max_bytes:
            self._entries[batch.shape_key] = captured
            return results
        del captured  # the last reference, so that its memory can be freed
        self._empty_pool(batch.shape_key)
        return results

    def _empty_pool(self, key: Hashable) -> None:
        """Free the pool, which the graph for ``key`` made too large.

        No part of a pool can be freed, so all graphs go. Those whose shapes return are captured again; this
        one too, unless it was the only one.
        """
        is_alone = True
        given_up: list[Hashable] = []
        for other, entry in self._entries.items():
            if isinstance(entry, CapturedGraph):
                is_alone = False
            elif not entry.is_capturable:
                given_up.append(other)
        self._drop_graphs()
        for other in given_up:
            self._entries[other] = NOT_CAPTURABLE
        if not is_alone:
            self._entries[key] = EagerShape(WARMUP_PASSES)
        torch.cuda.empty_cache()

    def _get_stream(self) -> Any:
        """Return the stream on which passes are captured."""
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        return self._stream

    def _capture(
        self, batch: ReplayBatch, run_pass: RunPass[PassT], transfers: list[Transfer]
    ) -> CapturedGraph[PassT] | None:
        """Capture the pass of ``batch``; return None if that is impossible."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        inputs = [tensor.clone() for tensor in batch.tensors]
        graph = torch.cuda.CUDAGraph()
        capturing = CaptureExecutor(transfers)
        try:
            with _capturing_graph(graph, self._pool, self._get_stream), executing_with(capturing):
                outputs = run_pass(inputs)
            snapshot = ModelSnapshot(self._model)
        except NotCapturable:
            return None
        except Exception:  # noqa: BLE001 - whatever it is, the eager pass has answered
            # A pass that read from the device leaves torch's random generator in capture mode; an empty
            # capture ends that.
            spoiled = torch.cuda.CUDAGraph()
            with suppress(RuntimeError), _capturing_graph(spoiled, None, self._get_stream):
                torch.zeros(1, device=batch.tensors[0].device)
            return None
        if not capturing.has_read_all:
            return None
        return CapturedGraph(
            graph=graph,
            inputs=inputs,
            transfers=transfers,
            outputs=outputs,
            snapshot=snapshot,
            text_key=batch.text_key,
        )


@contextmanager
def _capturing_graph(
    graph: torch.cuda.CUDAGraph, pool: Any, get_stream: Callable[[], Any]
) -> Iterator[None]:
    """Capture kernels into ``graph`` instead of launching them."""
    stream = get_stream()
    stream.wait_stream(torch.cuda.current_stream())
    # Garbage collection is off: freeing another graph during a capture would spoil this one.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if was_collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)


class ModelSnapshot:
    """The objects that determine what a model computes, and the addresses of its tensors.

    These are its modules, the attributes, weights, buffers and hooks of each, and the entries of its config.
    They are compared by identity: an object that replaced another is noticed, the contents of a plain list or
    table are not compared. The snapshot holds these objects, so that none is freed while a graph reads it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._state = _collect_state(model)
        self._tensors = [value for value in self._state if isinstance(value, Tensor)]
        self._addresses = self._read_addresses()

    def is_memory_unchanged(self) -> bool:
        """Return whether all tensors are still at the addresses that a graph reads."""
        return self._addresses == self._read_addresses()

    def matches(self, model: nn.Module) -> bool:
        """Return whether ``model`` consists of the same objects, whatever was written into them in place."""
        state = _collect_state(model)
        if len(state) != len(self._state):
            return False
        return all(map(operator.is_, state, self._state)) and self.is_memory_unchanged()

    def _read_addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]


def _collect_state(model: nn.Module) -> list[object]:
    """List the modules of a model, their attributes, weights, hooks and configs."""
    state = list[object]()
    for module in list_modules(model):
        attributes = module.__dict__
        state += attributes.values()
        for table in MODULE_TABLES:
            state += attributes.get(table, {}).values()
        state += getattr(attributes.get("config"), "__dict__", {}).values()
    return state


def _compute_relative_gap(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """Return the largest difference of two passes, as a share of the largest number of its array."""
    largest_gap = 0.0
    for expected_array, actual_array in zip(expected, actual, strict=True):
        difference = float(np.abs(expected_array - actual_array).max(initial=0.0))
        if difference == 0:
            continue
        scale = float(np.abs(expected_array).max())
        # NaN is the largest difference there is.
        if not (np.isfinite(difference) and scale):
            return float("inf")
        largest_gap = max(largest_gap, difference / scale)
    return largest_gap
