"""Does a grade of trust mean what it says? Orders of known worth, graded; the limits chosen by them.

    python benchmarks/trust_calibration.py --data DATA --work WORK [--device cuda] [--together 12]
    python benchmarks/trust_calibration.py --work WORK --report [--keep]   # the page, the figure, the limits

DATA is the folder of public data sets; ``--models`` may hold ``qqp``, a fine-tuned pair classifier. WORK
keeps one JSON file a task. Every text is held out: of a split that no model was trained on, and not among
the training texts. Half of the texts choose the limits, the other half is reported.

Graded are, for each text: two orders near the best there is (**greedy**: at each tenth the tokens whose
loss lowers the probability most; **leave-one-out**), both of them inverted, random scores four times, and
the methods as they are. An explanation *deserves* to be called faithful if it beats nine tenths of 60
orders and four fifths of 100 choices of words drawn anew, which its grade has not seen; *masked* is a
second opinion: it beats more than half of 20 orders where tokens are masked and not deleted.

Of all limits under which, on the first half and in every task, at most 5 % of random scores are graded
better than chance (the upper end of the 95 % interval), those are taken that know most of the near-best
orders as better than chance; then of those under which no inverted order and at most 1 % of random scores
are faithful and at least 95 % of what is graded faithful deserves it, those that call most of the
near-best orders faithful. A text is too short where more than 5 % of random scores pass at its length.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from machine import facts

from tokenlight import Attribution, Explainer
from tokenlight.errors import TokenlightError
from tokenlight.evaluation import grade
from tokenlight.evaluation.grade import GradeLimits as Limits
from tokenlight.evaluation.grade import graded
from tokenlight.evaluation.removal import TOP, UNMOVED, Chance, Said, Watched
from tokenlight.files.tables import read
from tokenlight.files.write import write_text
from tokenlight.metrics._ranking import ranked_among, ranking

PAGE = Path("docs/results/trust")
METHODS = ("attnlrp", "cp_lrp", "integrated_gradients", "grad_x_input", "attcat", "cat", "gae")
ORACLES, INVERTED = ("greedy", "leave-one-out"), ("inverted greedy", "inverted leave-one-out")
RANDOM = tuple(f"random {i}" for i in range(4))
GRADES = (
    grade.FAITHFUL, grade.BETTER, grade.UNSURE, grade.CHANCE, grade.WORSE, grade.UNTESTED,
)  # fmt: skip
MODELS = {
    "sst2": "tokenlight/sentiment", "phrases": "tokenlight/sentiment", "ag_news": "tokenlight/topics",
    "squad": "tokenlight/qa", "qqp": "qqp",
}  # fmt: skip
TITLES = {
    "sst2": "SST-2 dev and test, sentences", "phrases": "SST test, phrases of 2 to 8 words",
    "ag_news": "AG News test", "squad": "SQuAD v1.1 dev, answer spans", "qqp": "QQP, pairs",
}  # fmt: skip
MOST = {"squad": 200, "phrases": 600}
CHUNK = 25
LONG = 9  # words: more are long enough whatever the limits


# --- the texts ------------------------------------------------------------------------------------


def texts_of(task: str, data: Path, most: int) -> list[Any]:
    if task == "sst2":
        dev = [one.text for one in read(data / "sst2/dev.jsonl.gz")]
        found = held_out([*dev, *(words for words, _ in sentences(data))], data)
    elif task == "phrases":
        found = held_out([text for _, text in sentences(data) if text], data)
    else:
        file = {"ag_news": "ag_news/test", "squad": "squad_v1/dev", "qqp": "qqp/test_subset"}[task]
        found = [one.text for one in read(data / f"{file}.jsonl.gz")]
    order = np.random.default_rng(0).permutation(len(found))
    return [found[i] for i in order[: min(most, MOST.get(task, most))]]


def sentences(data: Path) -> Iterator[tuple[str, str]]:
    """Each sentence of the test trees, and a phrase of it that people did not call neutral, of 2 to 8
    words ("" where it has none)."""
    draw = np.random.default_rng(0)
    for tree in (
        gzip.decompress((data / "sst_trees/test.txt.gz").read_bytes()).decode().splitlines()
    ):
        found = [
            text for label, text in phrases(tree) if label != 2 and 2 <= len(text.split()) <= 8
        ]
        whole = " ".join(re.findall(r"([^()\s]+)\)", tree))
        yield whole, str(draw.choice(found)) if found else ""


def phrases(tree: str) -> Iterator[tuple[int, str]]:
    """Label and words of every node of a tree in brackets."""
    open_at: list[int] = []
    for place, sign in enumerate(tree):
        if sign == "(":
            open_at.append(place)
        elif sign == ")":
            own = tree[open_at.pop() : place + 1]
            yield int(own[1]), " ".join(re.findall(r"([^()\s]+)\)", own))


@cache
def trained(data: Path) -> frozenset[str]:
    return frozenset(bare(one.text) for one in read(data / "sst2/train.jsonl.gz"))


def held_out(texts: Sequence[str], data: Path) -> list[str]:
    seen = trained(data)
    return [text for text in dict.fromkeys(texts) if bare(text) not in seen]


def bare(text: str) -> str:
    return re.sub(r"\W+", " ", text.replace("-lrb-", "").replace("-rrb-", "")).strip().lower()


# --- measuring ------------------------------------------------------------------------------------


@cache
def loaded(model: str, device: str) -> Explainer:
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Explainer.from_pretrained(model, device=device)


def measured(model: str, device: str, texts: list[Any], methods: Sequence[str]) -> list[Any]:
    """For each text its length and, by name, what is known of each explanation."""
    explainer = loaded(model, device)
    torch.set_float32_matmul_precision("highest")  # explanations are refused where maps move logits
    made: dict[str, list[Attribution]] = {}
    for method in methods:
        made[method] = explainer.explain(texts, [method], long="truncate", progress=False)
    torch.set_float32_matmul_precision("high")
    found = []
    for i in range(len(texts)):
        try:
            found.append(of_text(explainer, {name: made[name][i] for name in methods}, i))
        except TokenlightError as refused:
            print(f"left out: {str(refused)[:100]}", flush=True)
    return found


def of_text(explainer: Explainer, made: dict[str, Attribution], seed: int) -> dict[str, Any]:
    first = next(iter(made.values()))
    draw = np.random.default_rng([7, seed, *first.row.ids])
    said = Said()
    watched, masked = (Watched(explainer, first, said) for _ in range(2))
    masked.taken = masked.original.hidden
    seen = Chance(watched, draw)
    if len(seen.words) < 2:
        return {"length": len(seen.words), "moved": 0.0}
    anew = Chance(watched, draw, (60, 100, TOP))
    hidden = Chance(masked, draw, (20, 1, TOP))
    scores = {name: one.scores for name, one in made.items()} | candidates(seen, len(first), draw)
    # All at once, so that what follows finds its answers.
    orders = [ranked_among(one, seen.places) for one in scores.values()]
    watched.left([order[:count] for order in orders for count in seen.counts])
    masked.left([order[:count] for order in orders for count in hidden.counts])
    found = {}
    for name, one in scores.items():
        own, words = seen.of_order(one), seen.of_words_taken(one)
        weight = np.abs(one)
        special = float(weight[np.array(first.row.special)].sum() / (weight.sum() or 1.0))
        values = (
            own["percentile"], words["choices_percentile"], 100 * special,
            anew.of_order(one)["beaten"], 100 * anew.of_words_taken(one)["choices_less"],
            hidden.of_order(one)["beaten"],
        )  # fmt: skip
        found[name] = [round(value / 100, 4) for value in values]
    return {"length": len(seen.words), "moved": seen.moved, "found": found}


def candidates(seen: Chance, tokens: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Scores of known worth. Near-best and inverted ones weigh a token by one over its rank, so that the
    sum of a long word's tokens does not outweigh a short one's."""
    alone = seen.before - seen.watched.left([np.array([place]) for place in seen.places])
    best = {"greedy": greedy(seen), "leave-one-out": seen.places[ranking(alone)]}
    orders = {**best, **{f"inverted {name}": order[::-1] for name, order in best.items()}}
    found = {}
    for name, order in orders.items():
        found[name] = np.zeros(tokens)
        found[name][order] = 1 / np.arange(1, len(order) + 1)
    for name in RANDOM:
        found[name] = np.zeros(tokens)
        found[name][seen.places] = draw.normal(size=len(seen.places))
    return found


def greedy(seen: Chance) -> np.ndarray:
    order: list[int] = []
    for count in seen.counts[1:]:
        rest = [place for place in seen.places if place not in order]
        left = seen.watched.left([np.array([*order, place], dtype=int) for place in rest])
        order += [rest[i] for i in np.argsort(left, kind="stable")[: count - len(order)]]
    return np.array(order)


def run(given: argparse.Namespace) -> None:
    start, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.together, mp_context=spawn) as pool:
        jobs = {}
        for task in given.tasks:
            model = MODELS[task]
            model = model if model.startswith("tokenlight/") else str(given.models / model)
            texts = texts_of(task, given.data, given.texts)
            for i in range(0, len(texts), CHUNK):
                own = texts[i : i + CHUNK]
                jobs[pool.submit(measured, model, given.device, own, given.methods)] = (task, i)
        found: dict[str, dict[int, Any]] = {task: {} for task in given.tasks}
        for job in as_completed(jobs):
            task, i = jobs[job]
            if job.exception() is None:
                found[task][i] = job.result()
            else:
                print(f"{task}, texts from {i}: {job.exception()}"[:300], flush=True)
            if time.monotonic() - start > given.seconds:
                print("time is up: what is measured is kept", flush=True)
                for other in jobs:
                    other.cancel()
                break
        for task, chunks in found.items():
            rows = [row for i in sorted(chunks) for row in chunks[i]]
            content = {
                "facts": facts(
                    given.device,
                    products="float32, TF32 in the removal tests"
                    if given.device == "cuda"
                    else "float32",
                ),
                "rows": rows,
            }
            write_text(given.work / f"{task}.json", json.dumps(content))
            print(f"{task}: {len(rows)} texts, {time.monotonic() - start:.0f} s", flush=True)


# --- choosing and reporting -----------------------------------------------------------------------


def kind_of(name: str) -> str:
    return name.rstrip("0123456789 ")


def graded_rows(
    rows: Sequence[Any], limits: Limits, names: Sequence[str] = ()
) -> Iterator[tuple[str, int, str, list[float]]]:
    """Name, length, grade and numbers of every explanation, or of those with these names."""
    for row in rows:
        for name, numbers in row.get("found", {}).items():
            if names and name not in names:
                continue
            if row["moved"] < UNMOVED:
                yield name, row["length"], grade.UNTESTED, numbers
            else:
                order, words, special = numbers[:3]
                given = graded(order, words, special, row["length"], limits)
                yield name, row["length"], given[0], numbers


def deserves(numbers: Sequence[float]) -> bool:
    return numbers[3] >= 0.9 and numbers[4] >= 0.8


def share(rows: Sequence[Any], limits: Limits, names: Sequence[str], wanted: Sequence[str]) -> Any:
    """How many of these names got one of these grades, and how many there are."""
    own = [g for _, _, g, _ in graded_rows(rows, limits, names)]
    return sum(g in wanted for g in own), len(own)


GOOD = (grade.FAITHFUL, grade.BETTER)


def chosen(tasks: dict[str, list[Any]]) -> Limits:
    """By the docstring's rule, on the rows given."""
    rows = [row for own in tasks.values() for row in own]
    base = Limits(shortest=LONG)

    def known(limits: Limits, wanted: Sequence[str]) -> int:
        return int(share(rows, limits, ORACLES, wanted)[0])

    def safe(limits: Limits) -> bool:
        counts = (share(own, limits, RANDOM, GOOD) for own in tasks.values())
        return all(upper(k, n) <= 0.05 for k, n in counts if n)

    grid = product(np.arange(0.80, 0.97, 0.02), np.arange(0.5, 0.96, 0.05))
    better = [replace(base, order=round(float(o), 2), words=round(float(w), 2)) for o, w in grid]
    allowed = [*filter(safe, better)]
    if not allowed:
        raise SystemExit("too few texts to choose limits by: --keep reports with those there are.")
    limits = max(allowed, key=lambda one: known(one, GOOD))

    def sound(limits: Limits) -> bool:
        wrong = share(rows, limits, INVERTED, GOOD[:1])[0]
        lucky, tried = share(rows, limits, RANDOM, GOOD[:1])
        called = [n for _, _, g, n in graded_rows(rows, limits, METHODS) if g == grade.FAITHFUL]
        right = sum(map(deserves, called))
        return not wrong and lucky <= 0.01 * tried and right >= 0.95 * len(called)

    words = (w for w in (0.8, 0.85, 0.9, 0.95, 0.96, 0.97, 0.98, 0.99) if w >= limits.words)
    grid = product(np.arange(limits.order, 0.985, 0.01), [*words])
    faithful = [
        replace(limits, faithful_order=round(float(o), 2), faithful_words=round(float(w), 2))
        for o, w in grid
    ]
    limits = max(filter(sound, faithful), key=lambda one: known(one, GOOD[:1]))
    return replace(limits, shortest=shortest(rows, limits))


def upper(some: int, count: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson 1927)."""
    p, z = some / count, 1.959964
    reach = z * np.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return float((p + z * z / (2 * count) + reach) / (1 + z * z / count))


def shortest(rows: Sequence[Any], limits: Limits) -> int:
    """The fewest words from which on, whatever their number, at most 5 % of random scores are graded
    better than chance."""
    for words in range(LONG - 1, 1, -1):
        own = [row for row in rows if row["length"] == words]
        k, n = share(own, replace(limits, shortest=2), RANDOM, GOOD)
        if n and k > 0.05 * n:
            return words + 1
    return 2


def halves(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return list(rows[::2]), list(rows[1::2])


def counted(rows: Sequence[Any], limits: Limits) -> dict[str, dict[str, Any]]:
    """For each kind of explanation: how many got each grade, and how many called faithful deserve it."""
    kinds: dict[str, dict[str, Any]] = {}
    for name, _, given, numbers in graded_rows(rows, limits):
        own = kinds.setdefault(
            kind_of(name), {"grades": Counter(), "deserved": 0, "masked": 0, "special": 0}
        )
        own["grades"][given] += 1
        own["special"] += numbers[2] > limits.special
        if given == grade.FAITHFUL:
            own["deserved"] += deserves(numbers)
            own["masked"] += numbers[5] > 0.5
    return kinds


def table(kinds: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"| explanation | number | {' | '.join(GRADES)} | faithful: deserved | masked |",
             "|---" * (len(GRADES) + 4) + "|"]  # fmt: skip
    for name in (*ORACLES, *METHODS, "random", *INVERTED):
        if name not in kinds:
            continue
        own = kinds[name]
        total, faithful = sum(own["grades"].values()), own["grades"][grade.FAITHFUL]
        parts = [f"{100 * own['grades'][g] / total:.1f} %" for g in GRADES]
        right = [
            f"{100 * own[k] / faithful:.0f} %" if faithful else "" for k in ("deserved", "masked")
        ]
        lines.append(f"| {name} | {total} | {' | '.join([*parts, *right])} |")
    return lines


def by_length(rows: Sequence[Any], limits: Limits) -> list[str]:
    edges = (2, 3, 4, 5, 6, 8, 12, 20, 40, 10_000)
    lines = ["| words | texts | random: better than chance | near-best: better than chance |",
             "|---|---|---|---|"]  # fmt: skip
    free = replace(limits, shortest=2)
    for low, high in pairwise(edges):
        own = [row for row in rows if low <= row["length"] < high]
        if own:
            cells = []
            for names in (RANDOM, ORACLES):
                k, n = share(own, free, names, GOOD)
                cells.append(f"{100 * k / n:.1f} %" if n else "")
            words = (
                f"{low}"
                if high == low + 1
                else f"{low} to {high - 1}"
                if high < 9999
                else f"{low} on"
            )
            lines.append(f"| {words} | {len(own)} | {' | '.join(cells)} |")
    return lines


def figure(tasks: dict[str, list[Any]], limits: Limits, place: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "tokenlight", "font.size": 9}
    colours = ("#1a7f37", "#9ad0a6", "#d9d9d9", "#f2c879", "#c0504d", "#f4f4f4")
    rows = [row for own in tasks.values() for row in own]
    kinds = counted(rows, limits)
    names = [n for n in (*ORACLES, *METHODS, "random", *INVERTED) if n in kinds][::-1]
    drawn, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), width_ratios=(3, 2))
    start = np.zeros(len(names))
    for given, colour in zip(GRADES, colours, strict=True):
        part = np.array(
            [kinds[n]["grades"][given] / sum(kinds[n]["grades"].values()) for n in names]
        )
        left.barh(names, 100 * part, left=100 * start, color=colour, label=given, edgecolor="white")
        start += part
    left.set(xlabel="% of texts", title="Grades of orders of known worth and of methods")
    left.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)
    left.margins(x=0)
    # What a person may expect of a grade: how much of chance its explanations beat, drawn anew.
    found: dict[str, list[float]] = {g: [] for g in GRADES[:5]}
    for name, _, given, numbers in graded_rows(rows, limits):
        if name in METHODS and given in found:
            found[given].append(100 * numbers[3])
    known = [g for g in GRADES[:5] if found[g]]
    labels = [g.replace(" ", "\n") for g in known]
    right.boxplot([found[g] for g in known], whis=(5, 95), showfliers=False, tick_labels=labels)
    right.axhline(50, color="grey", lw=0.8, ls=":")
    right.set(ylabel="% of 60 orders drawn anew that it beats", ylim=(0, 101),
              title="What a grade of a method is worth")  # fmt: skip
    drawn.tight_layout()
    drawn.savefig(place, metadata={"Date": None})


def report(work: Path, *, keep: bool) -> None:
    """``keep``: with the limits as they are, which these texts did not choose, so all are reported."""
    files = {task: json.loads((work / f"{task}.json").read_text(encoding="utf-8"))
             for task in MODELS if (work / f"{task}.json").is_file()}  # fmt: skip
    first = {task: halves(found["rows"])[0] for task, found in files.items()}
    second = {
        task: found["rows"] if keep else halves(found["rows"])[1] for task, found in files.items()
    }
    limits = grade.LIMITS if keep else chosen(first)
    said = (
        "These limits were set before; none of the texts below chose them, and they are too few to."
        if keep
        else "All that follows is of the half that did not choose them."
    )
    everything = [row for own in second.values() for row in own]
    lines = ["# Does a grade of trust mean what it says?", "",
             *__doc__.split("\n\n", 3)[3].strip().splitlines(), "",
             "![Grades of orders of known worth](calibration.svg)", "",
             "## The limits", "", "| limit | value |", "|---|---|",
             *(f"| {name} | {value} |" for name, value in asdict(limits).items()), "",
             said, "",
             "## All tasks", "", *table(counted(everything, limits)), ""]  # fmt: skip
    for task, rows in second.items():
        lines += [f"## {TITLES[task]}", "", f"{len(rows)} texts, by {MODELS[task]}.", "",
                  *table(counted(rows, limits)), ""]  # fmt: skip
    lines += ["## By length", "", "Graded as if no text were too short.", "",
              *by_length(everything, limits), ""]  # fmt: skip
    lines += [*dict.fromkeys("Made with " + ", ".join(f"{k} {v}" for k, v in f["facts"].items()) + "."
                             for f in files.values())]  # fmt: skip
    PAGE.mkdir(parents=True, exist_ok=True)
    write_text(PAGE / "README.md", "\n".join(lines) + "\n")
    content = {
        "limits": asdict(limits),
        "texts": {
            task: {"chose": len(first[task]), "reported": len(second[task])} for task in files
        },
        "reported": {task: counted(rows, limits) for task, rows in second.items()},
        "facts": {task: found["facts"] for task, found in files.items()},
    }
    write_text(PAGE / "calibration.json", json.dumps(content, indent=1) + "\n")
    figure(second, limits, PAGE / "calibration.svg")
    print(limits)
    if limits != grade.LIMITS:
        print("these are not the limits of tokenlight.evaluation.grade: set them there")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--together", type=int, default=1, help="processes")
    parser.add_argument("--texts", type=int, default=1000, help="of each task, at most")
    parser.add_argument("--tasks", nargs="+", default=[t for t in MODELS if t != "qqp"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no text is begun")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--keep", action="store_true", help="report with the limits as they are")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.report:
        report(given.work, keep=given.keep)
    else:
        run(given)


if __name__ == "__main__":
    main()
