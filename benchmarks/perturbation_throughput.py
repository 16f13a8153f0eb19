"""Throughput of the perturbation engine as a share of the raw forward on the same sequences.

The raw side is the bare model under no_grad over batches that were sorted by length, padded and put on
the device beforehand; the engine gets the sequences unsorted, one after the other. Several rounds of
each, alternating; the best round of each side counts. The goal is a share of 0.85 or more.

    python benchmarks/perturbation_throughput.py [--device cuda] [--texts N] [--size small]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from tokenlight.data.tokens import Tokens
from tokenlight.model.packing import pack_batches
from tokenlight.model.runner import ModelRunner
from tokenlight.perturb.logits_stream import DEFAULT_BATCH_TOKENS, stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds, Variant

SIZES = {
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
}


def draw_variants(texts: int, seed: int = 0) -> list[Variant]:
    """Draw texts of 8 to 60 tokens, each with ten deletions in a random order, as AOPC does."""
    generator = np.random.default_rng(seed)
    variants: list[Variant] = []
    for _ in range(texts):
        length = int(generator.integers(8, 60))
        row = Tokens.from_ids([generator.integers(5, 30000, length)]).rows[0]
        original = Perturber(row, ReplacementIds(0, 4))
        order = generator.permutation(length)
        for tenth in range(10):
            num_deleted = round(tenth * length / 10)
            variants.append(original.delete_tokens(order[:num_deleted]))
    return variants


def build_raw_run(runner: ModelRunner, variants: list[Variant], budget: int) -> Callable[[], None]:
    """Build a call that runs the bare model over batches packed beforehand."""
    batches = []
    for indices in pack_batches([len(row) for row in variants], budget):
        width = max(len(variants[i]) for i in indices)
        ids = torch.zeros(len(indices), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row_index, i in enumerate(indices):
            ids[row_index, : len(variants[i])] = torch.from_numpy(variants[i].ids.astype(np.int64))
            mask[row_index, : len(variants[i])] = 1
        batches.append((ids.to(runner.device), mask.to(runner.device)))

    def forward() -> None:
        with torch.no_grad():
            for ids, mask in batches:
                runner.model(input_ids=ids, attention_mask=mask)

    return forward


def time_call(call: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of one call, until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start_time = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start_time


def measure_size(size: str, device: str, texts: int, rounds: int) -> dict[str, float | str | int]:
    """Measure sequences per second of the bare model and of the engine, and their ratio."""
    torch.manual_seed(0)
    hidden = SIZES[size]["hidden_size"]
    config = BertConfig(vocab_size=30522, intermediate_size=4 * hidden, **SIZES[size])
    runner = ModelRunner(BertForSequenceClassification(config).eval().to(device))
    variants = draw_variants(texts)
    unique = list({row.ids.tobytes(): row for row in variants}.values())
    budget = DEFAULT_BATCH_TOKENS[runner.device.type]
    run_raw = build_raw_run(runner, unique, budget)

    def run_engine() -> None:
        for _ in stream_logits(runner, unique):
            pass

    run_raw()
    run_engine()
    raw_seconds = []
    engine_seconds = []
    for _ in range(rounds):  # in turn: a machine that slows down slows both
        raw_seconds.append(time_call(run_raw, runner.device))
        engine_seconds.append(time_call(run_engine, runner.device))
    fastest_raw = min(raw_seconds)
    fastest_engine = min(engine_seconds)
    return {
        "model": size,
        "device": device,
        "torch": str(torch.__version__),
        "sequences": len(unique),
        "tokens": sum(len(row) for row in unique),
        "raw_per_s": round(len(unique) / fastest_raw, 1),
        "engine_per_s": round(len(unique) / fastest_engine, 1),
        "share": round(fastest_raw / fastest_engine, 3),
    }


def main() -> None:
    """Print one JSON line per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, help="default: 40, on a GPU 3000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=[*SIZES], action="append")
    arguments = parser.parse_args()
    # A GPU is kept busy only by a stream of several windows.
    texts = arguments.texts or (3000 if arguments.device.startswith("cuda") else 40)
    for size in arguments.size or SIZES:
        print(json.dumps(measure_size(size, arguments.device, texts, arguments.rounds)))


if __name__ == "__main__":
    main()
