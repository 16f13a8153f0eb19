"""What partial texts cost: ``subset_relevance`` as a multiple of one ``attnlrp`` over the same texts.

    python benchmarks/subset_cost.py                                  # this machine's CPU, an embedded model
    python benchmarks/subset_cost.py --device cuda --model bert-base --json FILE
    python benchmarks/subset_cost.py --count                          # passes and shapes, without a clock

By default 64 texts of 128 tokens. ``bert-base`` is BERT-base with random weights: cost does not depend on
what a model has learned. Calls alternate, so that another load on the machine hits all of them alike; the
ratio is that of the medians, and its range that of the rounds. Eight partial texts of half the length hold as
many tokens as four texts, so five is the least that is possible where the time grows with the tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from machine import facts

from tokenlight import Explainer, Tokens
from tokenlight.model.packing import GPU_PADDING_POLICY, pack_batches
from tokenlight.model.padding import choose_replayed_width, round_up
from tokenlight.model.runner import CPU_BATCH_TOKENS
from tokenlight.trace.row_batches import pack_replayed_rows

REFERENCE = "attnlrp"
METHODS = (
    REFERENCE,
    "cat:gradient=cp",
    "subset_relevance",
    "subset_relevance:readout=embeddings",
    "subset_relevance:num_samples=64",
)
GOAL = 5.5  # of the default, 8 sub-texts


def make_explainer(model: str, device: str) -> Explainer:
    """Load an embedded model, or make BERT-base with random weights."""
    if model != "bert-base":
        return Explainer.from_pretrained(model, device=device)
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=2)
    return Explainer(transformers.BertForSequenceClassification(config).to(device).eval())


def make_texts(shape: str, vocabulary: int, seed: int = 0) -> list[Tokens]:
    """Return random token ids between the ids that BERT gives [CLS] and [SEP]."""
    rows, length = map(int, shape.split("x"))
    ids = np.random.default_rng(seed).integers(1000, vocabulary, (rows, length))
    ids[:, 0] = 101
    ids[:, -1] = 102
    return [Tokens.from_ids(row[None].tolist()) for row in ids]


def time_call(explainer: Explainer, texts: list[Tokens], method: str, device: str) -> float:
    """Return the seconds of one call, until all scores are here."""
    start = time.perf_counter()
    for attribution in explainer.explain(texts, method, target=1, progress=False):
        attribution.scores  # noqa: B018 - lazy: computed when it is read
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


NUM_COUNTED_CALLS = 5  # with other texts each, of one size
GPU_BATCH_TOKENS = 16 * CPU_BATCH_TOKENS  # in float32
GPU_WIDTH_STEP = 4  # of float32
Shape = tuple[int, int]


def draw_partial_texts(shape: str) -> Iterator[tuple[list[Shape], list[Any]]]:
    """Draw the partial texts of other texts each time, as a small model without training reads them.

    Yields:
        The shapes of the passes over them on a CPU, and the partial texts.
    """
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = transformers.BertForSequenceClassification(config).eval()
    explainer = Explainer(model)
    masks: list[torch.Tensor] = []

    def keep_mask(_model: Any, _args: Any, arguments: dict[str, Any]) -> None:
        masks.append(arguments["attention_mask"])

    # A first call verifies the model, by passes of its own.
    list(explainer.explain(make_texts(shape, config.vocab_size), "subset_relevance", target=1))
    model.register_forward_pre_hook(keep_mask, with_kwargs=True)
    text_length = int(shape.split("x")[1])
    for seed in range(NUM_COUNTED_CALLS):
        masks.clear()
        texts = make_texts(shape, config.vocab_size, seed)
        list(explainer.explain(texts, "subset_relevance", target=1, progress=False))
        shapes = []
        rows = []
        for mask in masks:
            lengths = mask.sum(dim=1).tolist()
            if min(lengths) == text_length:
                continue  # the whole texts
            shapes.append((mask.shape[0], mask.shape[1]))
            rows += [SimpleNamespace(ids=range(length)) for length in lengths]
        yield shapes, rows


def pack_for_gpu(packing: str, runner: Any, rows: list[Any]) -> list[Shape]:
    """Return rows and width of each pass over ``rows`` by a way of packing."""
    lengths = [len(row.ids) for row in rows]
    replayed = None
    if packing == "GPU, packed for replay":
        replayed = pack_replayed_rows(runner, rows, GPU_BATCH_TOKENS)
    if replayed is not None:
        return [
            (len(batch), choose_replayed_width(runner, max(lengths[index] for index in batch)))
            for batch in replayed
        ]
    widths = [round_up(length, GPU_WIDTH_STEP) for length in lengths]
    batches = pack_batches(widths, GPU_BATCH_TOKENS, padding_policy=GPU_PADDING_POLICY)
    return [(len(batch), max(widths[index] for index in batch)) for batch in batches]


def count_passes(models: Sequence[str], shape: str) -> list[dict[str, Any]]:
    """Count the passes over the partial texts of one call, their shapes, and those of several calls."""
    calls = list(draw_partial_texts(shape))
    num_tokens = sum(len(row.ids) for row in calls[0][1])
    counts = []
    for model in models:
        runner = make_explainer(model, "cpu").runner
        for packing in ("CPU", "GPU, packed by length", "GPU, packed for replay"):
            if packing == "CPU":
                shapes_by_call = [shapes for shapes, _ in calls]
            else:
                shapes_by_call = [pack_for_gpu(packing, runner, rows) for _, rows in calls]
            first = shapes_by_call[0]
            padded = sum(rows * width for rows, width in first)
            counts.append(
                {
                    "model": model,
                    "packing": packing,
                    "passes": len(first),
                    "shapes": len({*first}),
                    "shapes_of_calls": len(
                        {found for shapes in shapes_by_call for found in shapes}
                    ),
                    "padded_tokens": padded,
                    "padding": padded / num_tokens - 1,
                }
            )
    return counts


def render_counts(content: dict[str, Any]) -> Iterator[str]:
    """Render the table of ``--count``."""
    yield (
        f"| model | {content['shape']} tokens, 8 sub-texts each | passes | distinct shapes | of "
        f"{content['calls']} calls | tokens with padding | padding |"
    )
    yield "|---|---|---|---|---|---|---|"
    for row in content["counts"]:
        yield (
            f"| {row['model']} | {row['packing']} | {row['passes']} | {row['shapes']} | "
            f"{row['shapes_of_calls']} | {row['padded_tokens']:,} | {100 * row['padding']:.1f} % |"
        )


def main() -> None:
    """Time all methods in turns and print their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="tokenlight/sentiment")
    parser.add_argument("--shape", default="64x128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=METHODS[:-1])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", action="store_true")
    arguments = parser.parse_args()
    if arguments.count:
        content = {
            "facts": facts("cpu"),
            "shape": arguments.shape,
            "calls": NUM_COUNTED_CALLS,
            "counts": count_passes(("tokenlight/sentiment", "bert-base"), arguments.shape),
        }
        print("\n".join(render_counts(content)))
        if arguments.json:
            arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return
    device = arguments.device
    explainer = make_explainer(arguments.model, device)
    texts = make_texts(arguments.shape, explainer.model.config.vocab_size)
    seconds: dict[str, list[float]] = {method: [] for method in arguments.methods}
    num_warmups = 5 if device == "cuda" else 1  # CUDA graphs are captured after a few calls
    for number in range(num_warmups + arguments.rounds):
        for method, times in seconds.items():
            took = time_call(explainer, texts, method, device)
            if number >= num_warmups:
                times.append(took)
    rows: list[dict[str, Any]] = []
    base = seconds[REFERENCE]
    for method, times in seconds.items():
        ratios = [ours / reference for ours, reference in zip(times, base, strict=True)]
        ratio = statistics.median(times) / statistics.median(base)
        rows.append(
            {
                "method": method,
                "seconds": statistics.median(times),
                "ratio": ratio,
                "range": [min(ratios), max(ratios)],
            }
        )
        print(f"{method:40} {statistics.median(times):9.4f} s  {ratio:6.2f} × {REFERENCE}")
    if arguments.json:
        content = {
            "facts": facts(device, threads=torch.get_num_threads()),
            "model": arguments.model,
            "shape": arguments.shape,
            "rounds": arguments.rounds,
            "goal": GOAL,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
