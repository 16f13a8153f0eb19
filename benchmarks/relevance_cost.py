"""What relevance costs, as a multiple of the bare model's forward + backward to the embeddings.

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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import facts

from tokenlight import Explainer, Tokens
from tokenlight.registry import build
from tokenlight.trace.recording import record

SHAPES = {"cpu": ["2x32"], "cuda": ["64x128", "64x32"]}
METHODS = ["attcat", "partial_lrp", "lrp", "transatt", "mask_lrp", "attnlrp", "cp_lrp"]
OFFICIAL_TEXTS_PER_SECOND = 4.5


def timed(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Median seconds of ``work`` after two runs to warm up."""
    times = []
    for turn in range(repeats + 2):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def bare(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    """Forward and backward to the embeddings, weights frozen."""
    model.requires_grad_(False)
    table = model.get_input_embeddings()

    def work() -> Any:
        given = table(ids).detach().requires_grad_(True)
        logits = model(inputs_embeds=given, attention_mask=torch.ones_like(ids)).logits
        return torch.autograd.grad(logits[:, 1].sum(), given)

    return work


def on_the_device(explainer: Explainer, ids: torch.Tensor, name: str) -> Callable[[], Any]:
    """A method without what stands around it: one recording, one tape, its scores."""
    rows = list(Tokens.from_ids(ids))
    method = build("methods", name)
    head = explainer.runner.head

    def work() -> Any:
        recording = record(explainer.runner, rows, method.needs)
        logits = recording.logits.detach().double().cpu().numpy()
        targets = [
            head.resolve(1, values, row)[0] for values, row in zip(logits, rows, strict=True)
        ]
        return method(recording.make_tape(targets, release_graph=True)).cpu()

    return work


def whole(explainer: Explainer, ids: torch.Tensor, name: str) -> Callable[[], Any]:
    """All that a user calls, Attributions made."""
    tokens = Tokens.from_ids(ids)
    return lambda: explainer.explain(
        tokens, name, target=1, batch_tokens=ids.numel(), progress=False
    )


def measure(shape: str, device: str, methods: list[str], repeats: int) -> list[dict[str, Any]]:
    """The bare pass and every method at one shape."""
    texts, length = map(int, shape.split("x"))
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2)
    model = transformers.BertForSequenceClassification(config).eval().to(device)
    ids = torch.randint(1000, 30000, (texts, length), device=device)
    floor = timed(bare(model, ids), device, repeats)
    rows = [_row(shape, "bare forward + backward", floor, floor, texts)]
    explainer = Explainer(model)
    for name in methods:
        seconds = timed(on_the_device(explainer, ids, name), device, repeats)
        rows.append(_row(shape, name, seconds, floor, texts))
        seconds = timed(whole(explainer, ids, name), device, repeats)
        rows.append(_row(shape, f"{name}, whole explain()", seconds, floor, texts))
    return rows


def _row(shape: str, case: str, seconds: float, floor: float, texts: int) -> dict[str, Any]:
    return {
        "shape": shape,
        "case": case,
        "milliseconds": round(1000 * seconds, 2),
        "ratio": round(seconds / floor, 2),
        "texts_per_second": round(texts / seconds, 1),
        "speedup": round(texts / seconds / OFFICIAL_TEXTS_PER_SECOND, 1),
    }


def main() -> None:
    """Measure and print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="*", help="texts x tokens, for example 64x128")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for shape in given.shapes or SHAPES[given.device]:
        for row in measure(shape, given.device, given.methods, given.repeats):
            rows.append(row)
            print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    if given.json is not None:
        made = {"about": facts(given.device), "rows": rows}
        given.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
