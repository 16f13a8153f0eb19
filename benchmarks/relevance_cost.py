"""Time relevance methods as multiples of the bare model's forward and backward pass to the embeddings.

The bare pass is BERT-base with random weights on its own fused attention, gradient taken to the
embeddings alone. Each figure is a median of times measured in one run on one machine. The official
code, which runs one text at a time, did 4.5 texts a second on an H200; ``speedup`` is over that.

    python benchmarks/relevance_cost.py                        # this machine's CPU, small batches
    python benchmarks/relevance_cost.py --device cuda --json FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts
from model_speed import time_call

from tokenlight import Explainer, Tokens
from tokenlight.registry import build
from tokenlight.trace.record import record

SHAPES = {"cpu": ["2x32"], "cuda": ["64x128", "64x32"]}
METHODS = ["attcat", "partial_lrp", "lrp", "transatt", "mask_lrp", "attnlrp", "cp_lrp"]
OFFICIAL_TEXTS_PER_SECOND = 4.5
NUM_WARM_UP_CALLS = 2


def measure_seconds(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Return the median seconds of a call after two calls to warm up."""
    for _ in range(NUM_WARM_UP_CALLS):
        time_call(call, device)
    return statistics.median(time_call(call, device) for _ in range(repeats))


def run_bare_pass(model: Any, ids: torch.Tensor) -> Any:
    """Run forward and backward to the embeddings."""
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    logits = model(inputs_embeds=embeddings, attention_mask=torch.ones_like(ids)).logits
    return torch.autograd.grad(logits[:, 1].sum(), embeddings)


def run_method(explainer: Explainer, rows: list[Any], name: str) -> Any:
    """Run a method without the rest of explain(): one recording, one tape, its scores."""
    method = build("methods", name)
    head = explainer.runner.head
    recording = record(explainer.runner, rows, method.needs)
    logits = recording.logits.detach().double().cpu().numpy()
    targets = []
    for row_logits, row in zip(logits, rows, strict=True):
        targets.append(head.resolve(1, row_logits, row)[0])
    return method(recording.make_tape(targets, release_graph=True)).cpu()


def measure_shape(
    shape: str, device: str, methods: list[str], repeats: int
) -> list[dict[str, Any]]:
    """Measure the bare pass and every method at one shape, such as "64x128"."""
    num_texts, length = map(int, shape.split("x"))
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2)
    model = transformers.BertForSequenceClassification(config).eval().to(device)
    model.requires_grad_(False)
    ids = torch.randint(1000, 30000, (num_texts, length), device=device)
    tokens = Tokens.from_ids(ids)
    explainer = Explainer(model)
    calls: dict[str, Callable[[], Any]] = {
        "bare forward + backward": partial(run_bare_pass, model, ids)
    }
    for name in methods:
        calls[name] = partial(run_method, explainer, list(tokens), name)
        calls[f"{name}, whole explain()"] = partial(
            explainer.explain, tokens, name, target=1, batch_tokens=ids.numel(), progress=False
        )
    bare_seconds = 0.0
    rows = []
    for case, call in calls.items():
        seconds = measure_seconds(call, device, repeats)
        bare_seconds = bare_seconds or seconds  # the first case
        texts_per_second = num_texts / seconds
        rows.append(
            {
                "shape": shape,
                "case": case,
                "milliseconds": round(1000 * seconds, 2),
                "ratio": round(seconds / bare_seconds, 2),
                "texts_per_second": round(texts_per_second, 1),
                "speedup": round(texts_per_second / OFFICIAL_TEXTS_PER_SECOND, 1),
            }
        )
    return rows


def main() -> None:
    """Measure and print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="*", help="texts x tokens, for example 64x128")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shapes or SHAPES[arguments.device]:
        for row in measure_shape(shape, arguments.device, arguments.methods, arguments.repeats):
            rows.append(row)
            print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    if arguments.json is not None:
        content = {"about": facts(arguments.device), "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
