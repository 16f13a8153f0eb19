"""Grade what ``trust_calibration.py measure`` recorded, and count the grades of each kind of scores.

    python benchmarks/trust_report.py --work WORK [--json PATH]

Printed are the shares of grades by kind of scores, by task, and how often the grade of ``attnlrp`` differs
between seeds. Nothing runs a model: the rules of the package grade recorded probabilities.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.evaluation import grade
from tokenlight.evaluation.grade import JointResult, assign_grade, is_decided
from tokenlight.evaluation.random_subtexts import (
    NUM_SHUFFLES,
    ORDER_BLOCKS,
    RemovalEvidence,
    build_evidence,
    choose_own_words,
    count_top_words,
    invert_log_odds,
)
from tokenlight.evaluation.removal import Removal
from tokenlight.evaluation.removal_grading import (
    MAX_CANCELLED_SHARE,
    MAX_TIED_SHARE,
    MIN_PROBABILITY_CHANGE,
)
from tokenlight.files.write import write_text

UNSIGNED_KINDS = ("rollout", "near-best, without sign")
GRADES = (
    grade.FAITHFUL, grade.BETTER_THAN_CHANCE, grade.INCONCLUSIVE, grade.NO_BETTER_THAN_CHANCE,
    grade.WORSE_THAN_CHANCE, grade.UNTESTED,
)  # fmt: skip


def regrade(record: dict[str, Any], kind: str) -> str:
    """Return the grade of one kind of scores on one text, as the removal test gives it."""
    if record["is_floor"]:
        return grade.UNTESTED
    recorded = record["scores"][kind]
    if recorded["tied"] == 1:
        return grade.UNTESTED
    min_change = min(MIN_PROBABILITY_CHANGE, record["before"] / 2)
    current_grade = grade.UNTESTED
    for num_orders in ORDER_BLOCKS:
        evidence = rebuild_evidence(record, recorded, num_orders)
        if find_largest_change(record, evidence) < min_change:
            current_grade = grade.UNTESTED
            continue
        result = JointResult.of_evidence(
            evidence,
            is_signed=kind not in UNSIGNED_KINDS,
            min_change=min_change,
            special_share=recorded["special"],
        )
        current_grade = assign_grade(result)[0]
        if is_decided(result):
            break
    is_weak = recorded["tied"] > MAX_TIED_SHARE or recorded["cancelled"] > MAX_CANCELLED_SHARE
    return grade.INCONCLUSIVE if is_weak and current_grade != grade.UNTESTED else current_grade


def rebuild_evidence(
    record: dict[str, Any], recorded: dict[str, Any], num_orders: int
) -> list[RemovalEvidence]:
    """Return the evidence of each removal from recorded log-odds."""
    word_scores = np.array(recorded["words"])
    shuffles = draw_shuffles(len(word_scores))
    own_choices = choose_own_words(np.array(recorded["order"]), count_top_words(len(word_scores)))
    no_row: Any = None  # no text is built again
    evidence = []
    for i, name in enumerate(record["removals"]):
        orders = []
        for order in record["choices"][i][:num_orders]:
            orders.append([np.array(chosen) for chosen in order])
        removal = Removal(name, name, row=no_row)
        evidence.append(
            build_evidence(
                removal=removal,
                ends=(record["before"], record["empty"] if i == 0 else None),
                own_odds=np.array(recorded["own"][i]),
                random=invert_log_odds(np.array(record["random"][i])[:num_orders]),
                shuffled_scores=np.vstack([word_scores, word_scores[shuffles]]),
                choices=(own_choices, orders),
            )
        )
    return evidence


@cache
def draw_shuffles(num_words: int) -> np.ndarray:
    """Return the same shuffles for all texts of one length: drawing them takes most of the time."""
    generator = np.random.default_rng(num_words)
    return np.stack([generator.permutation(num_words) for _ in range(NUM_SHUFFLES)])


def find_largest_change(record: dict[str, Any], evidence: list[RemovalEvidence]) -> float:
    changes = [abs(record["before"] - record["empty"])]
    for item in evidence:
        changes.append(float(np.abs(record["before"] - item.random).max()))
        changes.append(max(item.top_fall, item.half_fall))
    return max(changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    arguments = parser.parse_args()
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    seeds: Counter[str] = Counter()
    for path in sorted((arguments.work / "parts").glob("*.json.gz")):
        task = path.name.split("-")[0]
        for record in json.loads(gzip.decompress(path.read_bytes())):
            for kind in record.get("scores", ()):
                counts[task][kind.rstrip("0123456789 ")][regrade(record, kind)] += 1
            if record.get("seeds"):
                grades = [
                    regrade(seed_record, "attnlrp") for seed_record in (record, *record["seeds"])
                ]
                seeds["texts"] += 1
                seeds["changed"] += len(set(grades)) > 1
                is_good = [grade_name in grade.GOOD_GRADES for grade_name in grades]
                seeds["good and not good"] += len(set(is_good)) > 1
    for task, kinds in counts.items():
        print(f"{task}: {' / '.join(GRADES)}, in %")
        for kind, counted in kinds.items():
            total = sum(counted.values())
            shares = " ".join(f"{100 * counted[name] / total:5.1f}" for name in GRADES)
            print(f"  {kind:28s} {total:5d} {shares}")
    print(dict(seeds))
    if arguments.json:
        content = {"counts": counts, "seeds": seeds}
        write_text(arguments.json, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
