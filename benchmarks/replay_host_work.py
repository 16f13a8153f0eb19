"""Measure what Python does around the replay of a CUDA graph, without a GPU.

    python benchmarks/replay_host_work.py                                   # this version
    git archive 0dfcbd5 src/tokenlight | tar -x -C OLD
    PYTHONPATH=OLD/src python benchmarks/replay_host_work.py                # an earlier one

A stand-in for a graph launches nothing and leaves the results of the capture, so that only Python is left of
a replayed call: before the launch, when the device has nothing to do; until the first result is read, while
the device would compute; and after that. The model has the twelve layers of BERT-base and narrow ones, since
Python's work does not depend on the width. Processor time is the least of many calls, in milliseconds. Calls
are those of functions, in Python and in C, during one call of ``explain``; other work on the machine does not
change them.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
import transformers
from machine import facts
from model_speed import ONE_PASS, ONE_PASS_LABEL

from tokenlight import Explainer, Tokens

NUM_WARM_UP_CALLS = 6  # two eager ones, the capture, the comparison, and two more for every cache
NUM_CALLS = 41
SHAPE = (64, 32)
PARTS = ("before the launch", "while the device computes", "after it")


class Stopwatch:
    """Reads a clock at the start of each part of a call."""

    def __init__(self) -> None:
        self.read_clock: Callable[[], float] = time.process_time
        self.starts: list[float] = []

    def reach(self, part: int) -> None:
        """Begin a part, unless it has begun."""
        if len(self.starts) == part:
            self.starts.append(self.read_clock())

    def measure(self, call: Callable[[], Any]) -> list[float]:
        """Return how much the clock moved on in each part."""
        self.starts = []
        self.reach(0)
        call()
        ends = [*self.starts[1:], self.read_clock()]
        return [end - start for start, end in zip(self.starts, ends, strict=True)]


def replace_device(stopwatch: Stopwatch) -> None:
    """Put a stand-in in place of CUDA graphs, in the layout of this version or of 0dfcbd5."""

    class UnchangingGraph:
        def replay(self) -> None:
            stopwatch.reach(1)

    cuda: Any = torch.cuda
    cuda.device = lambda _: nullcontext()
    cuda.CUDAGraph = UnchangingGraph
    cuda.graph_pool_handle = lambda: 1
    cuda.mem_get_info = lambda *_: (100 << 30, 140 << 30)
    cuda.memory_reserved = lambda *_: 0
    try:
        graphs: Any = importlib.import_module("tokenlight.accel.graphs")
        graphs._capturing_graph = lambda *_: nullcontext()
        batches: Any = importlib.import_module("tokenlight.explaining.replay_batches")
        batches.is_on_one_gpu = lambda _: True
        transfer: Any = importlib.import_module("tokenlight.accel.transfer").AsyncTensor
        read_name = "numpy"
        free_memory = "measure_free_memory"
    except ModuleNotFoundError:
        graphs = importlib.import_module("tokenlight.capture.replay")
        graphs._recording = lambda *_: nullcontext()
        importlib.import_module("tokenlight.explaining.repeat").__dict__["_repeatable"] = (
            lambda *_, **__: True
        )
        transfer = importlib.import_module("tokenlight.capture.transfer").Fetched
        read_name = "arrived"
        free_memory = "free_bytes"
    # A GPU is not asked for its free memory by maps as small as these.
    memory: Any = importlib.import_module("tokenlight.explaining.memory")
    setattr(memory, free_memory, lambda _: 1 << 40)
    read_values = getattr(transfer, read_name)

    def read(self: Any) -> Any:
        stopwatch.reach(2)
        return read_values(self)

    mock.patch.object(transfer, read_name, read).start()


def count_calls(stopwatch: Stopwatch, call: Callable[[], Any]) -> list[float]:
    """Return the number of function calls in each part."""
    num_calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    stopwatch.read_clock = lambda: num_calls
    sys.setprofile(count)
    try:
        return stopwatch.measure(call)
    finally:
        sys.setprofile(None)
        stopwatch.read_clock = time.process_time


def main() -> None:
    """Measure one method, thirteen together and a rewritten gradient."""
    torch.set_num_threads(1)
    stopwatch = Stopwatch()
    replace_device(stopwatch)
    config = transformers.BertConfig(
        num_labels=2, num_hidden_layers=12, hidden_size=48, intermediate_size=96
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).to(torch.bfloat16).eval()
    explainer = Explainer(model)
    ids = torch.randint(5, 900, SHAPE, generator=torch.Generator().manual_seed(0))
    tokens = Tokens.from_ids(ids, torch.ones_like(ids))
    print(facts("cpu"))
    for name, method in (
        ("attcat", "attcat"),
        (ONE_PASS_LABEL, ONE_PASS),
        ("attnlrp", "attnlrp"),
    ):

        def explain(method: Any = method) -> Any:
            return explainer.explain(tokens, method, batch_tokens=ids.numel(), target=1)

        for _ in range(NUM_WARM_UP_CALLS):
            explain()
        measured = [stopwatch.measure(explain) for _ in range(NUM_CALLS)]
        calls = count_calls(stopwatch, explain)
        for part, times, num_calls in zip(PARTS, zip(*measured, strict=True), calls, strict=True):
            least = 1e3 * min(times)
            print(f"{name:20} {part:26} {least:6.2f} ms {num_calls:7.0f} calls", flush=True)


if __name__ == "__main__":
    main()
