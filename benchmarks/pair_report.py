"""Write the pages of the counterfactual pairs from a run of the suite, its contrasts and its peers.

    tokenlight bench run counterfactual_pairs --model MODEL -o RUN
    python benchmarks/pair_contrasts.py measure --model MODEL -o CONTRASTS.jsonl
    python benchmarks/pair_peers.py --model MODEL --peer captum gim inseq shap --per-family 4 -o PEERS.jsonl
    python benchmarks/pair_report.py collect RUN --contrasts CONTRASTS.jsonl --peers PEERS.jsonl --name NAME
    python benchmarks/pair_report.py write

``collect`` keeps the figures in docs/results/pairs/NAME.json, ``write`` makes README.md from all of them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pair_contrasts import AGAINST, METHODS, SPLITS, is_first, measure_share, rank_first
from pair_peers import DEFAULT_LABEL
from pair_records import read_records, wilson

from tokenlight.bench.suite import SUITES_FOLDER
from tokenlight.files.tables import read_examples

PAGES = Path(__file__).parent.parent / "docs" / "results" / "pairs"
CONCLUSION = Path(__file__).with_name("pair_conclusion.md")
# Labels of the suite, as this page calls the default and the other candidate.
DEFAULT_METHOD = "AttnLRP"
CANDIDATE = "AttCAT, AttnLRP's gradient"
NUM_RESAMPLES = 10_000
HEAD = """\
# Which word decided?

Two prompts that differ in one word, and the model gives both their right, different answers: "The capital of
France is" → Paris, "The capital of Italy is" → Rome. The word that differs decided. The suite
[`counterfactual_pairs`](suite.md) has {prompts:,} prompts in {pairs:,} such pairs (capitals, languages,
opposites, professions, number, gender, who gives to whom, dates, facts in the prompt, two steps …) from
templates that were written for it, [`benchmarks/pair_data.py`]({source}). A model is asked only about those
that it answers right.

Scores of tokens are summed by word. *Top* is the share of prompts in which a deciding word has the highest
score, with Wilson's 95 % interval; *held out* is the same for templates that were written after the default
target was chosen, and used for no choice; *rank* is the word's mean rank; *share* its part of all absolute
scores; *passes* are forward and backward passes per prompt. Our own methods explain the logit of the answer
minus those of the 20 likeliest other tokens, weighted by their probabilities (the default target of a next
token).
"""
SOURCE = "../../../benchmarks/pair_data.py"


def collect(run: Path, contrasts: Path | None, peers: Path | None, name: str) -> dict[str, Any]:
    """Return the figures of one model."""
    plan = json.loads((run / "run.json").read_text("utf-8"))["plan"]
    (completed,) = plan["completed"].values()
    examples = read_examples(SUITES_FOLDER / "counterfactual_pairs.jsonl")
    # Runs of earlier versions have the old name.
    num_prompts = completed.get("num_prompts", completed.get("num_asked"))
    if num_prompts != len(examples):
        raise SystemExit(f"{run} asked {num_prompts} of {len(examples)} prompts: ask all.")
    prompts = [examples[index] for index in completed["indices"]]
    readings = read_run(run, prompts)
    rows = {label: summarize(values) for label, values in readings.items()}
    for label, passes in count_passes(run).items():
        rows[label]["passes"] = [count / len(prompts) for count in passes]
    result: dict[str, Any] = {"model": name, "asked": len(examples), "completed": len(prompts)}
    result["pairs"] = count_pairs(examples)
    result["chance"] = float(np.mean([reading["chance"] for reading in readings[DEFAULT_METHOD]]))
    result["methods"] = rows
    result["difference"] = {}
    for split in SPLITS:
        pair = [
            [reading["top"] for reading in readings[label] if reading["templates"] == split]
            for label in (CANDIDATE, DEFAULT_METHOD)
        ]
        result["difference"][split] = compare(*pair)
    if contrasts is not None:
        result["contrasts"] = summarize_contrasts(read_records(contrasts))
    if peers is not None:
        result["peers"] = summarize_peers(read_records(peers))
    return result


def count_pairs(examples: Sequence[Any]) -> int:
    """Return the number of different pairs of prompts."""
    pairs = set()
    for example in examples:
        for other in example.extra_columns["counterfactuals"]:
            pairs.add(frozenset((example.text, other)))
    return len(pairs)


def read_run(run: Path, prompts: Sequence[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the readings of every method: one per prompt, in the order of the data."""
    readings: dict[str, list[dict[str, Any]]] = {}
    for part in sorted((run / "parts").glob("*/*/*.jsonl")):
        # The last line of a part says what was measured, the others hold a prompt each.
        *lines, part_summary = map(json.loads, part.read_text("utf-8").splitlines())
        for line in lines:
            columns = prompts[line["example"]].extra_columns
            measured = line["measured"]["First"]
            reading = {"top": measured["value"], **measured["parts"]}
            reading |= {"family": columns["family"], "templates": columns["templates"]}
            readings.setdefault(part_summary["method"], []).append(reading)
    return readings


def count_passes(run: Path) -> dict[str, tuple[int, int]]:
    """Return the forward and the backward passes of every method."""
    counts: dict[str, tuple[int, int]] = {}
    with (run / "timings.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            forwards, backwards = counts.get(row["method"], (0, 0))
            forwards += int(row["explain_forwards"])
            backwards += int(row["explain_backwards"])
            counts[row["method"]] = (forwards, backwards)
    return counts


def summarize(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over prompts, by templates and by family."""
    top = float(np.mean([reading["top"] for reading in readings]))
    low, high = wilson(top, len(readings))
    row: dict[str, Any] = {"top": top, "low": low, "high": high, "prompts": len(readings)}
    for part in ("rank", "share"):
        row[part] = float(np.mean([reading[part] for reading in readings]))
    for key in ("templates", "family"):
        groups: dict[str, list[float]] = {}
        for reading in readings:
            groups.setdefault(reading[key], []).append(reading["top"])
        row[key] = {name: [float(np.mean(v)), len(v)] for name, v in sorted(groups.items())}
    return row


def compare(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return the paired difference of two methods, with a 95 % bootstrap interval over prompts."""
    differences = np.array(first) - np.array(second)
    draws = np.random.default_rng(0).integers(
        len(differences), size=(NUM_RESAMPLES, len(differences))
    )
    low, high = np.quantile(differences[draws].mean(1), [0.025, 0.975])
    return {
        "mean": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "better": int((differences > 0).sum()),
        "worse": int((differences < 0).sum()),
        "prompts": len(differences),
    }


def read_word_scores(records: Sequence[Mapping[str, Any]], label: str) -> list[dict[str, Any]]:
    """Return the readings of recorded word scores: one per prompt."""
    readings = []
    for record in records:
        reading = {"top": is_first(record, label), "rank": rank_first(record, label)}
        reading |= {"share": measure_share(record, label), "family": record["family"]}
        readings.append(reading | {"templates": record["templates"]})
    return readings


def summarize_contrasts(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every method under every contrast, and its paired difference to the default."""
    labels = [f"{label}: {name}" for label in METHODS for name in (*AGAINST, "foil")]
    readings = {label: read_word_scores(records, label) for label in labels}
    rows = {label: summarize(values) for label, values in readings.items()}
    for label, row in rows.items():
        row["difference"] = {}
        for split in SPLITS:
            tops = [
                [reading["top"] for reading in values if reading["templates"] == split]
                for values in (readings[label], readings[labels[0]])
            ]
            row["difference"][split] = compare(*tops)
    return {"prompts": len(records), "rows": rows}


def summarize_peers(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return every library on the same prompts, its cost, and the default's paired difference to it."""
    rows = {}
    bare = sum(record["seconds"]["bare"] for record in records)
    defaults = read_word_scores(records, DEFAULT_LABEL)
    for label in records[0]["seconds"]:
        if label == "bare":
            continue
        readings = read_word_scores(records, label)
        row = summarize(readings)
        row["cost"] = sum(record["seconds"][label] for record in records) / bare
        row["difference"] = compare(
            [reading["top"] for reading in defaults], [reading["top"] for reading in readings]
        )
        rows[label] = row
    return {"prompts": len(records), "rows": rows}


def write_page(folder: Path, conclusion: Path = CONCLUSION) -> None:
    """Write README.md beside the JSON files of ``folder``: the tables of every model, then what follows."""
    results = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    head = HEAD.format(prompts=results[0]["asked"], pairs=results[0]["pairs"], source=SOURCE)
    sections = [head]
    for result in results:
        sections.append(format_methods(result))
        if "peers" in result:
            sections.append(format_peers(result["peers"]))
        sections.append(format_families(result))
    sections.append(conclusion.read_text("utf-8"))
    (folder / "README.md").write_text("\n".join(sections), encoding="utf-8")


def sort_rows(rows: Mapping[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of a table, the highest share first."""
    return sorted(rows.items(), key=lambda item: -item[1]["top"])


def format_share(row: Mapping[str, Any]) -> str:
    """Return the cells of a share: itself and its interval."""
    return f"{row['top']:.2f} | {row['low']:.2f}–{row['high']:.2f}"


def format_methods(result: Mapping[str, Any]) -> str:
    """Return the section of one model with its methods, best first."""
    num_held_out = result["methods"][DEFAULT_METHOD]["templates"][SPLITS[1]][1]
    lines = [
        f"## {result['model']}",
        "",
        f"Of all {result['asked']:,} prompts, it completes {result['completed']:,} as expected together with "
        f"the others of their pairs; {num_held_out:,} of these come from held-out templates. A random order "
        f"reaches {result['chance']:.2f}.",
        "",
        "| method | top | 95 % interval | held out | rank | share | passes |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in sort_rows(result["methods"]):
        name = f"**{label}** (default)" if label == DEFAULT_METHOD else label
        forwards, backwards = row["passes"]
        lines.append(
            f"| {name} | {format_share(row)} | {row['templates'][SPLITS[1]][0]:.2f} | {row['rank']:.2f} | "
            f"{row['share']:.2f} | {forwards:.1f} + {backwards:.1f} |"
        )
    return "\n".join([*lines, ""])


def format_peers(peers: Mapping[str, Any]) -> str:
    """Return the table of other libraries beside the default, on the same prompts."""
    lines = [
        f"Other libraries, each with its own defaults, on {peers['prompts']} of these prompts. *Cost* is "
        "processor time relative to one forward and backward pass of the bare model; *ahead by* is what the "
        "default finds more, paired, with a 95 % bootstrap interval over prompts:",
        "",
        "| method | top | 95 % interval | rank | share | cost | ahead by |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, row in sort_rows(peers["rows"]):
        difference = row["difference"]
        name = label
        ahead = f"{difference['mean']:+.2f} ({difference['low']:+.2f} to {difference['high']:+.2f})"
        if label == DEFAULT_LABEL:
            name = f"**{label}**"
            ahead = "–"
        cells = [name, format_share(row), f"{row['rank']:.2f}", f"{row['share']:.2f}"]
        cells += [f"{row['cost']:.1f} ×", ahead]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def format_families(result: Mapping[str, Any]) -> str:
    """Return the shares of the four best methods by family."""
    labels = [label for label, _ in sort_rows(result["methods"])[:4]]
    if DEFAULT_METHOD not in labels:
        labels[-1] = DEFAULT_METHOD
    lines = [
        "Share of prompts with a deciding word on top, by family:",
        "",
        f"| family | prompts | {' | '.join(labels)} |",
        f"|---|---|{'---|' * len(labels)}",
    ]
    for family, (_, prompts) in result["methods"][DEFAULT_METHOD]["family"].items():
        shares = [result["methods"][label]["family"][family][0] for label in labels]
        cells = " | ".join(f"{share:.2f}" for share in shares)
        lines.append(f"| {family} | {prompts} | {cells} |")
    return "\n".join([*lines, ""])


def format_contrasts(contrasts: Mapping[str, Any]) -> str:
    """Return the table of methods and contrasts that held_out.md shows."""
    lines = [
        "| method | rather than | first | held out | difference to the default, held out |",
        "|---|---|---|---|---|",
    ]
    for label, row in contrasts["rows"].items():
        method, name = label.split(": ")
        cells = []
        for split in SPLITS:
            share, num_prompts = row["templates"][split]
            low, high = wilson(share, num_prompts)
            cells.append(f"{share:.2f} ({low:.2f}–{high:.2f}, n = {num_prompts})")
        difference = row["difference"][SPLITS[1]]
        cells.append(
            f"{difference['mean']:+.2f} ({difference['low']:+.2f} to {difference['high']:+.2f})"
        )
        lines.append(f"| {method} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    collected = commands.add_parser("collect")
    collected.add_argument("run", type=Path)
    collected.add_argument("--contrasts", type=Path)
    collected.add_argument("--peers", type=Path)
    collected.add_argument("--name", required=True, help="what the page calls the model")
    collected.add_argument("--folder", type=Path, default=PAGES)
    written = commands.add_parser("write")
    written.add_argument("--folder", type=Path, default=PAGES)
    arguments = parser.parse_args()
    if arguments.command == "write":
        write_page(arguments.folder)
        return
    result = collect(arguments.run, arguments.contrasts, arguments.peers, arguments.name)
    path = arguments.folder / f"{arguments.name}.json"
    path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if "contrasts" in result:
        print(format_contrasts(result["contrasts"]))


if __name__ == "__main__":
    main()
