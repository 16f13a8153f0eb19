"""Confirm the one-pass default on fresh texts, by the protocol of ADR 0022.

    python benchmarks/frontier_confirmation.py --data DATA --models MODELS --out FILE [--tasks qqp snli …]

DATA holds the public data sets and, from ``python -m training.planted``, the folders hybrid and signs.
MODELS holds ``qqp`` and ``snli``, tuned by ``python -m training.finetune`` from the embedded encoder. FILE
holds the value of every text and is written after each method; another run adds its tasks to it. Then
``benchmarks/frontier_confirmation_page.py`` applies the rule and writes the page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from frontier import Entry
from frontier_board import (
    MAX_CONTEXT_WORDS,
    cut_text,
    explain,
    fits_model,
    make_input,
    read_spans,
    split_repeated,
)
from machine import facts

from tokenlight import Explainer

Row = dict[str, Any]
ORDER_SEED = 22
EARLIER_SEEDS = (0, 11)  # orders in which earlier scripts read their files
NUM_READ_EARLIER = 1000
NUM_READ_FIRST = {"ag_news": 2000}  # lines that the page of faithfulness read as they stand
NUM_BOARD_SIGNS = 300
NUM_RANDOM_TEXTS = 40
LEAF = re.compile(r"\((\d) ([^()\s]+)\)")
BRACKETS = {"-LRB-": "(", "-RRB-": ")"}

INCUMBENT = Entry("attnlrp", "attnlrp")
CANDIDATES = (
    Entry("fullgrad_plus:gradient=libra", "fullgrad_plus", {"gradient": "libra"}),
    Entry("cat:gradient=cp", "cat", {"gradient": "cp"}),
)
RANDOM = Entry("random", "random")
ENTRIES = (INCUMBENT, *CANDIDATES, RANDOM)

ERASURE = ("aopc", "aopc:perturb=mask", "sufficiency", "comprehensiveness")
QUESTION_MEASURES = (
    "comprehensiveness",
    "comprehensiveness:perturb=mask",
    "sufficiency",
    "sufficiency:perturb=mask",
)


@dataclass(frozen=True)
class Task:
    """Texts of one kind, their model, and what is measured on them; the first two measures are primary.

    ``signs`` and ``movies`` have no primary measure.
    """

    kind: str
    model: str
    file: str
    count: int
    metrics: tuple[str, ...] = ERASURE
    num_primary: int = 2


TASKS = {
    "sst": Task("text", "tokenlight/sentiment", "sst_trees/test.txt.gz", 150),
    "amazon": Task("text", "tokenlight/sentiment", "amazon/test_subset.jsonl.gz", 150),
    "ag_news": Task("text", "tokenlight/topics", "ag_news/test.jsonl.gz", 150),
    "qqp": Task("pair", "qqp", "qqp/test_subset.jsonl.gz", 120),
    "snli": Task("pair", "snli", "snli/test.jsonl.gz", 120),
    "squad_v1": Task("question", "tokenlight/qa", "squad_v1/dev.jsonl.gz", 100, QUESTION_MEASURES),
    "signs": Task(
        "text", "tokenlight/sentiment", "signs/sst.jsonl.gz", 10_000, ("sign_agreement",), 0
    ),
    "movies": Task(
        "text", "tokenlight/sentiment", "eraser_movies/train.jsonl.gz", 100, ("rationale",), 0
    ),
}


def read_trees(path: Path) -> list[Row]:
    """Read the sentences of a treebank that have a clear polarity and no words of both polarities."""
    rows = []
    with gzip.open(path, "rt", encoding="utf-8") as trees:
        for tree in trees:
            leaves = LEAF.findall(tree)
            polarities = {int(polarity) > 2 for polarity, _ in leaves if polarity != "2"}
            if tree[1] == "2" or len(polarities) == 2:
                continue
            words = [BRACKETS.get(leaf, leaf).replace("\\/", "/") for _, leaf in leaves]
            rows.append({"text": " ".join(words), "label": int(int(tree[1]) > 2)})
    return rows


@cache
def read_hybrids(data: Path, name: str) -> str:
    """Return all hybrid documents of a data set as one text; empty where it has none."""
    path = data / "hybrid" / f"{name}.jsonl.gz"
    if not path.is_file():
        return ""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    parts = []
    for row in rows:
        parts += [row.get("text", ""), row.get("question", "")]
    return "\n".join(parts)


def read_fresh(name: str, data: Path) -> Iterator[Row]:
    """Yield the rows of a task that no earlier script has read, in the order of the protocol."""
    path = data / TASKS[name].file
    if path.name.endswith(".txt.gz"):
        rows = read_trees(path)
    else:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    is_read = np.zeros(len(rows), dtype=bool)
    if name in ("amazon", "ag_news", "qqp", "squad_v1"):
        for seed in EARLIER_SEEDS:
            is_read[np.random.default_rng(seed).permutation(len(rows))[:NUM_READ_EARLIER]] = True
    if name == "signs":
        is_read[np.random.default_rng(11).permutation(len(rows))[:NUM_BOARD_SIGNS]] = True
    is_read[: NUM_READ_FIRST.get(name, 0)] = True
    hybrids = read_hybrids(data, name)
    for index in np.random.default_rng(ORDER_SEED).permutation(len(rows)):
        row = rows[index]
        unique_part = row.get("question") or row.get("text", "")
        if is_read[index] or (hybrids and unique_part.strip() in hybrids):
            continue
        if len(row.get("context", "").split()) <= MAX_CONTEXT_WORDS:
            yield row


def read_task(name: str, data: Path, explainer: Explainer) -> tuple[list[Row], list[Any]]:
    """Return the rows of a task and what the explainer takes of each."""
    task = TASKS[name]
    rows: list[Row] = []
    for row in read_fresh(name, data):
        if len(rows) == task.count:
            break
        if fits_model(explainer, row):
            rows.append(row)
    inputs = [make_input(row) for row in rows]
    if task.num_primary:
        inputs = [cut_text(explainer, text) for text in inputs]
    return rows, inputs


def measure_entry(
    explainer: Explainer, task: Task, rows: list[Row], inputs: list[Any], entry: Entry
) -> dict[str, list[float | None]]:
    """Return the values of each measure by text."""
    attributions = explain(explainer, inputs, (entry.method, dict(entry.options)), "predicted")
    labels = [row["label"] for row in rows] if "label" in rows[0] else None
    spans = read_spans(rows)
    values: dict[str, list[float | None]] = {}
    for part in split_repeated(inputs):
        evaluation = explainer.evaluate(
            [attributions[i] for i in part],
            list(task.metrics),
            labels=None if labels is None else [labels[i] for i in part],
            spans=None if spans is None else [spans[i] for i in part],
            progress=False,
        )
        for metric, key in zip(task.metrics, evaluation.metrics, strict=True):
            numbers = values.setdefault(metric, [None] * len(inputs))
            for i, row in zip(part, evaluation.rows, strict=True):
                value = row.get(key)
                numbers[i] = None if value is None else round(float(value), 5)
    return values


def measure_accuracy(explainer: Explainer, rows: list[Row], inputs: list[Any]) -> float | None:
    """Return the share of the measured texts that a classifier predicts right."""
    if "label" not in rows[0]:
        return None
    attributions = explain(explainer, inputs, "random", "predicted")
    hits = [
        attribution.target.index == row["label"]
        for attribution, row in zip(attributions, rows, strict=True)
    ]
    return float(np.mean(hits))


def measure_task(name: str, arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure all methods on one task and write the file after each."""
    task = TASKS[name]
    is_embedded = task.model.startswith("tokenlight/")
    explainer = Explainer.from_pretrained(
        task.model if is_embedded else str(arguments.models / task.model)
    )
    rows, inputs = read_task(name, arguments.data, explainer)
    content: dict[str, Any] = {
        "model": task.model,
        "texts": len(inputs),
        "accuracy": measure_accuracy(explainer, rows, inputs),
        "values": {},
    }
    results["tasks"][name] = content
    for entry in ENTRIES:
        count = NUM_RANDOM_TEXTS if entry is RANDOM else len(inputs)
        start = time.perf_counter()
        values = measure_entry(explainer, task, rows[:count], inputs[:count], entry)
        content["values"][entry.label] = values
        seconds = time.perf_counter() - start
        print(f"{name:10} {entry.label:30} {describe_means(values)} {seconds:.0f} s", flush=True)
        write_results(arguments.out, results)


def describe_means(values: dict[str, list[float | None]]) -> str:
    """Return the means of the measures for the log."""
    parts = []
    for metric, numbers in values.items():
        known = [number for number in numbers if number is not None]
        parts.append(f"{metric} {np.mean(known):.4f}")
    return ", ".join(parts)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the values of all tasks so far."""
    content = json.dumps(results, ensure_ascii=False, separators=(",", ":"))
    path.write_text(content + "\n", encoding="utf-8")


def main() -> None:
    """Measure the tasks that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    arguments = parser.parse_args()
    results: dict[str, Any] = {"tasks": {}}
    if arguments.out.is_file():
        results = json.loads(arguments.out.read_text(encoding="utf-8"))
    results["facts"] = facts("cpu")
    for name in arguments.tasks:
        measure_task(name, arguments, results)


if __name__ == "__main__":
    main()
