"""Grade what ``trust_calibration.py measure`` recorded, and write the page, figure and counts.

    python benchmarks/trust_report.py --work WORK [--page docs/results/trust] [--half first|second|both]
    python benchmarks/trust_report.py --work WORK --half both --earlier calibration.json [--page …]

Nothing runs a model: the rules of the package grade recorded probabilities. The texts of each task are split
in two halves by turns. Thresholds are tried on the first half (``--half first``), and the page counts the
second, which is not looked at before. Other blocks of recorded orders stand for other seeds.

Texts that ``--further`` measured after the rule was fixed are all held out (``--half both``). With
``--earlier`` their counts are added to those of an earlier page, if its thresholds were the same.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from trust_texts import FURTHER_TASKS, TASKS

from tokenlight.data import trust
from tokenlight.evaluation.grade import (
    DEFAULT_THRESHOLDS,
    GradeThresholds,
    JointEvidence,
    assign_grade,
    compute_min_change,
    is_decided,
    judge_removal,
)
from tokenlight.evaluation.random_partial_texts import (
    NUM_SHUFFLES,
    ORDER_BLOCKS,
    choose_explanation_words,
    count_top_words,
)
from tokenlight.evaluation.removal import Removal
from tokenlight.evaluation.removal_evidence import (
    RemovalEvidence,
    build_evidence,
    invert_log_odds,
)
from tokenlight.evaluation.removal_test import (
    MAX_CANCELLED_SHARE,
    MAX_TIED_SHARE,
)
from tokenlight.files.write import write_text

# Thresholds that the counts know by other names.
SAVED_NAMES = {
    "min_points": "evidence",
    "min_faithful_points": "faithful_evidence",
    "min_undecided_points": "undecided_evidence",
    "min_removal_points": "each_evidence",
}
UNSIGNED_KINDS = ("rollout", "near-best, without sign")
GRADES = (
    trust.FAITHFUL, trust.BETTER_THAN_CHANCE, trust.INCONCLUSIVE, trust.NO_BETTER_THAN_CHANCE,
    trust.WORSE_THAN_CHANCE, trust.UNTESTED,
)  # fmt: skip
# Words of a text: the ends of the bins around 5, 10, 20 and 40, and longer ones.
LENGTH_BINS = ((2, 7), (8, 14), (15, 28), (29, 56), (57, 400))
WRONG_KINDS = ("inverted", "random", "picked", "last first", "attnlrp, rest inverted")
POWER_KINDS = ("near-best", "attnlrp", "random")
SEED_KINDS = ("attnlrp", "random 0")
MIN_DRAWN_TEXTS = 10  # a point of the figure needs this many
PAGE_TEXT = Path(__file__).with_name("trust_report_text.md")


def list_saved_thresholds() -> dict[str, float]:
    """Return the thresholds by the names that the counts have for them."""
    thresholds = asdict(DEFAULT_THRESHOLDS)
    return {SAVED_NAMES.get(name, name): value for name, value in thresholds.items()}


def regrade(
    record: dict[str, Any],
    kind: str,
    *,
    first_order: int = 0,
    thresholds: GradeThresholds = DEFAULT_THRESHOLDS,
) -> str:
    """Return the grade of one kind of scores on one text, as the removal test gives it.

    Args:
        record: What was measured on the text.
        kind: The scores.
        first_order: The first recorded order that is read; another one stands for another seed.
        thresholds: Thresholds of the grades.
    """
    if record["is_floor"]:
        return trust.UNTESTED
    recorded = record["scores"][kind]
    if recorded["tied"] == 1:
        return trust.UNTESTED
    if recorded["tied"] > MAX_TIED_SHARE:
        return trust.INCONCLUSIVE
    current_grade = trust.UNTESTED
    for num_orders in ORDER_BLOCKS:
        evidence_by_removal = rebuild_evidence(
            record, recorded, range(first_order, first_order + num_orders)
        )
        min_change = compute_min_change(record["before"])
        if find_largest_change(record, evidence_by_removal) < min_change:
            current_grade = trust.UNTESTED
            continue
        result = JointEvidence.from_removals(
            evidence_by_removal,
            is_signed=kind not in UNSIGNED_KINDS,
            min_change=min_change,
            special_share=recorded["special"],
        )
        current_grade = assign_grade(result, thresholds)[0]
        if is_decided(result, thresholds):
            break
    is_weak = recorded["cancelled"] > MAX_CANCELLED_SHARE
    return trust.INCONCLUSIVE if is_weak and current_grade != trust.UNTESTED else current_grade


def rebuild_evidence(
    record: dict[str, Any], recorded: dict[str, Any], order_indices: Sequence[int]
) -> list[RemovalEvidence]:
    """Return the evidence of each removal from recorded log-odds."""
    word_scores = np.array(recorded["words"])
    shuffles = draw_shuffles(len(word_scores))
    num_top_words = count_top_words(len(word_scores))
    explanation_choices = choose_explanation_words(np.array(recorded["order"]), num_top_words)
    no_row: Any = None  # no text is built again
    evidence_by_removal = []
    for i, name in enumerate(record["removals"]):
        orders = []
        for j in order_indices:
            orders.append([np.array(chosen) for chosen in record["choices"][i][j]])
        removal = Removal(name, name, row=no_row)
        evidence_by_removal.append(
            build_evidence(
                removal=removal,
                whole_probability=record["before"],
                empty_probability=record["empty"] if i == 0 else None,
                explanation_log_odds=np.array(recorded["own"][i]),
                random_probabilities=invert_log_odds(
                    np.array(record["random"][i])[list(order_indices)]
                ),
                shuffled_scores=np.vstack([word_scores, word_scores[shuffles]]),
                explanation_choices=explanation_choices,
                random_choices=orders,
            )
        )
    return evidence_by_removal


@cache
def draw_shuffles(num_words: int) -> np.ndarray:
    """Return the same shuffles for all texts of one length: drawing them takes most of the time."""
    generator = np.random.default_rng(num_words)
    return np.stack([generator.permutation(num_words) for _ in range(NUM_SHUFFLES)])


def find_largest_change(
    record: dict[str, Any], evidence_by_removal: list[RemovalEvidence]
) -> float:
    changes = [abs(record["before"] - record["empty"])]
    for item in evidence_by_removal:
        changes.append(float(np.abs(record["before"] - item.random_probabilities).max()))
        changes.append(max(item.top_fall, item.half_fall))
    return max(changes)


def grade_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return the grade of every kind of scores on one text, those of other seeds and of single removals."""
    graded: dict[str, Any] = {"words": record["words"], "grades": {}, "seeds": {}, "removals": []}
    for kind in record.get("scores", ()):
        graded["grades"][kind] = regrade(record, kind)
        is_tied = record["scores"][kind]["tied"] > MAX_TIED_SHARE
        if name_kind(kind) == "random" and not is_tied:
            evidence_by_removal = rebuild_evidence(
                record, record["scores"][kind], range(ORDER_BLOCKS[-1])
            )
            for item in evidence_by_removal:
                judgment = judge_removal(item)
                graded["removals"].append((item.removal.name, judgment in trust.GOOD_GRADES))
    size = ORDER_BLOCKS[-1]
    for kind in SEED_KINDS if graded["grades"] else ():
        starts = range(size, len(record["random"][0]) - size + 1, size)
        others = [regrade(record, kind, first_order=start) for start in starts]
        graded["seeds"][kind] = [graded["grades"][kind], *others]
    return graded


def grade_all(
    records: dict[str, list[dict[str, Any]]], num_workers: int
) -> dict[str, list[dict[str, Any]]]:
    """Grade all texts of every task in several processes."""
    graded = {}
    with ProcessPoolExecutor(num_workers) as pool:
        for task, own in records.items():
            graded[task] = list(pool.map(grade_record, own, chunksize=16))
            print(f"graded {task}", flush=True)
    return graded


def read_records(work: Path, half: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of one half of the texts by task; a text on the floor has no scores."""
    records: dict[str, list[dict[str, Any]]] = {}
    for task in TASKS:
        every = []
        for path in sorted((work / "parts").glob(f"{task}-*.json.gz")):
            every += json.loads(gzip.decompress(path.read_bytes()))
        chosen = {"first": every[::2], "second": every[1::2], "both": every}[half]
        if chosen:
            records[task] = chosen
    return records


def name_kind(kind: str) -> str:
    """Return the name of a kind of scores without the number of its draw."""
    return kind.rstrip("0123456789 ")


def count_grades(graded_texts: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return the number of each grade by kind of scores."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for graded in graded_texts:
        for kind, given_grade in graded["grades"].items():
            counts[name_kind(kind)][given_grade] += 1
    return counts


def count_good(counted: Counter[str]) -> int:
    """Return how many grades are good."""
    return sum(counted[name] for name in trust.GOOD_GRADES)


def find_upper_limit(some: int, count: int) -> float:
    """Return the upper end of the 95 % interval of a share (Wilson 1927)."""
    share = some / count
    z = 1.959964
    reach = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return float((share + z * z / (2 * count) + reach) / (1 + z * z / count))


def count_single_removals(graded_texts: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    """Return, by removal, how many random scores it alone calls good, and of how many."""
    counts: dict[str, list[int]] = {}
    for graded in graded_texts:
        for removal, is_good in graded["removals"]:
            pair = counts.setdefault(removal, [0, 0])
            pair[0] += is_good
            pair[1] += 1
    return counts


def compare_seeds(graded_texts: Iterable[dict[str, Any]], kind: str) -> dict[str, int]:
    """Count pairs of blocks of orders, and those that give another grade or another verdict on good."""
    counts: Counter[str] = Counter()
    for graded in graded_texts:
        for one, other in combinations(graded["seeds"].get(kind, ()), 2):
            is_good = {one in trust.GOOD_GRADES, other in trust.GOOD_GRADES}
            counts["pairs"] += 1
            counts["another grade"] += one != other
            counts["good and not good"] += len(is_good) > 1
            against = {trust.NO_BETTER_THAN_CHANCE, trust.WORSE_THAN_CHANCE}
            counts["good and no better than chance"] += len(is_good) > 1 and bool(
                against & {one, other}
            )
    return dict(counts)


def measure_power(graded_texts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, by length, the shares of near-best, the method's and random scores with a good grade."""
    points = []
    for low, high in LENGTH_BINS:
        own = [graded for graded in graded_texts if low <= graded["words"] <= high]
        own = [graded for graded in own if graded["grades"]]
        if not own:
            continue
        counts = count_grades(own)
        point: dict[str, Any] = {
            "words": float(np.median([graded["words"] for graded in own])),
            "texts": len(own),
        }
        for kind in POWER_KINDS:
            point[kind] = round(count_good(counts[kind]) / counts[kind].total(), 4)
        points.append(point)
    return points


def add_counts(content: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of both; ``facts`` are those of the earlier one, ``further`` says what was added.

    Args:
        content: The counts of further texts.
        earlier: Those of an earlier page.
    """
    if earlier["thresholds"] != content["thresholds"]:
        raise SystemExit("The earlier counts are of another rule, so that they cannot be added.")
    total = dict(earlier)
    total["further"] = {"texts": content["texts"], "facts": content["facts"]}
    for key in ("texts", "single_removals", "seeds", "grades"):
        total[key] = _add_numbers(earlier[key], content[key])
    total["power"] = {
        task: _join_power(points, content["power"].get(task, []))
        for task, points in earlier["power"].items()
    }
    return total


def _add_numbers(first: Any, second: Any) -> Any:
    """Add numbers in nested dicts and lists of the same keys; what only one of them has is kept."""
    if isinstance(first, dict):
        total = first | second
        for key in first.keys() & second.keys():
            total[key] = _add_numbers(first[key], second[key])
        return total
    if isinstance(first, list):
        return [_add_numbers(*pair) for pair in zip(first, second, strict=True)]
    return first + second


def _join_power(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Join the points of each length; words and shares are means over the texts."""
    points = []
    for low, high in LENGTH_BINS:
        own = [point for point in (*first, *second) if low <= point["words"] <= high]
        if not own:
            continue
        weights = [point["texts"] for point in own]
        joined: dict[str, Any] = {"words": 0.0, "texts": sum(weights)}
        for key in ("words", *POWER_KINDS):
            mean = float(np.average([point[key] for point in own], weights=weights))
            joined[key] = round(mean, 4)
        points.append(joined)
    return points


def draw_figure(power: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "tokenlight", "font.size": 9}
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for task, points in power.items():
        usable = [point for point in points if point["texts"] >= MIN_DRAWN_TEXTS]
        words = [point["words"] for point in usable]
        if not words:
            continue
        style = {"linewidth": 2.5, "color": "black"} if task == "all" else {}
        near_best = [100 * point["near-best"] for point in usable]
        (line,) = axes.plot(words, near_best, "o-", label=task, **style)
        random = [100 * point["random"] for point in usable]
        axes.plot(words, random, ":", color=line.get_color())
    axes.axhline(5, color="grey", lw=0.8)
    axes.set(
        xlabel="words of the text", ylabel="% with a good grade", xscale="log", ylim=(0, 100),
        title="Near-best scores (lines) and random scores (dotted)",
    )  # fmt: skip
    axes.set_xticks([5, 10, 20, 40, 80], ["5", "10", "20", "40", "80"])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def format_grades(counts: dict[str, Counter[str]]) -> list[str]:
    """Return a table of the grades of each kind of scores, in per cent."""
    lines = [
        f"| scores | number | good | {' | '.join(GRADES)} |",
        "|---" * (len(GRADES) + 3) + "|",
    ]
    for kind, counted in counts.items():
        total = counted.total()
        good = f"{100 * count_good(counted) / total:.1f} %"
        cells = [f"{100 * counted[name] / total:.1f} %" for name in GRADES]
        lines.append(f"| {kind} | {total} | {good} | {' | '.join(cells)} |")
    return lines


def format_failures(counts: dict[str, dict[str, Counter[str]]]) -> list[str]:
    """Return a table of wrong scores with good grades: how many, and the upper end of the 95 % interval."""
    lines = ["| task | scores | good | faithful |", "|---|---|---|---|"]
    for task, counted_by_kind in counts.items():
        for kind in WRONG_KINDS:
            counted = counted_by_kind[kind]
            cells = []
            for some in (count_good(counted), counted[trust.FAITHFUL]):
                limit = 100 * find_upper_limit(some, counted.total())
                cells.append(f"{some} of {counted.total()} (at most {limit:.2f} %)")
            lines.append(f"| {task} | {kind} | {' | '.join(cells)} |")
    return lines


def format_seeds(seeds: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Return a table of how often two seeds differ."""
    columns = ("another grade", "good and not good", "good and no better than chance")
    lines = [f"| task | scores | pairs | {' | '.join(columns)} |", "|---" * 6 + "|"]
    for task, kinds in seeds.items():
        for kind, counts in kinds.items():
            cells = [f"{100 * counts[name] / counts['pairs']:.1f} %" for name in columns]
            lines.append(f"| {task} | {kind} | {counts['pairs']} | {' | '.join(cells)} |")
    return lines


def write_page(
    content: dict[str, Any], counts: dict[str, dict[str, Counter[str]]], page: Path
) -> None:
    """Write the tables below the text of the page."""
    lines = [PAGE_TEXT.read_text(encoding="utf-8").rstrip(), ""]
    lines += ["## Thresholds", "", "| threshold | value |", "|---|---|"]
    lines += [f"| {name} | {value:g} |" for name, value in content["thresholds"].items()]
    lines += ["", "## Each removal alone", "", "| removal | random scores with a good verdict |"]
    lines += ["|---|---|"]
    for name, (some, of) in content["single_removals"].items():
        limit = 100 * find_upper_limit(some, of)
        lines.append(f"| {name} | {some} of {of} (at most {limit:.1f} %) |")
    lines += ["", "## Scores that must not get a good grade", "", *format_failures(counts)]
    lines += ["", "## Two seeds", "", *format_seeds(content["seeds"])]
    for task, counted in counts.items():
        title = "All tasks" if task == "all" else TASKS[task]
        if task in content.get("further", {}).get("texts", {}) and task in FURTHER_TASKS:
            title = f"{title}, and {FURTHER_TASKS[task]}"
        lines += ["", f"## {title}", "", f"{content['texts'][task]} texts.", ""]
        lines += format_grades(counted)
    header = f"| task | words (median) | texts | {' | '.join(POWER_KINDS)} |"
    lines += ["", "## Power by length", "", header, "|---" * 6 + "|"]
    for task, points in content["power"].items():
        for point in points:
            cells = [f"{100 * point[kind]:.0f} %" for kind in POWER_KINDS]
            lines.append(
                f"| {task} | {point['words']:.0f} | {point['texts']} | {' | '.join(cells)} |"
            )
    known = {
        key: value for key, value in content["facts"].items() if value not in (None, "unknown")
    }
    facts = ", ".join(f"{key} {value}" for key, value in known.items())
    lines += ["", f"Made with {facts}."]
    if "further" in content:
        further = content["further"]
        counted = [
            f"{count} of {task}" for task, count in further["texts"].items() if task != "all"
        ]
        known = {key: value for key, value in further["facts"].items() if value is not None}
        facts = ", ".join(f"{key} {value}" for key, value in known.items())
        lines += ["", f"Further texts ({', '.join(counted)}): {facts}."]
    write_text(page / "README.md", "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--half", choices=("first", "second", "both"), default="second")
    parser.add_argument("--page", type=Path, help="write README.md, calibration.json and .svg here")
    parser.add_argument("--earlier", type=Path, help="calibration.json whose counts are added")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    records = grade_all(read_records(arguments.work, arguments.half), arguments.workers)
    records["all"] = [graded for own in list(records.values()) for graded in own]
    counts = {task: count_grades(own) for task, own in records.items()}
    seeds: dict[str, Any] = {}
    for task, own in records.items():
        seeds[task] = {kind: compare_seeds(own, kind) for kind in SEED_KINDS}
    content = {
        "thresholds": list_saved_thresholds(),
        "order_blocks": ORDER_BLOCKS,
        "texts": {task: len(own) for task, own in records.items()},
        "half": arguments.half,
        "single_removals": count_single_removals(records["all"]),
        "seeds": seeds,
        "power": {task: measure_power(own) for task, own in records.items()},
        "grades": counts,
        "facts": json.loads((arguments.work / "facts.json").read_text()),
    }
    if arguments.earlier:
        content = add_counts(content, json.loads(arguments.earlier.read_text(encoding="utf-8")))
        counts = {
            task: {kind: Counter(grades) for kind, grades in kinds.items()}
            for task, kinds in content["grades"].items()
        }
        seeds = content["seeds"]
    for task, counted in counts.items():
        print(f"{task}: {content['texts'][task]} texts", *format_grades(counted), sep="\n")
    print(*format_seeds(seeds), content["single_removals"], sep="\n")
    if arguments.page:
        arguments.page.mkdir(parents=True, exist_ok=True)
        write_page(content, counts, arguments.page)
        write_text(arguments.page / "calibration.json", json.dumps(content, indent=1) + "\n")
        draw_figure(content["power"], arguments.page / "calibration.svg")


if __name__ == "__main__":
    main()
