"""The most faithful answer at every price: methods by passes and seconds, by the protocol of ADR 0019.

    TOKENLIGHT_DATA=DATA python benchmarks/frontier.py --out frontier.json [--device cuda] [--texts 250 150]
    python benchmarks/frontier.py --report frontier.json          # the page docs/results/frontier

DATA holds sst2/dev.jsonl.gz and ag_news/test.jsonl.gz. ``--texts`` is the number of texts of each task.
``--trial`` takes the texts that the first trial chose its options on, instead of those held out from it:
its table again, and an ablation of the options. ``--quick`` leaves out Shapley values and 64 sub-texts.
``--only`` names the rows to measure, such as ``--only attnlrp ablations``; attnlrp must be one of them.

Every method explains the same texts for the predicted class. Passes are pairs of a forward and a backward
pass over the whole text (``cost``); forward passes alone count as half. Seconds are those of one call for
all texts, after a first call on a few of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import facts

from tokenlight import Attribution, Explainer, registry

TRIAL_SEED = 11  # of the order of lines, as in the trial
TASKS = {  # model, file, and how many texts the trial looked at
    "sst2": ("tokenlight/sentiment", "sst2/dev.jsonl.gz", 250),
    "ag_news": ("tokenlight/topics", "ag_news/test.jsonl.gz", 150),
}
METRICS = {
    "aopc": "aopc",
    "aopc_mask": "aopc:perturb=mask",
    "sufficiency": "sufficiency",
    "comprehensiveness": "comprehensiveness",
}
LOWER_IS_BETTER = frozenset({"sufficiency"})
PRIMARY = "aopc"
NUM_SEEDS = 3
NUM_RESAMPLES = 2000
NUM_WARMUP_TEXTS = 8
# Most passes at each price; what costs more is a reference. A rewritten gradient may take a second backward.
PRICES = {"one pass": 1.5, "about ten passes": 12.0, "about a hundred passes": 130.0}
INCUMBENT = "attnlrp"


@dataclass(frozen=True)
class Entry:
    """A method with its options, as one row of the table."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1

    @property
    def specs(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and options of the method, once per seed."""
        if self.seeds == 1:
            return [(self.method, dict(self.options))]
        return [(self.method, {**self.options, "seed": seed}) for seed in range(self.seeds)]

    def count_passes(self, num_tokens: int) -> float:
        """Return pairs of forward and backward passes over a text of ``num_tokens``."""
        cost = registry.build("methods", self.method, dict(self.options)).count_passes(num_tokens)
        return (cost.forwards + cost.backwards) / 2


def subset_entry(samples: int, seeds: int = NUM_SEEDS, **options: Any) -> Entry:
    """Return ``subset_relevance`` with a number of sub-texts."""
    words = [f"{name}={value}" for name, value in options.items()]
    label = ", ".join([f"subset_relevance, {samples} sub-texts", *words])
    return Entry(label, "subset_relevance", {"num_samples": samples, **options}, seeds)


ENTRIES = (
    Entry("random", "random"),
    Entry("grad_x_input", "grad_x_input"),
    Entry("gae", "gae"),
    Entry("attcat", "attcat"),
    Entry("attnlrp", "attnlrp"),
    Entry("cp_lrp", "cp_lrp"),
    Entry("cat:gradient=attnlrp", "cat", {"gradient": "attnlrp"}),
    Entry("cat:gradient=cp", "cat", {"gradient": "cp"}),
    Entry("attcat:gradient=cp", "attcat", {"gradient": "cp"}),
    Entry("gim", "gim"),
    Entry("cat:gradient=gim", "cat", {"gradient": "gim"}),
    Entry("fullgrad_plus", "fullgrad_plus"),
    Entry("fullgrad_plus:gradient=libra", "fullgrad_plus", {"gradient": "libra"}),
    subset_entry(2),
    subset_entry(4),
    subset_entry(8),
    subset_entry(8, readout="embeddings"),
    Entry("smooth", "smooth"),
    Entry("occlusion:window=1", "occlusion", {"window": 1}),
    subset_entry(16),
    subset_entry(32),
    Entry("integrated_gradients", "integrated_gradients", {"num_steps": 50}),
    subset_entry(64),
    Entry("shapley", "shapley"),
)
SLOW = frozenset({"shapley", "subset_relevance, 64 sub-texts", "subset_relevance, 32 sub-texts"})
ABLATIONS = (
    *(subset_entry(8, 1, keep_probability=share) for share in (0.3, 0.7, 0.8, 0.9)),
    *(subset_entry(8, 1, gradient=gradient) for gradient in ("model", "attnlrp")),
    subset_entry(8, 1, readout="attcat"),
    *(subset_entry(8, 1, removal=removal) for removal in ("mask", "replace")),
    subset_entry(8, 1, units="word"),
)


def select_entries(arguments: argparse.Namespace) -> list[Entry]:
    """Return the rows that the command asks for."""
    entries = [entry for entry in ENTRIES if not (arguments.quick and entry.label in SLOW)]
    if arguments.trial:
        entries += ABLATIONS
    if not arguments.only:
        return entries
    names = set(arguments.only)
    ablations = {entry.label for entry in ABLATIONS} if "ablations" in names else set()
    known = {entry.label for entry in entries} | {"ablations"}
    if names - known:
        raise SystemExit(f"no such row: {', '.join(sorted(names - known))}; known: {sorted(known)}")
    return [entry for entry in entries if entry.label in names | ablations]


def read_texts(task: str, count: int, *, trial: bool) -> list[str]:
    """Read the texts of a task: those of the trial, or those behind them in the same order."""
    _, name, num_trial = TASKS[task]
    path = Path(os.environ["TOKENLIGHT_DATA"]) / name
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    order = np.random.default_rng(TRIAL_SEED).permutation(len(records))
    first = 0 if trial else num_trial
    chosen = order[first : first + count]
    return [records[index].get("text") or records[index]["sentence"] for index in chosen]


def measure_entry(explainer: Explainer, texts: Sequence[str], entry: Entry) -> dict[str, Any]:
    """Explain all texts by a method and measure the explanations.

    Returns:
        ``passes``, ``seconds`` and ``values``: by metric one number per text, the mean over seeds;
        ``seed_range``, the largest difference between the means of two seeds; for sampled scores,
        the mean of ``self_test`` and ``stability``.
    """
    values_by_seed: dict[str, list[list[float]]] = {metric: [] for metric in METRICS}
    seconds = []
    attributions: list[Attribution] = []
    for spec in entry.specs:
        run = explainer.explain(texts[:NUM_WARMUP_TEXTS], spec, long="truncate", progress=False)
        start = time.perf_counter()
        attributions = list(explainer.explain(texts, spec, long="truncate", progress=False))
        for attribution in attributions:
            attribution.scores  # noqa: B018 - lazy: computed when it is read
        seconds.append(time.perf_counter() - start)
        del run
        evaluation = explainer.evaluate(attributions, list(METRICS.values()), progress=False)
        for metric, key in zip(METRICS, evaluation.metrics, strict=True):
            values_by_seed[metric].append([row[key] for row in evaluation.rows])
    num_tokens = round(float(np.mean([len(attribution) for attribution in attributions])))
    values = {name: np.mean(runs, axis=0) for name, runs in values_by_seed.items()}
    seed_means = np.mean(values_by_seed[PRIMARY], axis=1)
    return {
        "label": entry.label,
        "method": entry.method,
        "options": dict(entry.options),
        "seeds": entry.seeds,
        "passes": entry.count_passes(num_tokens),
        "seconds": float(np.mean(seconds)),
        "seed_range": float(np.ptp(seed_means)),
        "values": values,
        **summarize_sampling(attributions),
    }


def summarize_sampling(attributions: Sequence[Attribution]) -> dict[str, float]:
    """Return the mean self-test and stability over texts, where scores were sampled."""
    samplings = [attribution.extras.get("sampling", {}) for attribution in attributions]
    tests = [sampling["self_test"] for sampling in samplings if sampling.get("self_test")]
    if not tests:
        return {}
    stabilities = [sampling["stability"] for sampling in samplings]
    return {
        "self_test": float(np.mean([test["correlation"] for test in tests])),
        "stability": float(np.mean(stabilities)),
    }


def bootstrap_mean(values: np.ndarray) -> list[float]:
    """Return the mean of values over texts with a 95 % percentile interval: mean, low, high."""
    generator = np.random.default_rng(0)
    draws = generator.integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return [float(values.mean()), float(low), float(high)]


def compare(
    rows: Sequence[dict[str, Any]], metric: str, this: str, that: str
) -> list[float] | None:
    """Return the paired difference ``this − that``, positive where ``this`` is better, or None."""
    by_label = {row["label"]: row for row in rows}
    if this not in by_label or that not in by_label:
        return None
    sign = -1 if metric in LOWER_IS_BETTER else 1
    difference = by_label[this]["values"][metric] - by_label[that]["values"][metric]
    return bootstrap_mean(sign * difference)


def rank_rows(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the mean rank of each label over metrics; equal means share the mean of their ranks."""
    ranks: dict[str, list[float]] = {row["label"]: [] for row in rows}
    for metric in METRICS:
        sign = -1 if metric in LOWER_IS_BETTER else 1
        means = {row["label"]: sign * float(row["values"][metric].mean()) for row in rows}
        for label, mean in means.items():
            num_better = sum(other > mean for other in means.values())
            num_equal = sum(other == mean for other in means.values())
            ranks[label].append(num_better + (num_equal + 1) / 2)
    return {label: float(np.mean(numbers)) for label, numbers in ranks.items()}


def choose_defaults(rows_by_task: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Apply the rule of the protocol: for each price what was chosen, and why."""
    current = INCUMBENT
    choices = []
    for price, limit in PRICES.items():
        eligible = []
        for row in next(iter(rows_by_task.values())):
            passes = [
                other["passes"]
                for rows in rows_by_task.values()
                for other in rows
                if other["label"] == row["label"]
            ]
            if max(passes) <= limit and len(passes) == len(rows_by_task):
                eligible.append(row["label"])
        ranks = []
        for rows in rows_by_task.values():
            ranks.append(rank_rows([row for row in rows if row["label"] in eligible]))
        mean_ranks = {label: float(np.mean([task[label] for task in ranks])) for label in eligible}
        best = min(mean_ranks, key=lambda label: mean_ranks[label])
        reasons = find_objections(rows_by_task, best, current)
        chosen = current if reasons else best
        choices.append(
            {
                "price": price,
                "best_rank": best,
                "ranks": mean_ranks,
                "against": current,
                "objections": reasons,
                "chosen": chosen,
            }
        )
        current = chosen
    return choices


def find_objections(
    rows_by_task: Mapping[str, Sequence[dict[str, Any]]], candidate: str, current: str
) -> list[str]:
    """Return why a candidate does not replace the current default; empty if it does."""
    if candidate == current:
        return []
    objections = []
    for task, rows in rows_by_task.items():
        for metric in METRICS:
            difference = compare(rows, metric, candidate, current)
            if difference is None:
                continue
            _, low, high = difference
            if metric == PRIMARY and low <= 0:
                objections.append(f"{task}: not ahead in {metric}")
            if high < 0:
                objections.append(f"{task}: behind in {metric}")
    return objections


HYPOTHESES = (  # statement, this, that, metric
    ("1", "cat:gradient=cp", "attnlrp", "aopc"),
    ("2", "subset_relevance, 8 sub-texts", "attnlrp", "aopc"),
    ("2", "subset_relevance, 8 sub-texts", "cat:gradient=cp", "aopc"),
    ("3", "subset_relevance, 8 sub-texts", "shapley", "aopc"),
    ("3", "subset_relevance, 8 sub-texts", "integrated_gradients", "aopc"),
    ("4", "subset_relevance, 64 sub-texts", "subset_relevance, 8 sub-texts", "aopc"),
    ("5", "cat:gradient=cp", "attnlrp", "aopc_mask"),
    ("5", "subset_relevance, 8 sub-texts", "attnlrp", "aopc_mask"),
    ("5", "subset_relevance, 8 sub-texts", "cat:gradient=cp", "aopc_mask"),
    ("5", "subset_relevance, 8 sub-texts", "shapley", "aopc_mask"),
)


def summarize(rows_by_task: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return means with intervals, the hypotheses and the choices, as JSON values."""
    tasks = {}
    for task, rows in rows_by_task.items():
        entries = []
        for row in rows:
            entry = {name: value for name, value in row.items() if name != "values"}
            entry["means"] = {name: bootstrap_mean(row["values"][name]) for name in METRICS}
            entry["ahead_of_attnlrp"] = compare(rows, PRIMARY, row["label"], INCUMBENT)
            entries.append(entry)
        tasks[task] = {"texts": len(rows[0]["values"][PRIMARY]), "rows": entries}
    tests = []
    for number, this, that, metric in HYPOTHESES:
        differences = {
            task: compare(rows, metric, this, that) for task, rows in rows_by_task.items()
        }
        tests.append(
            {
                "hypothesis": number,
                "this": this,
                "that": that,
                "metric": metric,
                "differences": differences,
            }
        )
    return {"tasks": tasks, "hypotheses": tests, "choices": choose_defaults(rows_by_task)}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every entry on every task."""
    entries = select_entries(arguments)
    rows_by_task = {}
    for (task, (model, _, _)), count in zip(TASKS.items(), arguments.texts, strict=True):
        texts = read_texts(task, count, trial=arguments.trial)
        explainer = Explainer.from_pretrained(model, device=arguments.device)
        rows_by_task[task] = []
        for entry in entries:
            start = time.perf_counter()
            row = measure_entry(explainer, texts, entry)
            rows_by_task[task].append(row)
            means = " ".join(f"{float(row['values'][name].mean()):7.4f}" for name in METRICS)
            took = time.perf_counter() - start
            print(
                f"{task:8} {means} {row['passes']:7.1f} {row['seconds']:8.2f} s {entry.label} ({took:.0f} s)",
                flush=True,
            )
    return {
        "facts": facts(arguments.device, threads=torch.get_num_threads()),
        "texts": "the trial's" if arguments.trial else "held out",
        "command": "python benchmarks/frontier.py --texts "
        + " ".join(map(str, arguments.texts))
        + (" --trial" if arguments.trial else "")
        + (" --quick" if arguments.quick else "")
        + (" --only " + " ".join(map(shlex.quote, arguments.only)) if arguments.only else "")
        + f" --device {arguments.device}",
        **summarize(rows_by_task),
    }


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--texts", type=int, nargs=2, default=(250, 150))
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--report", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.report:
        from frontier_page import write_page

        write_page(arguments.report)
        return
    results = json.dumps(measure(arguments), indent=1, ensure_ascii=False)
    if arguments.out:
        arguments.out.write_text(results + "\n", encoding="utf-8")
    else:
        print(results)


if __name__ == "__main__":
    main()
