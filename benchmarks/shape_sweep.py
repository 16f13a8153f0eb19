"""Look for cliffs between the measured rows: many shapes, dtypes and methods in one process.

Each cell is the time of explain() over that of the bare model's forward and backward pass, and the peak
memory of its first calls over that of the bare pass. Cells come in random order, those of all dtypes mixed,
beside tensors that the process holds for other work, as in a notebook. Beside the bare pass stands the same
pass as a CUDA graph: the limit of what a replay can reach.

    python benchmarks/shape_sweep.py --device cuda --minutes 6 --json docs/results/cost/shape_sweep.json
    python benchmarks/shape_sweep.py --minutes 0.5                               # a few cells on a CPU

benchmarks/shape_sweep_page.py draws the cells.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts
from model_speed import ONE_PASS, build_llama, build_random_model, run_bare_pass

from tokenlight import Explainer, Tokens
from tokenlight.accel.graphs import CapturedGraph
from tokenlight.methods.integrated_gradients import IntegratedGradients

BATCH_SIZES = (1, 8, 16, 64, 256)
LENGTHS = (16, 32, 64, 128, 384, 512, 1024, 4096)
MAX_TOKENS = 1 << 15
LLAMA_LENGTHS = (512, 2048, 8192, 16384, 32768, 65536, 131072)
PATH_STEPS = 8
METHODS: dict[str, Any] = {
    "attcat": "attcat",
    "attnlrp": "attnlrp",
    "gae": "gae",
    "13 methods": ONE_PASS,
    "lrp": "lrp",
    "transatt": "transatt",
    f"IG, {PATH_STEPS} steps": IntegratedGradients(num_steps=PATH_STEPS),
}
# The most tokens of a batch that a method of many or large passes is measured on.
MAX_METHOD_TOKENS = {
    f"IG, {PATH_STEPS} steps": 8192,
    "lrp": 8192,
    "transatt": 8192,
    "13 methods": 32768,
    "gae": 32768,
}
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
OTHER_WORK_BYTES = 4 << 30  # held by the process while shapes come
LONG_SECONDS = 1.0  # a call that takes longer is made only twice
WARM_SECONDS = 1.5
NUM_WARM = 6  # the third call of a shape captures its graph, the fourth and the sixth are compared


@dataclass(frozen=True)
class Cell:
    """One measurement: a call of explain() beside the bare pass of the same ids."""

    model: str
    dtype: str
    num_texts: int
    num_tokens: int
    method: str
    milliseconds: float
    first_milliseconds: float
    bare_milliseconds: float | None
    graph_milliseconds: float | None
    time_ratio: float | None
    graph_ratio: float | None
    memory_ratio: float | None
    is_replayed: bool


@dataclass(frozen=True)
class Timing:
    """Median and first seconds of a call, and the peak bytes of the first calls above what was there."""

    seconds: float
    first_seconds: float
    peak_bytes: int


def measure(call: Callable[[], Any], device: str, num_warm: int = NUM_WARM) -> Timing:
    """Time a call after a few others, whose peak memory is read before its pass can be captured."""

    def call_once() -> float:
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    start_bytes = 0
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        start_bytes = torch.cuda.memory_allocated()
    first_seconds = call_once()
    peak_bytes = torch.cuda.max_memory_allocated() - start_bytes if device == "cuda" else 0
    warm_seconds = 0.0
    if first_seconds > LONG_SECONDS:
        # The first call may have compiled kernels; the second says how long a call takes.
        warm_seconds = call_once()
        if warm_seconds > LONG_SECONDS:
            return Timing(warm_seconds, first_seconds, peak_bytes)
    for _ in range(num_warm - 1):
        if warm_seconds < WARM_SECONDS:
            warm_seconds += call_once()
    times = [call_once() for _ in range(3)]
    while sum(times) < 0.05:
        times.append(call_once())
    return Timing(statistics.median(times), first_seconds, peak_bytes)


def measure_or_none(
    call: Callable[[], Any], device: str, num_warm: int = NUM_WARM
) -> Timing | None:
    """Time a call; None where it needs more memory than the device has."""
    try:
        return measure(call, device, num_warm)
    except (torch.OutOfMemoryError, MemoryError) as error:
        print(f"  {type(error).__name__}: {str(error)[:120]}")
    gc.collect()
    torch.cuda.empty_cache()
    return None


def time_bare_graph(model: Any, ids: torch.Tensor) -> float | None:
    """Time the bare pass as one CUDA graph, with a copy of its ids in and of its scores out."""
    static_ids = ids.clone()
    more = {"logits_to_keep": 1} if hasattr(model, "lm_head") else {}

    def run_pass() -> torch.Tensor:
        embeddings = model.get_input_embeddings()(static_ids).detach().requires_grad_(True)
        logits = model(inputs_embeds=embeddings, use_cache=False, **more).logits
        target = logits[:, -1, 7] if logits.dim() == 3 else logits[:, 1]
        (gradient,) = torch.autograd.grad(target.sum(), embeddings)
        return (gradient * embeddings.detach()).sum(dim=-1).float()

    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            run_pass()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scores = run_pass()
    except RuntimeError as error:
        print(f"  no graph of the bare pass: {str(error)[:120]}")
        return None
    times: list[float] = []
    while len(times) < 4 or sum(times) < 0.03:
        start = time.perf_counter()
        static_ids.copy_(ids)
        graph.replay()
        scores.cpu()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


class ModelSweep:
    """One model in one dtype, and the bare passes that were measured on it."""

    def __init__(self, name: str, dtype_name: str, device: str) -> None:
        self.name = name
        self.dtype_name = dtype_name
        self.device = device
        dtype = DTYPES[dtype_name]
        if name == "BERT-base":
            config = transformers.BertConfig(
                num_labels=2, max_position_embeddings=max(LENGTHS), attn_implementation="sdpa"
            )
            self.model = build_random_model(
                transformers.BertForSequenceClassification, config, device, dtype
            )
        else:
            self.model = build_llama(name, device, dtype)
        self.explainer = Explainer(self.model)
        self._bare: dict[tuple[int, int], tuple[Timing | None, float | None]] = {}

    def set_precision(self) -> None:
        """Let float32 products use TF32 for the cells of that name alone."""
        precision = "high" if self.dtype_name == "tf32" else "highest"
        torch.set_float32_matmul_precision(precision)

    def bare_of(self, ids: torch.Tensor) -> tuple[Timing | None, float | None]:
        """Time the bare pass and its graph, once per shape."""
        shape = (ids.shape[0], ids.shape[1])
        if shape not in self._bare:
            timing = measure_or_none(partial(run_bare_pass, self.model, ids), self.device, 2)
            graph_seconds = None
            if self.device == "cuda" and timing is not None and timing.seconds < 0.2:
                graph_seconds = time_bare_graph(self.model, ids)
            self._bare[shape] = timing, graph_seconds
        return self._bare[shape]

    def list_graph_keys(self) -> set[Any]:
        """Return the keys of the shapes that are captured now."""
        entries = self.explainer.runner.graph_cache._entries.items()
        return {key for key, entry in entries if isinstance(entry, CapturedGraph)}

    def measure_cell(self, num_texts: int, num_tokens: int, method: str) -> Cell | None:
        """Measure one cell; None where explain() runs out of memory."""
        self.set_precision()
        ids = torch.randint(5, 900, (num_texts, num_tokens), device=self.device)
        bare_timing, graph_seconds = self.bare_of(ids)
        rows = Tokens.from_ids(ids.cpu())
        # One logit, as in the bare pass: by default a token is explained rather than its alternatives.
        target = "logit" if self.name.startswith("Llama") else 1
        call = partial(
            self.explainer.explain,
            rows,
            METHODS[method],
            target=target,
            batch_tokens=max(ids.numel(), 4096),
        )
        num_warm = 1 if method.startswith("IG") else NUM_WARM
        earlier_keys = self.list_graph_keys()
        timing = measure_or_none(call, self.device, num_warm)
        if timing is None:
            return None
        bare_seconds = bare_timing.seconds if bare_timing else None
        bare_bytes = bare_timing.peak_bytes if bare_timing else 0
        return Cell(
            model=self.name,
            dtype=self.dtype_name,
            num_texts=num_texts,
            num_tokens=num_tokens,
            method=method,
            milliseconds=round(1e3 * timing.seconds, 2),
            first_milliseconds=round(1e3 * timing.first_seconds, 1),
            bare_milliseconds=round(1e3 * bare_seconds, 2) if bare_seconds else None,
            graph_milliseconds=round(1e3 * graph_seconds, 2) if graph_seconds else None,
            time_ratio=round(timing.seconds / bare_seconds, 3) if bare_seconds else None,
            graph_ratio=round(timing.seconds / graph_seconds, 3) if graph_seconds else None,
            memory_ratio=round(timing.peak_bytes / bare_bytes, 3) if bare_bytes else None,
            is_replayed=bool(self.list_graph_keys() - earlier_keys),
        )


def print_cell(cell: Cell) -> None:
    """Print one line for a cell."""
    kind = "replayed" if cell.is_replayed else "eager"
    print(
        f"{cell.model} {cell.dtype} {cell.num_texts:>4}×{cell.num_tokens:<6} {cell.method:<12} time "
        f"{cell.time_ratio}  graph {cell.graph_ratio}  memory {cell.memory_ratio}  {kind} "
        f"({cell.milliseconds} / {cell.bare_milliseconds} / {cell.graph_milliseconds} ms, first "
        f"{cell.first_milliseconds})",
        flush=True,
    )


def encoder_jobs(dtypes: list[str], device: str) -> list[tuple[str, int, int, str]]:
    """List the cells of the encoder in random order."""
    jobs: list[tuple[str, int, int, str]] = []
    for job in itertools.product(dtypes, BATCH_SIZES, LENGTHS, METHODS):
        _, num_texts, num_tokens, method = job
        limit = 256 if device == "cpu" else MAX_METHOD_TOKENS.get(method, MAX_TOKENS)
        if num_texts * num_tokens <= limit:
            jobs.append(job)
    random.Random(5).shuffle(jobs)
    return jobs


def llama_jobs() -> list[tuple[int, str]]:
    """List the cells of a Llama, the longest last."""
    jobs: list[tuple[int, str]] = []
    for num_tokens, method in itertools.product(LLAMA_LENGTHS, METHODS):
        is_measured = method in ("attcat", "attnlrp") or num_tokens <= 2048
        if num_tokens == max(LLAMA_LENGTHS):
            is_measured = method == "attnlrp"
        if is_measured:
            jobs.append((num_tokens, method))
    return jobs


def sweep_encoder(dtypes: list[str], device: str, seconds: float) -> Iterator[Cell]:
    """Measure cells of BERT-base until the time is over."""
    deadline = time.perf_counter() + seconds
    models = {name: ModelSweep("BERT-base", name, device) for name in dtypes}
    gc.collect()
    gc.freeze()  # collections between cells would take longer than the cells
    jobs = encoder_jobs(dtypes, device)
    num_measured = 0
    for dtype_name, num_texts, num_tokens, method in jobs:
        if time.perf_counter() > deadline:
            break
        num_measured += 1
        cell = models[dtype_name].measure_cell(num_texts, num_tokens, method)
        if cell is not None:
            yield cell
    print(f"{num_measured} of {len(jobs)} cells of the encoder measured")
    if device == "cuda":
        held_bytes = torch.cuda.memory_reserved() - OTHER_WORK_BYTES
        for model in models.values():
            model.explainer.release_memory()
        gc.collect()
        torch.cuda.empty_cache()
        released_bytes = torch.cuda.memory_reserved() - OTHER_WORK_BYTES
        used_bytes = torch.cuda.memory_allocated() - OTHER_WORK_BYTES
        print(
            f"{held_bytes / 1e9:.1f} GB held by {len(models)} models after the sweep, "
            f"{released_bytes / 1e9:.1f} GB after release_memory(), of which tensors use "
            f"{used_bytes / 1e9:.1f} GB"
        )


def sweep_llama(name: str, max_length: int, seconds: float) -> Iterator[Cell]:
    """Measure one text of each length on a Llama in bfloat16."""
    deadline = time.perf_counter() + seconds
    model = ModelSweep(name, "bf16", "cuda")
    for num_tokens, method in llama_jobs():
        if num_tokens > max_length or time.perf_counter() > deadline:
            continue
        cell = model.measure_cell(1, num_tokens, method)
        if cell is not None:
            yield cell
    model.explainer.release_memory()


def print_summary(cells: list[Cell]) -> None:
    """Print the median and the largest ratios of each method."""
    for method in METHODS:
        chosen = [cell for cell in cells if cell.method == method and cell.time_ratio is not None]
        if not chosen:
            continue
        ratios = sorted(cell.time_ratio or 0 for cell in chosen)
        memory = max(cell.memory_ratio or 0 for cell in chosen)
        worst = max(chosen, key=lambda cell: cell.time_ratio or 0)
        print(
            f"{method}: {len(chosen)} cells, median {statistics.median(ratios):.2f}, largest "
            f"{ratios[-1]:.2f} ({worst.model} {worst.dtype} {worst.num_texts}×{worst.num_tokens}), "
            f"memory at most {memory:.2f}"
        )


def main() -> None:
    """Measure cells in random order until the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=None)
    parser.add_argument("--minutes", type=float, default=6, help="time for the whole map")
    parser.add_argument("--json", type=Path, help="write the cells and the machine to this file")
    options = parser.parse_args()

    is_gpu = options.device == "cuda"
    dtypes = options.dtypes or (list(DTYPES) if is_gpu else ["fp32"])
    other_work: list[torch.Tensor] = []
    if is_gpu:
        other_work.append(torch.empty(OTHER_WORK_BYTES, dtype=torch.uint8, device="cuda"))
    seconds = 60 * options.minutes
    sweeps: list[Iterator[Cell]] = []
    if is_gpu:
        sweeps.append(sweep_llama("Llama 8B", 2048, 0.15 * seconds))
        sweeps.append(sweep_llama("Llama 1B", max(LLAMA_LENGTHS), 0.2 * seconds))
        seconds *= 0.65
    sweeps.append(sweep_encoder(dtypes, options.device, seconds))
    machine = facts(options.device)
    cells: list[Cell] = []
    for cell in itertools.chain.from_iterable(sweeps):
        print_cell(cell)
        cells.append(cell)
        if options.json:
            report = {"machine": machine, "cells": [asdict(each) for each in cells]}
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print_summary(cells)


if __name__ == "__main__":
    main()
