"""The page docs/results/frontier/confirmation.md: the rule of ADR 0022, applied to what was measured.

    python benchmarks/frontier_confirmation_page.py --values FILE… --support FILE --times FILE --memory FILE

``--values`` are files of benchmarks/frontier_confirmation.py, ``--support`` is from
``python -m tests.tools.one_pass_support``, ``--times`` from benchmarks/subset_cost.py, ``--memory`` from
benchmarks/one_pass_cost.py. Differences, intervals and verdicts are written to confirmation.json beside the
page; ``--report`` writes the page from that file alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from frontier import LOWER_IS_BETTER, bootstrap_mean
from frontier_confirmation import CANDIDATES, INCUMBENT, NUM_RANDOM_TEXTS, RANDOM, TASKS
from frontier_page import FOLDER, format_interval

from tokenlight.files.write import write_text

PAGE = FOLDER / "confirmation.md"
RESULTS = FOLDER / "confirmation.json"
TEXT = Path(__file__).with_name(
    "frontier_confirmation_text.md"
)  # tables take the place of [[NAME]]
NAMES = [entry.label for entry in CANDIDATES]
PREFERRED, SIMPLER = NAMES
KINDS = {"text": "texts", "pair": "pairs", "question": "questions"}
PRIMARY_SHARE = 2 / 3  # of the tasks of a kind on which a candidate must be ahead
LARGE_LOSS = 0.1  # of the distance between the incumbent and random scores
MAX_TIME = 1.10  # × the incumbent
MAX_MEMORY = 1.0  # × the bare pass
METRIC_TITLES = {
    "aopc": "AOPC",
    "aopc:perturb=mask": "AOPC by [MASK]",
    "sufficiency": "sufficiency ↓",
    "comprehensiveness": "comprehensiveness",
    "comprehensiveness:perturb=mask": "comprehensiveness by [MASK]",
    "sufficiency:perturb=mask": "sufficiency by [MASK] ↓",
    "sign_agreement": "signs",
    "rationale": "human rationales",
}


def compare_column(task: str, metric: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return means of a column, and each candidate's difference from the incumbent, higher being better."""
    sign = -1.0 if metric.split(":", maxsplit=1)[0] in LOWER_IS_BETTER else 1.0
    scores = {name: np.array(runs[metric], dtype=float) for name, runs in values.items()}
    incumbent = scores[INCUMBENT.label]
    num_random = min(NUM_RANDOM_TEXTS, len(incumbent))
    beside_random = sign * (incumbent[:num_random] - scores[RANDOM.label][:num_random])
    differences = {}
    for name in NAMES:
        difference = sign * (scores[name] - incumbent)
        differences[name] = bootstrap_mean(difference[~np.isnan(difference)])
    between = sign * (scores[PREFERRED] - scores[SIMPLER])
    return {
        "task": task,
        "metric": metric,
        "is_primary": metric in TASKS[task].metrics[: TASKS[task].num_primary],
        "means": {name: float(np.nanmean(numbers)) for name, numbers in scores.items()},
        "large_loss": LARGE_LOSS * float(np.nanmean(beside_random)),
        "differences": differences,
        "between_candidates": bootstrap_mean(between[~np.isnan(between)]),
    }


def count_directions(columns: list[dict[str, Any]], name: str) -> tuple[list[str], list[str]]:
    """Return the columns on which a candidate is ahead, and those on which it is behind."""
    ahead = []
    behind = []
    for column in columns:
        _, low, high = column["differences"][name]
        label = f"{column['task']}, {METRIC_TITLES[column['metric']]}"
        if low > 0:
            ahead.append(label)
        if high < 0:
            behind.append(label)
    return ahead, behind


def decide_primary(columns: list[dict[str, Any]], name: str) -> tuple[bool, str]:
    """Apply part 1 of the rule to the primary columns of a kind."""
    holds = True
    figures = []
    for metric in dict.fromkeys(column["metric"] for column in columns):
        own = [column for column in columns if column["metric"] == metric]
        ahead, behind = count_directions(own, name)
        needed = int(np.ceil(PRIMARY_SHARE * len(own)))
        holds = holds and len(ahead) >= needed and not behind
        figures.append(f"{METRIC_TITLES[metric]}: ahead on {len(ahead)} of {len(own)}")
        if behind:
            figures.append(f"behind: {'; '.join(behind)}")
    return holds, ", ".join(figures)


def decide_rest(columns: list[dict[str, Any]], name: str) -> tuple[bool, str]:
    """Apply part 2 of the rule to the other columns of a kind."""
    ahead, behind = count_directions(columns, name)
    figures = f"ahead on {len(ahead)}, behind on {len(behind)} of {len(columns)}"
    if behind:
        figures += f" ({'; '.join(behind)})"
    return len(behind) <= len(ahead), figures


def decide_loss(columns: list[dict[str, Any]], name: str) -> tuple[bool, str]:
    """Apply part 3 of the rule to all columns of a kind."""
    large = []
    for column in columns:
        if column["differences"][name][2] < -column["large_loss"]:
            large.append(f"{column['task']}, {METRIC_TITLES[column['metric']]}")
    return not large, "; ".join(large) or "none"


def decide_kind(
    kind: str, columns: list[dict[str, Any]], general: dict[str, Any]
) -> dict[str, Any]:
    """Apply the rule to one kind of input."""
    own = [column for column in columns if TASKS[column["task"]].kind == kind]
    tasks = [name for name, task in TASKS.items() if task.kind == kind]
    missing = [name for name in tasks if name not in {column["task"] for column in own}]
    if missing:
        return {"kind": kind, "missing": missing, "chosen": INCUMBENT.label, "candidates": {}}
    primary = [column for column in own if column["is_primary"]]
    rest = [column for column in own if not column["is_primary"]]
    candidates: dict[str, Any] = {}
    for name in NAMES:
        parts = {
            "primary": decide_primary(primary, name),
            "the rest": decide_rest(rest, name),
            "no large loss": decide_loss(own, name),
            "support": general["support"][name],
            "cost": general["cost"][name],
        }
        candidates[name] = parts
    passing = [
        name for name, parts in candidates.items() if all(part[0] for part in parts.values())
    ]
    chosen = passing[0] if passing else INCUMBENT.label
    is_ahead_of_simpler = any(column["between_candidates"][1] > 0 for column in primary)
    if len(passing) == 2 and not is_ahead_of_simpler:
        chosen = SIMPLER
    return {"kind": kind, "missing": [], "chosen": chosen, "candidates": candidates}


def decide_support(families: dict[str, list[str]]) -> dict[str, tuple[bool, str]]:
    """Apply part 4 of the rule."""
    verdicts = {}
    for name in NAMES:
        missing = sorted(set(families[INCUMBENT.label]) - set(families[name]))
        figures = f"{len(families[name])} of {len(families[INCUMBENT.label])} families"
        if missing:
            figures += f", without {', '.join(missing)}"
        verdicts[name] = (not missing, figures)
    return verdicts


def decide_cost(times: dict[str, Any], memory: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    """Apply part 5 of the rule."""
    ratios = {row["method"]: row["ratio"] for row in times["rows"]}
    peaks = {row["case"]: row["memory"] for row in memory["tables"][0]["rows"]}
    verdicts = {}
    for name in NAMES:
        holds = ratios[name] <= MAX_TIME and peaks[name] <= MAX_MEMORY
        figures = f"{ratios[name]:.2f} × the time of attnlrp, {peaks[name]:.2f} × the memory of the bare pass"
        verdicts[name] = (holds, figures)
    return verdicts


def summarize(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all differences and verdicts."""
    tasks: dict[str, Any] = {}
    commits = {}
    for path in arguments.values:
        content = read_json(path)
        tasks |= content["tasks"]
        commits |= {name: content["facts"] for name in content["tasks"]}
    columns = []
    for name, content in tasks.items():
        for metric in TASKS[name].metrics:
            columns.append(compare_column(name, metric, content["values"]))
    families = read_json(arguments.support)
    times, memory = read_json(arguments.times), read_json(arguments.memory)
    general = {"support": decide_support(families), "cost": decide_cost(times, memory)}
    return {
        "tasks": {
            name: {
                "model": content["model"],
                "texts": content["texts"],
                "accuracy": content["accuracy"],
                "facts": commits[name],
            }
            for name, content in tasks.items()
        },
        "columns": columns,
        "kinds": [decide_kind(kind, columns, general) for kind in KINDS],
        "times": times,
        "memory": memory,
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of results."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def render_verdicts(results: dict[str, Any]) -> str:
    """Make the table of what the rule says of each kind and candidate."""
    lines = [
        "| kind | candidate | part of the rule | holds | figures |",
        "|---|---|---|---|---|",
    ]
    for kind in results["kinds"]:
        for name, parts in kind["candidates"].items():
            for part, (holds, figures) in parts.items():
                verdict = "yes" if holds else "**no**"
                lines.append(f"| {KINDS[kind['kind']]} | {name} | {part} | {verdict} | {figures} |")
    lines += ["", "| kind | default |", "|---|---|"]
    for kind in results["kinds"]:
        reason = f" (not measured: {', '.join(kind['missing'])})" if kind["missing"] else ""
        lines.append(f"| {KINDS[kind['kind']]} | `{kind['chosen']}`{reason} |")
    return "\n".join(lines)


def render_columns(results: dict[str, Any]) -> str:
    """Make the table of all columns: means, and paired differences with intervals, higher being better."""
    names = [INCUMBENT.label, *NAMES, RANDOM.label]
    heads = " | ".join([*names, *(f"{name} − attnlrp" for name in NAMES)])
    lines = [f"| task | measure | {heads} |", "|---" * (2 + len(names) + len(NAMES)) + "|"]
    for column in results["columns"]:
        means = [f"{column['means'][name]:.3f}" for name in names]
        differences = [format_interval(column["differences"][name]) for name in NAMES]
        title = METRIC_TITLES[column["metric"]]
        if column["is_primary"]:
            title = f"*{title}*"
        lines.append(f"| {column['task']} | {title} | {' | '.join([*means, *differences])} |")
    return "\n".join(lines)


def render_tasks(results: dict[str, Any]) -> str:
    """Make the table of tasks."""
    lines = ["| task | model | texts | accuracy | commit |", "|---|---|---|---|---|"]
    for name, task in results["tasks"].items():
        accuracy = "" if task["accuracy"] is None else f"{task['accuracy']:.3f}"
        lines.append(
            f"| {name} | {task['model']} | {task['texts']} | {accuracy} | {task['facts']['commit']} |"
        )
    return "\n".join(lines)


def render_page(results: dict[str, Any]) -> str:
    """Fill the tables into the text of the page."""
    page = TEXT.read_text(encoding="utf-8")
    tables = {
        "VERDICTS": render_verdicts(results),
        "COLUMNS": render_columns(results),
        "TASKS": render_tasks(results),
    }
    for name, table in tables.items():
        page = page.replace(f"[[{name}]]", table)
    return page


def main() -> None:
    """Apply the rule and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=Path, nargs="+")
    parser.add_argument("--support", type=Path)
    parser.add_argument("--times", type=Path)
    parser.add_argument("--memory", type=Path)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if not arguments.report:
        content = json.dumps(summarize(arguments), ensure_ascii=False, indent=1)
        write_text(RESULTS, content + "\n")
    write_text(PAGE, render_page(read_json(RESULTS)))


if __name__ == "__main__":
    main()
