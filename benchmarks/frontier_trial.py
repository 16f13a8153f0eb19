"""The table of the trial that suggested sub-texts, again from the product, on the same texts.

    TOKENLIGHT_DATA=DATA python benchmarks/frontier_trial.py --out trial.json     # measures, prints the table
    python benchmarks/frontier_trial.py --report trial.json     # the page docs/results/frontier/trial.md

DATA holds sst2/dev.jsonl.gz and ag_news/test.jsonl.gz. The trial was a script of its own: BERT by hand, with
rewritten gradients in sixty lines, and its own draws of sub-texts. Here every row is a method of the product
with its defaults; sub-texts are drawn with one seed, as in the trial. A row that stands in the file already
is not measured again, so an interrupted run goes on where it stopped; cheap rows come first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frontier import METRICS, TASKS, Entry, bootstrap_mean, measure_entry, read_texts, subset_entry
from machine import facts

from tokenlight import Explainer
from tokenlight.files.write import write_text

PAGE = Path("docs/results/frontier/trial.md")
TEXT = Path(__file__).with_name("frontier_trial_text.md")  # tables take the place of [[NAME]]
TEXTS = {"sst2": 250, "ag_news": 150}
ENTRIES = (
    Entry("AttnLRP", "attnlrp"),
    Entry("CAT's read-out, CP-LRP's gradient", "cat", {"gradient": "cp"}),
    Entry("the same, mean with 8 sub-texts", *subset_entry(8, 1).specs[0]),
    Entry("integrated gradients", "integrated_gradients"),
    Entry("the same, mean with 64 sub-texts", *subset_entry(64, 1).specs[0]),
    Entry("Shapley", "shapley"),
)
# What the trial printed, in the order of METRICS.
TRIAL = {
    "sst2": {
        "Shapley": (0.603, 0.523, -0.007, 0.455),
        "integrated gradients": (0.569, 0.489, 0.022, 0.411),
        "AttnLRP": (0.582, 0.480, -0.004, 0.447),
        "CAT's read-out, CP-LRP's gradient": (0.593, 0.498, -0.006, 0.455),
        "the same, mean with 8 sub-texts": (0.629, 0.521, -0.012, 0.470),
        "the same, mean with 64 sub-texts": (0.634, 0.528, -0.019, 0.474),
    },
    "ag_news": {
        "Shapley": (0.622, 0.589, 0.024, 0.305),
        "integrated gradients": (0.562, 0.552, 0.041, 0.254),
        "AttnLRP": (0.637, 0.583, 0.044, 0.328),
        "CAT's read-out, CP-LRP's gradient": (0.650, 0.592, 0.052, 0.333),
        "the same, mean with 8 sub-texts": (0.696, 0.627, 0.040, 0.368),
        "the same, mean with 64 sub-texts": (0.709, 0.636, 0.036, 0.379),
    },
}


def measure(path: Path, device: str, rows: list[str]) -> dict[str, Any]:
    """Measure what the file lacks, and keep it after every row."""
    results: dict[str, Any] = {"tasks": {task: {} for task in TASKS}}
    if path.is_file():
        results = json.loads(path.read_text(encoding="utf-8"))
    results["facts"] = facts(device, threads=torch.get_num_threads())
    for task, (model, _, _) in TASKS.items():
        texts = read_texts(task, TEXTS[task], trial=True)
        explainer = Explainer.from_pretrained(model, device=device)
        for entry in ENTRIES:
            is_chosen = not rows or entry.label in rows
            if not is_chosen or entry.label in results["tasks"][task]:
                continue
            row = measure_entry(explainer, texts, entry)
            results["tasks"][task][entry.label] = {
                "passes": row["passes"],
                "texts": len(texts),
                "means": {name: bootstrap_mean(row["values"][name]) for name in METRICS},
            }
            path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
            means = [round(float(np.mean(row["values"][name])), 4) for name in METRICS]
            print(f"{task:8} {entry.label:36} {means}", flush=True)
    return results


def render_table(results: dict[str, Any]) -> str:
    """Render one line per method: passes, and each measure as ``product (trial)`` for both tasks."""
    lines = [
        "| SST-2 / AG News: product (trial) | passes | AOPC | AOPC by [MASK] | sufficiency ↓ | "
        "comprehensiveness |",
        "|---|---|---|---|---|---|",
    ]
    for entry in sorted(ENTRIES, key=lambda entry: -entry.count_passes(20)):
        cells = [_render_passes(results, entry.label)]
        for index, metric in enumerate(METRICS):
            parts = []
            for task in TASKS:
                row = results["tasks"][task].get(entry.label)
                product = f"{row['means'][metric][0]:.3f}" if row else "not run"
                parts.append(f"{product} ({TRIAL[task][entry.label][index]:.3f})")
            cells.append(" / ".join(parts).replace("-", "−"))
        lines.append(f"| {entry.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _render_passes(results: dict[str, Any], label: str) -> str:
    parts = []
    for task in TASKS:
        row = results["tasks"][task].get(label)
        parts.append(f"{row['passes']:.0f}" if row else "–")
    return parts[0] if parts[0] == parts[1] else " / ".join(parts)


def render_page(results: dict[str, Any]) -> str:
    """Render the page."""
    text = TEXT.read_text(encoding="utf-8")
    described = ", ".join(f"{name} {value}" for name, value in results["facts"].items())
    return text.replace("[[TABLE]]", render_table(results)).replace("[[FACTS]]", described)


def main() -> None:
    """Measure and print the table, or write the page of an earlier run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", default=[], help="labels of rows; by default all")
    parser.add_argument("--report", type=Path, help="write the page of these results instead")
    arguments = parser.parse_args()
    if arguments.report:
        results = json.loads(arguments.report.read_text(encoding="utf-8"))
        write_text(PAGE, render_page(results))
        return
    if not arguments.out:
        parser.error("give --out or --report")
    print(render_table(measure(arguments.out, arguments.device, arguments.rows)))


if __name__ == "__main__":
    main()
