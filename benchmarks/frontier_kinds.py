"""Sub-texts of other kinds of input: pairs, questions, masked words, language models, vectors, images.

    python benchmarks/frontier_kinds.py --data DATA --out kinds.json [--models MODELS] [--count 40]
    python benchmarks/frontier_kinds.py --report kinds.json    # the page docs/results/frontier/kinds.md

DATA is the folder of public data sets; MODELS may hold the models that benchmarks/default_method.py names; a
kind without a model is left out. Every input is explained for the model's own prediction by one-pass methods
and by ``subset_relevance`` with other options, and the explanations are measured by AOPC: tokens deleted and,
where the model has a [MASK], replaced by it (a cosine: its fall while words are deleted; an image: insertion
minus deletion). Sub-texts keep special tokens, templates, the question, the answer, a language model's last
token and what a decoder wrote. This is an exploration, not the protocol of ADR 0019: few inputs, and many
options looked at.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_method import list_tasks, load_explainer, measure_cosine_falls, measure_pictures
from frontier import bootstrap_mean
from frontier_page import FOLDER, format_interval
from machine import facts

from tokenlight import Explainer
from tokenlight.errors import TokenlightError
from tokenlight.files.write import write_text

PAGE = FOLDER / "kinds.md"
TEXT = Path(__file__).with_name("frontier_kinds_text.md")  # tables take the place of [[NAME]]
KIND_TITLES = {
    "pair": "Pairs",
    "span": "Questions",
    "mask": "Masked words",
    "next": "Next tokens",
    "cosine": "Similar texts",
    "image": "Images",
}

SKIPPED = frozenset({"text"})  # the protocol itself is about texts
REFERENCE = "attnlrp"
METHODS = (
    "random",
    "attnlrp",
    "cp_lrp",
    "cat:gradient=cp",
    "integrated_gradients",
    "subset_relevance",
    "subset_relevance:readout=embeddings",
    "subset_relevance:keep_probability=0.8",
    "subset_relevance:removal=mask",
    "subset_relevance:units=word",
    "subset_relevance:units=sentence",
)


def measure_aopc(explainer: Explainer, inputs: list[Any], method: str) -> dict[str, list[float]]:
    """Return AOPC of each input, by deletion and by [MASK] where the model has one."""
    metrics = {"aopc": "aopc"}
    if getattr(explainer.tokenizer, "mask_token", None):
        metrics["aopc_mask"] = "aopc:perturb=mask"
    attributions = list(explainer.explain(inputs, method, progress=False))
    evaluation = explainer.evaluate(attributions, list(metrics.values()), progress=False)
    values = {}
    for name, key in zip(metrics, evaluation.metrics, strict=True):
        values[name] = [row[key] for row in evaluation.rows]
    return values


def measure_method(
    kind: str, explainer: Explainer, inputs: list[Any], method: str
) -> dict[str, list[Any]]:
    """Return the measures of each input by name."""
    if kind == "cosine":
        return {"fall of the cosine": measure_cosine_falls(explainer, inputs, method)}
    if kind == "image":
        return {"insertion − deletion": measure_pictures(explainer, inputs, method)}
    return measure_aopc(explainer, inputs, method)


def measure_task(
    kind: str, explainer: Explainer, inputs: list[Any], methods: Sequence[str] = METHODS
) -> list[dict[str, Any]]:
    """Measure every method on one task: means, and paired differences from the reference."""
    values: dict[str, dict[str, np.ndarray]] = {}
    rows: list[dict[str, Any]] = []
    for method in methods:
        start = time.perf_counter()
        try:
            measured = measure_method(kind, explainer, inputs, method)
        except TokenlightError as error:
            print(f"  {method} refused: {error}", flush=True)
            rows.append({"label": method, "refused": error.code})
            continue
        seconds = time.perf_counter() - start
        values[method] = {name: np.array(numbers) for name, numbers in measured.items()}
        means = {name: float(numbers.mean()) for name, numbers in values[method].items()}
        ahead = {}
        if REFERENCE in values:
            for name, numbers in values[method].items():
                ahead[name] = bootstrap_mean(numbers - values[REFERENCE][name])
        rows.append({"label": method, "means": means, "ahead_of_attnlrp": ahead})
        print(f"  {method:40} {means} ({seconds:.0f} s)", flush=True)
    return rows


def render_page(results: dict[str, Any]) -> str:
    """Render one table per task: means, and paired differences from the reference with their intervals."""
    tables = []
    for task, result in results["tasks"].items():
        lines = [
            f"## {KIND_TITLES[result['kind']]}: {task}",
            "",
            f"`{result['model']}`, {result['texts']} inputs.",
            "",
            f"| method | measure | mean | difference from {REFERENCE} |",
            "|---|---|---|---|",
        ]
        for row in result["rows"]:
            if "refused" in row:
                lines.append(f"| {row['label']} | refused: `{row['refused']}` | | |")
                continue
            for measure, mean in row["means"].items():
                difference = format_interval(row["ahead_of_attnlrp"][measure])
                lines.append(f"| {row['label']} | {measure} | {mean:.3f} | {difference} |")
        tables.append("\n".join(lines))
    run = results["facts"]
    text = TEXT.read_text(encoding="utf-8")
    text = text.replace("[[COMMAND]]", results["command"])
    text = text.replace("[[COMMIT]]", str(run["commit"]))
    return text.replace("[[TABLES]]", "\n\n".join(tables))


def main() -> None:
    """Measure every kind of input that has data and a model, or write the page of an earlier run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, help="write the page of these results instead")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tasks", nargs="+", help="names of tasks; by default all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.report:
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
        write_text(PAGE, render_page(results))
        return
    if not (arguments.data and arguments.out):
        parser.error("give --data and --out, or --report")
    results = {
        "facts": facts(arguments.device),
        "command": f"python benchmarks/frontier_kinds.py --count {arguments.count}"
        + (f" --tasks {' '.join(arguments.tasks)}" if arguments.tasks else "")
        + (
            f" --methods {' '.join(arguments.methods)}"
            if len(arguments.methods) < len(METHODS)
            else ""
        ),
        "tasks": {},
        "missing": [],
    }
    for kind, task, model, inputs in list_tasks(arguments.data, arguments.models):
        if kind in SKIPPED or (arguments.tasks and task not in arguments.tasks):
            continue
        is_embedded = model.startswith("tokenlight/")
        if not inputs or not (is_embedded or Path(model, "config.json").is_file()):
            results["missing"].append(kind)
            continue
        print(task, flush=True)
        explainer = load_explainer(kind, model, arguments.device)
        rows = measure_task(kind, explainer, inputs[: arguments.count], arguments.methods)
        results["tasks"][task] = {
            "kind": kind,
            "model": model if is_embedded else Path(model).resolve().name,
            "texts": min(arguments.count, len(inputs)),
            "rows": rows,
        }
        content = json.dumps(results, indent=1, ensure_ascii=False)
        arguments.out.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
