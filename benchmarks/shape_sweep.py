"""Are there cliffs between the measured rows? Many shapes, dtypes and methods in one process.

Each cell is the median time of explain() over that of the bare model's forward and backward pass. Shapes
come in random order, beside tensors that the process holds for other work, as in a notebook. After the
sweep the memory that torch holds is printed, and again after ``Explainer.release_memory()``.

    python benchmarks/shape_sweep.py --device cuda --json FILE            # the whole map of an encoder
    python benchmarks/shape_sweep.py --device cuda --quick                # the shapes with known cliffs
    python benchmarks/shape_sweep.py --quick                              # a few cells on a CPU
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from machine import facts
from model_speed import ONE_PASS, bare, bert, timed

from tokenlight import Explainer, Tokens

BATCH_SIZES = (1, 8, 64, 256)
LENGTHS = (16, 32, 128, 384, 512)
MAX_TOKENS = 1 << 15
QUICK_SHAPES = ((1, 32), (8, 32), (64, 32), (16, 384), (16, 512), (64, 128), (256, 128))
METHODS: dict[str, Any] = {
    "attcat": "attcat",
    "attnlrp": "attnlrp",
    "gae": "gae",
    "13 one-pass methods": ONE_PASS,
}
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
OTHER_WORK_BYTES = 4 << 30  # held by the process while shapes come


@dataclass(frozen=True)
class Cell:
    """One measurement: a call of explain() beside the bare pass of the same ids."""

    dtype: str
    num_texts: int
    num_tokens: int
    method: str
    milliseconds: float
    bare_milliseconds: float
    time_ratio: float
    memory_ratio: float | None


def sweep(
    dtype_name: str, shapes: list[tuple[int, int]], device: str, seconds: float
) -> list[Cell]:
    """Measure every method at every shape, in random order."""
    precision = "high" if dtype_name == "tf32" else "highest"
    torch.set_float32_matmul_precision(precision)
    model = bert(device, DTYPES[dtype_name])
    explainer = Explainer(model)
    jobs = list(itertools.product(shapes, METHODS))
    random.Random(5).shuffle(jobs)
    cells = []
    for (num_texts, num_tokens), name in jobs:
        ids = torch.randint(1000, 20000, (num_texts, num_tokens), device=device)
        rows = Tokens.from_ids(ids.cpu())
        bare_seconds, bare_bytes = timed(lambda ids=ids: bare(model, ids), device, seconds, warm=2)
        # How often the calls of a shape must come before its pass is captured is part of the product.
        our_seconds, our_bytes = timed(
            lambda rows=rows, name=name: explainer.explain(rows, METHODS[name], target=1),
            device,
            seconds,
        )
        cell = Cell(
            dtype=dtype_name,
            num_texts=num_texts,
            num_tokens=num_tokens,
            method=name,
            milliseconds=1e3 * our_seconds,
            bare_milliseconds=1e3 * bare_seconds,
            time_ratio=our_seconds / bare_seconds,
            memory_ratio=our_bytes / bare_bytes if bare_bytes else None,
        )
        cells.append(cell)
        print(
            f"{cell.dtype} {num_texts:>4}×{num_tokens:<4} {name:<20} {cell.time_ratio:5.2f} "
            f"({cell.milliseconds:.1f} / {cell.bare_milliseconds:.1f} ms)",
            flush=True,
        )
    if device == "cuda":
        print_memory(explainer, dtype_name)
    return cells


def print_memory(explainer: Explainer, dtype_name: str) -> None:
    """Print what the process holds after the sweep, and after a release."""
    held = torch.cuda.memory_reserved() - OTHER_WORK_BYTES
    explainer.release_memory()
    released = torch.cuda.memory_reserved() - OTHER_WORK_BYTES
    print(
        f"{dtype_name}: {held / 1e9:.1f} GB held after the sweep, {released / 1e9:.1f} GB after "
        "release_memory()"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="only the shapes with known cliffs")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=None)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for one cell")
    parser.add_argument("--json", type=Path, help="write the cells and the machine to this file")
    options = parser.parse_args()

    shapes = list(itertools.product(BATCH_SIZES, LENGTHS))
    if options.quick:
        shapes = list(QUICK_SHAPES)
    if options.device == "cpu":
        shapes = [shape for shape in shapes if shape[0] * shape[1] <= 256]
    shapes = [shape for shape in shapes if shape[0] * shape[1] <= MAX_TOKENS]
    dtypes = options.dtypes or (list(DTYPES) if options.device == "cuda" else ["fp32"])

    other_work: list[torch.Tensor] = []
    if options.device == "cuda":
        other_work.append(torch.empty(OTHER_WORK_BYTES, dtype=torch.uint8, device="cuda"))
    began = time.perf_counter()
    cells: list[Cell] = []
    for dtype_name in dtypes:
        cells += sweep(dtype_name, shapes, options.device, options.seconds)
        gc.collect()
        if options.json:
            report = {"machine": facts(options.device), "cells": [asdict(cell) for cell in cells]}
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    worst = max(cells, key=lambda cell: cell.time_ratio)
    print(
        f"{len(cells)} cells in {time.perf_counter() - began:.0f} s; the slowest is {worst.time_ratio:.2f}: "
        f"{worst.method}, {worst.dtype}, {worst.num_texts}×{worst.num_tokens}"
    )


if __name__ == "__main__":
    main()
