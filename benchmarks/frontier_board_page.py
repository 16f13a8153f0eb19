"""The page docs/results/frontier/board.md: every hypothesis of ADR 0021 decided, and its rule applied.

    python benchmarks/frontier_board_page.py --boards board*.json --errors errors.json --costs cost*.json

``--boards`` are files of benchmarks/frontier_board.py; methods of one panel may stand in several of them.
``--errors`` is from benchmarks/frontier_errors.py, ``--costs`` are from benchmarks/subset_cost.py. The means,
intervals, ranks and verdicts are written to board.json beside the page; ``--report`` writes the page and its
figure from that file alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from frontier import INCUMBENT, NUM_RESAMPLES, PRICES, bootstrap_mean
from frontier_page import FOLDER, format_interval, render_errors
from leaderboard import Column

from tokenlight.files.write import write_text

PAGE = FOLDER / "board.md"
RESULTS = FOLDER / "board.json"
FIGURE = "board.png"
TEXT = Path(__file__).with_name("frontier_board_text.md")  # tables take the place of [[NAME]]
TASKS = {  # the tasks of the protocol, and the kind of input of each
    "sst2": "text",
    "amazon": "text",
    "ag_news": "text",
    "squad_v1": "question",
    "qqp": "pair",
    "snli": "pair",
}
FEW = "subset_relevance, 8 sub-texts"
MANY = "subset_relevance, 64 sub-texts"
CANDIDATE = "fullgrad_plus:gradient=libra"  # of the one-pass methods, the best in mean rank
MASKED = "aopc(perturb=mask)"
NUM_AHEAD = 5  # tasks of six on which a method must be ahead
COVERAGE = 0.9  # share of scores within two standard errors
MEASURES = {  # the measures of the leaderboard: metric, and the panels it is read from
    "normalised AOPC": ("naopc", ("normalised_sst2", "normalised_qqp")),
    "AOPC": ("aopc", tuple(TASKS)),
    "soft erasure": (
        "soft_comprehensiveness",
        tuple(task for task in TASKS if task != "squad_v1"),
    ),
    "F-Fidelity": ("f_fidelity", ("masked_sst2", "masked_ag_news")),
    "planted words": (
        "rationale",
        tuple(
            f"planted_{name}_{kind}"
            for name in ("sst2", "ag_news")
            for kind in ("single", "context", "pair")
        ),
    ),
    "hybrid documents": ("pointing_game", ("hybrid_ag_news", "hybrid_squad")),
    "human rationales": ("rationale", ("movies",)),
    "signs": ("sign_agreement", ("signs",)),
}
CHECKS = {"randomised": "randomisation", "paraphrased": "stability"}
COMPARISONS = (  # hypothesis, this, that, metric
    ("1", FEW, INCUMBENT, "aopc"),
    ("2", FEW, "shapley", "aopc"),
    ("3", FEW, INCUMBENT, MASKED),
    ("3", FEW, "shapley", MASKED),
    ("beside", FEW, "cat:gradient=cp", "aopc"),
    ("beside", CANDIDATE, INCUMBENT, "aopc"),
    ("beside", CANDIDATE, INCUMBENT, MASKED),
    ("beside", MANY, INCUMBENT, "aopc"),
    ("beside", MANY, FEW, "aopc"),
    ("beside", MANY, FEW, MASKED),
    ("beside", MANY, "shapley", "aopc"),
)
TITLES = {"aopc": "AOPC", MASKED: "AOPC by [MASK]"}


@dataclass
class Panels:
    """What the boards measured: the values of every text."""

    panels: dict[str, Any]

    def values(self, panel: str, label: str, metric: str) -> np.ndarray:
        """Return the value of each text, the mean over seeds; NaN where there is none."""
        row = next(row for row in self.panels[panel]["rows"] if row["label"] == label)
        runs = np.array([run[metric] for run in row["runs"]], dtype=float)
        means: np.ndarray = runs.mean(axis=0)
        return means

    def labels(self, panel: str) -> list[str]:
        """Return the methods of a panel."""
        return [row["label"] for row in self.panels[panel]["rows"]]

    def compare(self, panel: str, metric: str, this: str, that: str) -> list[float]:
        """Return the paired difference ``this − that`` with its interval."""
        difference = self.values(panel, this, metric) - self.values(panel, that, metric)
        return bootstrap_mean(difference[~np.isnan(difference)])

    def compare_tasks(self, metric: str, this: str, that: str) -> dict[str, list[float]]:
        """Return the paired difference on each of the six tasks."""
        return {task: self.compare(task, metric, this, that) for task in TASKS}

    def passes(self, label: str) -> float:
        """Return the most passes of a method over the six tasks."""
        costs = []
        for task in TASKS:
            costs += [row["passes"] for row in self.panels[task]["rows"] if row["label"] == label]
        return max(costs)

    def columns(self) -> list[Column]:
        """Return the columns of the eight measures, with the methods that all of them have."""
        names = [
            (measure, metric, panel)
            for measure, (metric, panels) in MEASURES.items()
            for panel in panels
            if self.panels.get(panel, {}).get("rows")
        ]
        shared = [
            label
            for label in self.labels("sst2")
            if all(label in self.labels(panel) for _, _, panel in names)
        ]
        columns = []
        for measure, metric, panel in names:
            values = np.stack([self.values(panel, label, metric) for label in shared])
            known = ~np.isnan(values).any(axis=0)
            by_label = dict(zip(shared, values[:, known], strict=True))
            columns.append(Column(measure, panel, by_label, 1))
        return columns


def rank_methods(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Rank methods as the leaderboard does: in columns, then over a measure's columns, then over measures.

    Returns:
        By method, best first: ``rank`` and ``behind_attnlrp``, each with an interval over resampled texts,
        and the ranks of each measure.
    """
    generator = np.random.default_rng(0)
    ranks: dict[str, dict[str, list[np.ndarray]]] = {}
    for column in columns:
        whole = np.ones((1, column.texts))
        draws = generator.multinomial(column.texts, whole[0] / column.texts, NUM_RESAMPLES)
        shares = np.vstack([whole, draws]) / column.texts
        for label, numbers in column.ranks(shares).items():
            ranks.setdefault(label, {}).setdefault(column.measure, []).append(numbers)
    means: dict[str, np.ndarray] = {}
    by_measure: dict[str, dict[str, float]] = {}
    for label, measures in ranks.items():
        measure_ranks = {name: np.mean(numbers, axis=0) for name, numbers in measures.items()}
        means[label] = np.mean(list(measure_ranks.values()), axis=0)
        by_measure[label] = {
            name: float(round(numbers[0], 1)) for name, numbers in measure_ranks.items()
        }
    rows = []
    for label, numbers in means.items():
        rows.append(
            {
                "label": label,
                "rank": summarize_draws(numbers),
                "behind_attnlrp": summarize_draws(numbers - means[INCUMBENT]),
                "measures": by_measure[label],
            }
        )
    return sorted(rows, key=lambda row: row["rank"][0])


def summarize_draws(numbers: np.ndarray) -> list[float]:
    """Return the first number with the interval of the others."""
    low, high = np.percentile(numbers[1:], (2.5, 97.5))
    return [float(numbers[0]), float(low), float(high)]


def count_ahead(differences: dict[str, list[float]]) -> int:
    """Return the number of tasks whose interval lies above zero."""
    return sum(low > 0 for _, low, _ in differences.values())


def list_behind(differences: dict[str, list[float]]) -> list[str]:
    """Return the tasks whose interval lies below zero."""
    return [task for task, (_, _, high) in differences.items() if high < 0]


def decide_one_pass(panels: Panels, ranks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Apply the rule at one pass to every candidate that is ahead of attnlrp on enough tasks."""
    rank_of = {row["label"]: row["rank"][0] for row in ranks}
    candidates = []
    for label in panels.labels("sst2"):
        if label == INCUMBENT or panels.passes(label) > PRICES["one pass"]:
            continue
        differences = panels.compare_tasks("aopc", label, INCUMBENT)
        num_ahead = count_ahead(differences)
        if num_ahead < NUM_AHEAD:
            continue
        behind = list_behind(differences)
        rank = rank_of.get(label)
        replaces = not behind and rank is not None and rank <= rank_of[INCUMBENT]
        candidates.append(
            {
                "label": label,
                "differences": differences,
                "ahead": num_ahead,
                "behind": behind,
                "rank": rank,
                "replaces": replaces,
            }
        )
    return candidates


def decide_sampled(panels: Panels, this: str, below: str) -> dict[str, Any]:
    """Apply the rule to sub-texts at one price, for all inputs and for each kind."""
    deleted = panels.compare_tasks("aopc", this, below)
    masked = panels.compare_tasks(MASKED, this, below)
    behind = list_behind(deleted)
    behind_masked = list_behind(masked)
    kinds = {}
    for kind in dict.fromkeys(TASKS.values()):
        tasks = [task for task in TASKS if TASKS[task] == kind]
        kinds[kind] = {
            "ahead": [task for task in tasks if deleted[task][1] > 0],
            "behind": [task for task in tasks if task in (*behind, *behind_masked)],
        }
    return {
        "this": this,
        "below": below,
        "ahead": count_ahead(deleted),
        "behind": behind,
        "behind_masked": behind_masked,
        "holds": count_ahead(deleted) >= NUM_AHEAD and not behind and not behind_masked,
        "kinds": kinds,
    }


def decide_hypotheses(
    panels: Panels,
    tests: Sequence[dict[str, Any]],
    ranks: Sequence[dict[str, Any]],
    errors: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return each hypothesis of the protocol with its verdict and the figures that decide it."""
    aheads: dict[str, list[int]] = {}
    for test in tests:
        aheads.setdefault(test["hypothesis"], []).append(count_ahead(test["differences"]))
    verdicts: list[dict[str, Any]] = []

    def add(number: str, holds: bool | None, figures: str) -> None:
        verdicts.append({"hypothesis": number, "holds": holds, "figures": figures})

    for number in ("1", "2", "3"):
        counts = aheads[number]
        holds = min(counts) >= NUM_AHEAD
        add(number, holds, "ahead on " + " and ".join(f"{count} of 6" for count in counts))
    by_label = {row["label"]: row["rank"] for row in ranks}
    cheap = [label for label in by_label if panels.passes(label) <= PRICES["about ten passes"]]
    best = min(cheap, key=lambda label: by_label[label][0])
    is_apart = by_label[FEW][2] < by_label[INCUMBENT][1]
    few_rank = format_rank(by_label[FEW])
    attnlrp_rank = format_rank(by_label[INCUMBENT])
    add("4", best == FEW and is_apart, f"{few_rank}; attnlrp {attnlrp_rank}; best: {best}")
    rivals = decide_one_pass(panels, ranks)
    names = ", ".join(f"{rival['label']} ({rival['ahead']} of 6)" for rival in rivals)
    add("5", not rivals, f"ahead on at least five: {names or 'none'}")
    shares = []
    holds = True
    for task, by_samples in errors["tasks"].items():
        for samples, figures in by_samples.items():
            shares.append(f"{task} {samples} sub-texts {100 * figures['within_two']:.1f} %")
            holds = holds and figures["within_two"] >= COVERAGE
    add("6", holds, "; ".join(shares))
    add("7", None, "not measured in this run")
    return verdicts


def summarize_panels(panels: Panels) -> dict[str, Any]:
    """Return the means with intervals of every panel, metric and method."""
    summary: dict[str, Any] = {}
    for name, panel in panels.panels.items():
        rows = []
        for row in panel["rows"]:
            means = {}
            for metric in row["runs"][0]:
                values = panels.values(name, row["label"], metric)
                interval = bootstrap_mean(values[~np.isnan(values)])
                means[metric] = [round(number, 5) for number in interval]
            rows.append(
                {
                    "label": row["label"],
                    "passes": row["passes"],
                    "seconds": row["seconds"] and round(row["seconds"], 3),
                    "seeds": len(row["runs"]),
                    "means": means,
                }
            )
        summary[name] = {
            "model": panel["model"],
            "texts": panel["texts"],
            "device": panel["facts"]["device"],
            "commit": panel["facts"]["commit"],
            "rows": rows,
        }
    return summary


def summarize(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return everything that the page says, as JSON values."""
    merged: dict[str, Any] = {}
    for path in arguments.boards:
        board = json.loads(path.read_text(encoding="utf-8"))
        for name, panel in board["panels"].items():
            if panel["rows"] and name in merged:
                merged[name]["rows"] += panel["rows"]
            elif panel["rows"]:
                merged[name] = {**panel, "facts": board["facts"]}
    panels = Panels(merged)
    errors = json.loads(arguments.errors.read_text(encoding="utf-8"))
    ranks = rank_methods(panels.columns())
    tests = []
    for number, this, that, metric in COMPARISONS:
        differences = panels.compare_tasks(metric, this, that)
        tests.append(
            {
                "hypothesis": number,
                "this": this,
                "that": that,
                "metric": metric,
                "differences": differences,
            }
        )
    gains = {}
    for label in (FEW, MANY, CANDIDATE, "shapley"):
        gains[label] = panels.compare_tasks("aopc", label, INCUMBENT)
    return {
        "measures": list(dict.fromkeys(column.measure for column in panels.columns())),
        "hypotheses": decide_hypotheses(panels, tests, ranks, errors),
        "tests": tests,
        "ranks": ranks,
        "one_pass": decide_one_pass(panels, ranks),
        "sampled": [
            decide_sampled(panels, FEW, INCUMBENT),
            decide_sampled(panels, FEW, CANDIDATE),
            decide_sampled(panels, MANY, FEW),
        ],
        "gains": gains,
        "panels": summarize_panels(panels),
        "errors": errors,
        "costs": [json.loads(path.read_text(encoding="utf-8")) for path in arguments.costs],
    }


def draw_board(results: dict[str, Any], path: Path) -> None:
    """Draw the mean ranks with their intervals, and AOPC beside attnlrp by task."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(14.5, 6.2))
    rows = results["ranks"][::-1]
    for y, row in enumerate(rows):
        rank, low, high = row["rank"]
        color = choose_color(row["label"])
        left.plot([low, high], [y, y], color=color, linewidth=2)
        left.plot(rank, y, "o", color=color)
    left.set_yticks(range(len(rows)), [row["label"] for row in rows], fontsize=9)
    left.set(xlabel="mean rank over the measures (1 is best), 95 % interval")
    left.grid(axis="x", alpha=0.25)
    gains = results["gains"]
    height = 0.8 / len(gains)
    tasks = list(TASKS)[::-1]
    colors = ("C2", "C0", "C1", "0.45")
    for i, ((label, differences), color) in enumerate(zip(gains.items(), colors, strict=True)):
        for y, task in enumerate(tasks):
            mean, low, high = differences[task]
            position = y + (len(gains) / 2 - i - 0.5) * height
            right.plot([low, high], [position, position], color=color, linewidth=2)
            name = label if y == 0 else None
            right.plot(mean, position, "o", color=color, markersize=5, label=name)
    right.axvline(0, color="0.6", linewidth=1)
    right.set_yticks(range(len(tasks)), tasks, fontsize=9)
    right.set(xlabel="AOPC minus that of attnlrp, 95 % paired interval")
    right.grid(axis="x", alpha=0.25)
    right.legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.42))  # no lines at SQuAD
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def choose_color(label: str) -> str:
    """Return the colour of a method: that of sub-texts, of the default, or of the others."""
    if label.startswith("subset_relevance"):
        return "C2"
    return "C3" if label == INCUMBENT else "0.35"


def format_rank(rank: Sequence[float]) -> str:
    """Format a rank with its interval."""
    return f"{rank[0]:.2f} [{rank[1]:.2f}, {rank[2]:.2f}]"


def render_hypotheses(results: dict[str, Any]) -> Iterator[str]:
    """Yield the verdicts, then the differences that decide them."""
    words = {True: "holds", False: "**does not hold**", None: "not tested"}
    yield from ("| | verdict | figures |", "|---|---|---|")
    for verdict in results["hypotheses"]:
        yield f"| {verdict['hypothesis']} | {words[verdict['holds']]} | {verdict['figures']} |"
    yield ""
    yield from (
        f"| | this − that | measure | {' | '.join(TASKS)} |",
        "|---" * (3 + len(TASKS)) + "|",
    )
    for test in results["tests"]:
        cells = [format_difference(test["differences"][task]) for task in TASKS]
        title = TITLES[test["metric"]]
        yield (
            f"| {test['hypothesis']} | {test['this']} − {test['that']} | {title} | {' | '.join(cells)} |"
        )


def format_difference(interval: Sequence[float]) -> str:
    """Format a difference, in bold where it is ahead and with a mark where it is behind."""
    text = format_interval(interval)
    if max(map(abs, interval)) < 0.001:  # three digits would read as zero
        text = f"{interval[0]:+.5f} [{interval[1]:+.5f}, {interval[2]:+.5f}]"
    if interval[1] > 0:
        return f"**{text}**"
    return f"{text} behind" if interval[2] < 0 else text


def render_rule(results: dict[str, Any]) -> Iterator[str]:
    """Yield what the rule says at each price."""
    ranks = {row["label"]: row["rank"] for row in results["ranks"]}
    yield "| one-pass candidate | ahead | behind | mean rank | replaces attnlrp |"
    yield "|---|---|---|---|---|"
    for candidate in results["one_pass"]:
        behind = ", ".join(candidate["behind"]) or "none"
        label = candidate["label"]
        rank = format_rank(ranks[label]) if label in ranks else "not measured"
        answer = "yes" if candidate["replaces"] else "no"
        yield f"| {label} | {candidate['ahead']} of 6 | {behind} | {rank} | {answer} |"
    yield f"| attnlrp (the default) | | | {format_rank(ranks[INCUMBENT])} | |"
    yield ""
    titles = ("ahead in AOPC", "behind in AOPC", "behind by [MASK]", "first sentence of the rule")
    yield f"| sub-texts | beside | {' | '.join(titles)} |"
    yield "|---|---|---|---|---|---|"
    for decision in results["sampled"]:
        behind = ", ".join(decision["behind"]) or "none"
        masked = ", ".join(decision["behind_masked"]) or "none"
        holds = "met" if decision["holds"] else "not met"
        yield (
            f"| {decision['this']} | {decision['below']} | {decision['ahead']} of 6 | {behind} | {masked} "
            f"| {holds} |"
        )


def render_ranks(results: dict[str, Any]) -> Iterator[str]:
    """Yield the table of ranks."""
    measures = results["measures"]
    yield f"| method | mean rank | behind attnlrp | {' | '.join(measures)} |"
    yield "|---" * (3 + len(measures)) + "|"
    for row in results["ranks"]:
        cells = [f"{row['measures'][name]:.1f}" for name in measures]
        rank = format_rank(row["rank"])
        behind = row["behind_attnlrp"]
        yield (
            f"| {row['label']} | {rank} | {behind[0]:+.2f} [{behind[1]:+.2f}, {behind[2]:+.2f}] "
            f"| {' | '.join(cells)} |"
        )


def render_costs(costs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what each method costs beside attnlrp, model by model."""
    yield from ("## Cost", "")
    yield "| model | tokens | device, commit | method | seconds | × attnlrp | range over rounds |"
    yield "|---|---|---|---|---|---|---|"
    for cost in costs:
        facts = cost["facts"]
        machine = f"{facts['device']}, {facts['commit']}"
        for row in cost["rows"]:
            low, high = row["range"]
            yield (
                f"| {cost['model']} | {cost['shape']} | {machine} | {row['method']} "
                f"| {row['seconds']:.3f} | {row['ratio']:.2f} | {low:.2f}–{high:.2f} |"
            )


def render_means(results: dict[str, Any]) -> Iterator[str]:
    """Yield the means of every panel, one column each."""
    tables = {
        "AOPC": [(task, "aopc") for task in TASKS],
        "AOPC by [MASK]": [(task, MASKED) for task in TASKS],
        "sufficiency ↓": [(task, "sufficiency") for task in TASKS],
        "comprehensiveness": [(task, "comprehensiveness") for task in TASKS],
    }
    for measure, (metric, names) in MEASURES.items():
        if measure != "AOPC":
            tables[measure] = [(name, metric) for name in names if name in results["panels"]]
    tables["randomised weights ↓, stability under paraphrase"] = list(CHECKS.items())
    for title, cells in tables.items():
        if not cells:
            continue
        yield from ("", f"### {title}", "")
        counts = [f"{name} ({results['panels'][name]['texts']})" for name, _ in cells]
        yield f"| method | {' | '.join(counts)} |"
        yield "|---" * (1 + len(cells)) + "|"
        means_by_panel = []
        for name, metric in cells:
            rows = results["panels"][name]["rows"]
            means_by_panel.append({row["label"]: row["means"][metric][0] for row in rows})
        for label in dict.fromkeys(label for means in means_by_panel for label in means):
            numbers = [f"{means[label]:.3f}" if label in means else "–" for means in means_by_panel]
            yield f"| {label} | {' | '.join(numbers)} |"


def write_page(results: dict[str, Any]) -> None:
    """Write the page and its figure."""
    draw_board(results, FOLDER / FIGURE)
    text = TEXT.read_text(encoding="utf-8")
    parts = {
        "HYPOTHESES": render_hypotheses(results),
        "RULE": render_rule(results),
        "RANKS": render_ranks(results),
        "ERRORS": render_errors(results["errors"]),
        "COSTS": render_costs(results["costs"]),
        "MEANS": render_means(results),
    }
    for name, lines in parts.items():
        text = text.replace(f"[[{name}]]", "\n".join(lines).strip())
    write_text(PAGE, text)


def main() -> None:
    """Decide the hypotheses and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--boards", type=Path, nargs="+")
    parser.add_argument("--errors", type=Path)
    parser.add_argument("--costs", type=Path, nargs="*", default=[])
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    if arguments.report:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = summarize(arguments)
        content = json.dumps(results, ensure_ascii=False, separators=(",", ":"))
        write_text(RESULTS, content + "\n")
    write_page(results)


if __name__ == "__main__":
    main()
