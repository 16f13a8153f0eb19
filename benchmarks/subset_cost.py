"""What sub-texts cost: ``subset_relevance`` as a multiple of one ``attnlrp`` over the same texts.

    python benchmarks/subset_cost.py                                  # this machine's CPU, an embedded model
    python benchmarks/subset_cost.py --device cuda --model bert-base --json FILE

By default 64 texts of 128 tokens. ``bert-base`` is BERT-base with random weights: cost does not depend on
what a model has learned. Calls alternate, so that another load on the machine hits all of them alike; the
ratio is that of the medians, and its range that of the rounds. Eight sub-texts of half the length hold as
many tokens as four texts, so five is the least that is possible where the time grows with the tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from machine import facts

from tokenlight import Explainer, Tokens

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


def make_texts(shape: str, vocabulary: int) -> list[Tokens]:
    """Return random token ids between the ids that BERT gives [CLS] and [SEP]."""
    rows, length = map(int, shape.split("x"))
    ids = np.random.default_rng(0).integers(1000, vocabulary, (rows, length))
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
    arguments = parser.parse_args()
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
