"""How reliable is a trust grade? Scores of known quality are graded, and choose the thresholds.

    python benchmarks/trust_calibration.py pack --data DATA --to FOLDER   # 5 MB: all that measuring reads
    python benchmarks/trust_calibration.py measure --data DATA --work WORK [--device cuda] [--workers 12]
    python benchmarks/trust_calibration.py report --work WORK [--keep]   # thresholds, page, figure

DATA is the folder of public data sets (default: TOKENLIGHT_DATA). WORK keeps one file per task; finished
chunks are kept in PARTS, so that the same command goes on where it was stopped. Every text is held out: from
a split that no model was trained on. The first half of the texts chooses the thresholds before the other half
is looked at; everything reported is about the other half.

Graded are, for each text: **near-best** scores (a ridge regression on 40 sub-texts per removal that the test
does not see), a method, and scores that explain nothing: **random** ones twice, **picked** (of 20 random ones
those whose 3 top words lower the probability most when they are deleted), **position** (from first to last),
**last first**, **word length**, **one word** (1 at a random word, 0 elsewhere), **tied** (0 or 1 at random),
**constant**, and near-best scores **inverted** and **without sign**.

The thresholds are chosen in two steps. First, among those that give at most 5 % of the random scores a good
grade in every task (upper end of the 95 % interval), take those that give most near-best scores one. Then,
among those that grade no inverted and at most 1 % of the random scores as faithful, take those that grade the
most near-best scores as faithful. The verdict of a single removal is held to the same 5 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from machine import facts

from tokenlight import Explainer, TokenTarget
from tokenlight.data.attribution import Attribution
from tokenlight.errors import TokenlightError
from tokenlight.evaluation import grade
from tokenlight.evaluation.grade import GradeThresholds, RemovalResult, judge_removal
from tokenlight.evaluation.random_subtexts import (
    ORDER_BLOCKS,
    RandomSubtexts,
    compute_log_odds,
    limit_orders,
    rank_all_removals,
)
from tokenlight.evaluation.removal import PerturbedText, TargetProbability, list_removals
from tokenlight.evaluation.removal_grading import (
    MAX_TIED_SHARE,
    MIN_INITIAL_PROBABILITY,
    MIN_INITIAL_TOKEN_PROBABILITY,
    MIN_PROBABILITY_CHANGE,
    count_tied,
)
from tokenlight.files.tables import read_examples
from tokenlight.files.write import write_text
from tokenlight.models import resolve_path

PAGE = Path("docs/results/trust")
TASKS = {
    "text": "SST-2 dev, sentences",
    "topic": "AG News test",
    "pair": "QQP, pairs of questions",
    "question": "SQuAD v1.1 dev, answer spans",
    "next": "WikiText-103 test, next token of stories15M",
    "token": "UD English EWT test, part of speech of one word",
}
KINDS = (
    "near-best", "attnlrp", "without sign", "random", "picked", "position", "last first", "word length",
    "one word", "tied", "constant", "inverted",
)  # fmt: skip
GRADES = (
    grade.FAITHFUL, grade.BETTER_THAN_CHANCE, grade.INCONCLUSIVE, grade.NO_BETTER_THAN_CHANCE,
    grade.WORSE_THAN_CHANCE, grade.UNTESTED,
)  # fmt: skip
LENGTHS = ((5, 7), (8, 14), (15, 29), (30, 10_000))  # around 5, 10, 20 and 40 words
NUM_FIT_ORDERS = 20  # of two sub-texts each, for near-best scores
NUM_PICKED_FROM = 20  # random scores that "picked" ones are the best of
LOOKS = range(
    3, 9
)  # numbers of random orders that are looked at, so that ORDER_BLOCKS can be tried
CHUNK_SIZE = 20
MAX_WORDS = 400
BASE_LIMITS = GradeThresholds()
TRAINING_STEPS = 400


# --- texts and models -----------------------------------------------------------------------------


def read_texts(task: str, data: Path, count: int) -> list[tuple[Any, Any]]:
    """Return inputs with their targets, in a random order."""
    if task == "token":
        inputs = [(" ".join(words), TokenTarget(i)) for words, _, i in _read_tagged(data, "test")]
    elif task == "next":
        lines = gzip.decompress((data / "wikitext103_eval/wiki.test.tokens.gz").read_bytes())
        inputs = [(_cut_prompt(line), "predicted") for line in lines.decode().splitlines()]
        inputs = [(text, target) for text, target in inputs if text]
    else:
        name = {
            "text": "sst2/dev", "topic": "ag_news/test", "pair": "qqp/test_subset",
            "question": "squad_v1/dev",
        }[task]  # fmt: skip
        inputs = [(e.text, "predicted") for e in read_examples(data / f"{name}.jsonl.gz")]
    order = np.random.default_rng(0).permutation(len(inputs))
    return [inputs[i] for i in order[:count]]


def _cut_prompt(line: str) -> str:
    """Return the first 6 to 40 words of a paragraph; empty if it is a heading or short."""
    words = line.replace(" @-@ ", "-").split()
    length = 6 + sum(map(ord, line)) % 35
    return " ".join(words[:length]) if len(words) > length + 5 and "=" not in words[0] else ""


def _read_tagged(data: Path, split: str) -> Iterator[tuple[list[str], list[str], int]]:
    """Yield words, tags and the index of one word of each sentence."""
    raw = gzip.decompress((data / f"ud_ewt/en_ewt-ud-{split}.conllu.gz").read_bytes()).decode()
    for block in raw.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if line and line[0] != "#"]
        rows = [row for row in rows if row[0].isdigit()]
        if len(rows) >= 5:
            words = [row[1] for row in rows]
            yield words, [row[3] for row in rows], len(words) // 2


def train_model(task: str, data: Path, folder: Path, device: str) -> None:
    """Fine-tune the embedded encoder on pairs or tags: a minute on a GPU. An existing folder is kept."""
    if (folder / "config.json").is_file():
        return
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve_path("tokenlight/masked_lm"))
    if task == "pair":
        examples = list(read_examples(data / "qqp/train_subset.jsonl.gz"))
        rows: list[Any] = [(e.text, int(e.label)) for e in examples]
        labels = ["different", "duplicate"]
        model_class: Any = transformers.BertForSequenceClassification
    else:
        rows = [(words, tags) for words, tags, _ in _read_tagged(data, "train")]
        labels = sorted({tag for _, tags in rows for tag in tags})
        model_class = transformers.BertForTokenClassification
    names = dict(enumerate(labels))
    model = model_class.from_pretrained(
        resolve_path("tokenlight/masked_lm"), num_labels=len(labels), id2label=names,
        label2id={v: k for k, v in names.items()}, dtype=torch.float32,
    ).to(device).train()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = np.random.default_rng(0)
    for _ in range(TRAINING_STEPS):
        batch = [rows[i] for i in generator.integers(len(rows), size=64)]
        texts = [row[0] for row in batch]
        encoded = tokenizer(
            texts, is_split_into_words=task == "token", padding=True, truncation=True,
            max_length=96, return_tensors="pt",
        )  # fmt: skip
        targets: Any = torch.tensor([row[1] for row in batch]) if task == "pair" else None
        if task == "token":
            targets = torch.full(encoded["input_ids"].shape, -100)
            for i, (_, tags) in enumerate(batch):
                for j, word in enumerate(encoded.word_ids(i)):
                    if word is not None:
                        targets[i, j] = labels.index(tags[word])
        loss = model(**encoded.to(device), labels=targets.to(device)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{task}: trained, last loss {loss.item():.3f}", flush=True)


@cache
def load_explainer(model: str, device: str) -> Explainer:
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Explainer.from_pretrained(model, device=device)


# --- measuring ------------------------------------------------------------------------------------


def measure_texts(
    model: str, device: str, inputs: Sequence[tuple[Any, Any]]
) -> list[dict[str, Any]]:
    """Return what the test found of every kind of scores on each text."""
    explainer = load_explainer(model, device)
    found = []
    for i, (text, target) in enumerate(inputs):
        try:
            attribution = explainer.explain(
                [text], ["attnlrp"], [target], long="truncate", progress=False
            )[0]
            found.append(measure_text(explainer, attribution, i))
        except TokenlightError as error:
            print(f"left out: {str(error)[:100]}", flush=True)
    return [row for row in found if row]


def measure_text(explainer: Explainer, attribution: Attribution, seed: int) -> dict[str, Any]:
    """Test every kind of scores; each look at the random orders is kept, so that limits can be tried."""
    row = attribution.row
    probability = TargetProbability(explainer, attribution, {})
    num_words = len(probability.words)
    if not 2 <= num_words <= MAX_WORDS:
        return {}
    generator = row.make_generator(seed, 1)
    removals = list_removals(explainer, row, probability.words, generator)
    subtexts = RandomSubtexts(probability, removals, generator, max_orders=LOOKS[-1])
    is_token = explainer._runner.head.is_language_model
    floor = MIN_INITIAL_TOKEN_PROBABILITY if is_token else MIN_INITIAL_PROBABILITY
    result: dict[str, Any] = {
        "words": num_words, "before": subtexts.before, "removals": [r.name for r in removals],
        "is_floor": subtexts.before < floor, "kinds": {},
    }  # fmt: skip
    if result["is_floor"]:
        return result
    all_scores = make_scores(attribution, subtexts, generator)
    subtexts.prefetch(list(all_scores.values()), LOOKS[-1])
    for name, scores in all_scores.items():
        looks = {}
        for num_orders in LOOKS:
            evidence = subtexts.measure(scores, num_orders)
            numbers = []
            for item in evidence:
                fall = item.largest_fall if item.lowers_probability else 0.0
                numbers.append((item.share_beaten, item.correlation_rank, fall))
            looks[num_orders] = {
                "removals": np.round(numbers, 4).tolist(),
                "joint": round(rank_all_removals(evidence), 4),
            }
        removable = scores[probability.removable_positions]
        magnitude = np.abs(scores)
        special = magnitude[np.array(row.special_tokens_mask)].sum() / (magnitude.sum() or 1.0)
        result["kinds"][name] = {
            "looks": looks, "tied": count_tied(removable) / len(removable), "special": float(special),
        }  # fmt: skip
    result["moved"] = subtexts.max_change
    return result


def make_scores(
    attribution: Attribution, subtexts: RandomSubtexts, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return scores of known worth, one per token."""
    num_words = len(subtexts.words)
    best = fit_scores(subtexts, generator)
    one_word = np.zeros(num_words)
    one_word[generator.integers(num_words)] = 1.0
    by_word = {
        "near-best": best,
        "inverted": -best,
        "random 0": generator.normal(size=num_words),
        "random 1": generator.normal(size=num_words),
        "one word": one_word,
        "tied": generator.integers(2, size=num_words).astype(float),
        "picked": pick_random_scores(subtexts, generator),
        "position": -np.arange(num_words, dtype=float),
        "last first": np.arange(num_words, dtype=float),
        "word length": measure_lengths(attribution, subtexts),
        "without sign": np.abs(best),
    }
    made = {"attnlrp": attribution.scores, "constant": np.ones(len(attribution.row))}
    for name, word_scores in by_word.items():
        scores = np.zeros(len(attribution.row))
        for positions, score in zip(subtexts.words, word_scores, strict=True):
            scores[positions] = score / len(positions)
        made[name] = scores
    return made


def pick_random_scores(subtexts: RandomSubtexts, generator: np.random.Generator) -> np.ndarray:
    """Return, of many random scores, those whose deleted top words lower the probability most."""
    candidates = generator.normal(size=(NUM_PICKED_FROM, len(subtexts.words)))
    texts = []
    for scores in candidates:
        top = np.argsort(-scores)[: subtexts.num_top_words]
        texts.append(PerturbedText(subtexts.removals[0], subtexts.select_positions(top)))
    return np.asarray(candidates[int(np.argmin(subtexts.probability.run(texts)))])


def measure_lengths(attribution: Attribution, subtexts: RandomSubtexts) -> np.ndarray:
    """Return the number of letters of each word, made distinct by its position."""
    lengths = []
    for i, positions in enumerate(subtexts.words):
        text = attribution.row.extract_text(positions.tolist())
        lengths.append(len(text.strip()) - i / (2 * len(subtexts.words)))
    return np.array(lengths)


def fit_scores(subtexts: RandomSubtexts, generator: np.random.Generator) -> np.ndarray:
    """Fit the log-odds of fresh sub-texts of every removal by one weight per word."""
    num_words = len(subtexts.words)
    weights = np.zeros(num_words)
    for removal in subtexts.removals:
        texts = []
        presence = np.ones((2 * NUM_FIT_ORDERS, num_words))
        for i in range(2 * NUM_FIT_ORDERS):
            count = subtexts.counts[i % len(subtexts.counts)]
            removed = generator.permutation(num_words)[:count]
            presence[i, removed] = 0.0
            texts.append(PerturbedText(removal, subtexts.select_positions(removed), i))
        odds = compute_log_odds(subtexts.probability.run(texts))
        centered = presence - presence.mean(axis=0)
        gram = centered.T @ centered + np.eye(num_words)
        weights += np.linalg.solve(gram, centered.T @ (odds - odds.mean()))
    return weights


def measure(arguments: argparse.Namespace) -> None:
    start = time.monotonic()
    models = {
        "text": "tokenlight/sentiment", "topic": "tokenlight/topics", "question": "tokenlight/qa",
        "pair": str(arguments.parts / "pair_model"), "token": str(arguments.parts / "token_model"),
        "next": str(arguments.stories or arguments.data.parent / "base_models/stories15M"),
    }  # fmt: skip
    tasks = [task for task in arguments.tasks if task != "next" or Path(models[task]).is_dir()]
    for task in ("pair", "token"):
        if task in tasks:
            train_model(task, arguments.data, Path(models[task]), arguments.device)
    arguments.parts.mkdir(parents=True, exist_ok=True)
    run_jobs(tasks, models, arguments, start)
    for task in tasks:
        rows = []
        for path in sorted(arguments.parts.glob(f"{task}-*.json")):
            rows += json.loads(path.read_text(encoding="utf-8"))
        content = json.dumps({"facts": facts(arguments.device), "rows": rows})
        (arguments.work / f"{task}.json.gz").write_bytes(gzip.compress(content.encode(), mtime=0))
        print(f"{task}: {len(rows)} texts, {time.monotonic() - start:.0f} s", flush=True)


def run_jobs(
    tasks: Sequence[str], models: dict[str, str], arguments: argparse.Namespace, start: float
) -> None:
    """Measure what no earlier run measured, in several processes; each chunk is a file in PARTS."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        jobs = {}
        chunks = {task: read_texts(task, arguments.data, arguments.texts) for task in tasks}
        # Task after task in turn, so that a limit of time leaves each of them its share.
        for i, task in product(range(0, arguments.texts, CHUNK_SIZE), tasks):
            chunk = chunks[task][i : i + CHUNK_SIZE]
            path = arguments.parts / f"{task}-{i:05}.json"
            if chunk and not path.is_file():
                jobs[pool.submit(measure_texts, models[task], arguments.device, chunk)] = path
        for job in as_completed(jobs):
            if job.cancelled():
                continue
            if job.exception() is None:
                write_text(jobs[job], json.dumps(job.result()))
            else:
                print(f"{jobs[job].stem}: {job.exception()!r}"[:300], flush=True)
            if time.monotonic() - start > arguments.seconds:
                for other in jobs:
                    other.cancel()


def pack(arguments: argparse.Namespace) -> None:
    """Copy what measuring reads of DATA; of training sets, what training draws from."""
    for name in (
        "sst2/dev.jsonl.gz", "ag_news/test.jsonl.gz", "qqp/test_subset.jsonl.gz",
        "squad_v1/dev.jsonl.gz", "wikitext103_eval/wiki.test.tokens.gz",
        "ud_ewt/en_ewt-ud-test.conllu.gz", "qqp/labels.json",
    ):  # fmt: skip
        path = arguments.to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((arguments.data / name).read_bytes())
    for name, separator in (
        ("qqp/train_subset.jsonl.gz", "\n"),
        ("ud_ewt/en_ewt-ud-train.conllu.gz", "\n\n"),
    ):
        blocks = gzip.decompress((arguments.data / name).read_bytes()).decode().split(separator)
        content = separator.join([*blocks[: len(blocks) // 2], ""])
        (arguments.to / name).write_bytes(gzip.compress(content.encode(), mtime=0))


# --- grading again --------------------------------------------------------------------------------


def regrade(
    row: dict[str, Any], found: dict[str, Any], limits: GradeThresholds
) -> tuple[str, list[str]]:
    """Return the grade and the verdict of each removal, as the removal test would under these limits."""
    if row["is_floor"] or found["tied"] == 1:
        return grade.UNTESTED, []
    min_change = min(MIN_PROBABILITY_CHANGE, row["before"] / 2)
    if row["moved"] < min_change:
        return grade.UNTESTED, []
    results: list[RemovalResult] = []
    joint = 0.5
    for num_orders, look in found["looks"].items():
        if int(num_orders) not in ORDER_BLOCKS or int(num_orders) > limit_orders(row["words"]):
            continue
        joint = look["joint"]
        results = []
        for share, rank, fall in look["removals"]:
            results.append(RemovalResult(share, rank, fall >= min_change))
        if grade.is_decided(results, joint, limits):
            break
    given, judgments = grade.assign_grade(results, joint, found["special"], row["words"], limits)
    if found["tied"] > MAX_TIED_SHARE:
        given = grade.INCONCLUSIVE
    return given, judgments


def kind_of(name: str) -> str:
    return name.rstrip("0123456789 ")


def count_grades(
    rows: Sequence[Any], limits: GradeThresholds, kinds: Sequence[str] = KINDS
) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for row in rows:
        for name, found in row["kinds"].items():
            if kind_of(name) in counts:
                counts[kind_of(name)][regrade(row, found, limits)[0]] += 1
    return counts


def count_good(counts: Counter[str]) -> int:
    return sum(counts[name] for name in grade.GOOD_GRADES)


def upper_bound(some: int, count: int) -> float:
    """Upper end of the 95 % interval of a share (Wilson 1927)."""
    p, z = some / count, 1.959964
    reach = z * np.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return float((p + z * z / (2 * count) + reach) / (1 + z * z / count))


def choose_limits(rows_by_task: dict[str, list[Any]]) -> GradeThresholds:
    """Choose by the rule in the docstring, on the rows given."""
    rows = [row for task_rows in rows_by_task.values() for row in task_rows]
    best: tuple[int, GradeThresholds] | None = None
    for share, rank, joint in product(
        (0.6, 0.65, 0.7, 0.75, 0.8), (0.6, 0.7, 0.8), (0.93, 0.95, 0.97)
    ):
        limits = replace(BASE_LIMITS, share=share, rank=rank, joint_rank=joint)
        is_safe = True
        for task_rows in rows_by_task.values():
            random = count_grades(task_rows, limits, ("random",))["random"]
            total = sum(random.values())
            is_safe &= not total or upper_bound(count_good(random), total) <= 0.05
        if is_safe:
            power = count_good(count_grades(rows, limits, ("near-best",))["near-best"])
            best = max(best or (-1, limits), (power, limits), key=lambda pair: pair[0])
    if best is None:
        raise SystemExit("No limits keep random scores below 5 %: measure more texts, or --keep.")
    limits = best[1]
    chosen: tuple[int, GradeThresholds] = (-1, limits)
    for share, rank, joint in product(
        (0.7, 0.75, 0.8, 0.85, 0.9), (0.7, 0.8, 0.85, 0.9), (0.97, 0.98, 0.99)
    ):
        tried = replace(
            limits,
            faithful_share=max(share, limits.share),
            faithful_rank=max(rank, limits.rank),
            faithful_joint_rank=joint,
        )
        counts = count_grades(rows, tried, ("near-best", "inverted", "random"))
        total = sum(counts["random"].values())
        if counts["inverted"][grade.FAITHFUL] or counts["random"][grade.FAITHFUL] > 0.01 * total:
            continue
        chosen = max(chosen, (counts["near-best"][grade.FAITHFUL], tried), key=lambda pair: pair[0])
    return chosen[1]


def count_single_removals(rows: Sequence[Any], limits: GradeThresholds) -> dict[str, list[int]]:
    """Return, by removal, how many random scores it alone calls good, and of how many."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        for name, found in row["kinds"].items():
            if kind_of(name) == "random" and not row["is_floor"]:
                min_change = min(MIN_PROBABILITY_CHANGE, row["before"] / 2)
                last = found["looks"][str(limit_orders(row["words"]))]["removals"]
                for removal, (share, rank, fall) in zip(row["removals"], last, strict=True):
                    judged = judge_removal(RemovalResult(share, rank, fall >= min_change), limits)
                    pair = counts.setdefault(removal, [0, 0])
                    pair[0] += judged in grade.GOOD_GRADES
                    pair[1] += 1
    return counts


# --- the page -------------------------------------------------------------------------------------


def split_halves(rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    return list(rows[::2]), list(rows[1::2])


def format_table(counts: dict[str, Counter[str]]) -> list[str]:
    lines = [f"| scores | number | {' | '.join(GRADES)} |", "|---" * (len(GRADES) + 2) + "|"]
    for kind, own in counts.items():
        total = sum(own.values())
        if total:
            cells = [f"{100 * own[name] / total:.1f} %" for name in GRADES]
            lines.append(f"| {kind} | {total} | {' | '.join(cells)} |")
    return lines


def measure_power(rows: Sequence[Any], limits: GradeThresholds) -> list[dict[str, Any]]:
    """Return, by length, the shares of near-best and random scores with a good grade."""
    points = []
    for low, high in LENGTHS:
        own = [row for row in rows if low <= row["words"] <= high]
        counts = count_grades(own, limits, ("near-best", "attnlrp", "random"))
        shares = {}
        for kind, counted in counts.items():
            total = sum(counted.values())
            shares[kind] = count_good(counted) / total if total else None
        lengths = [row["words"] for row in own]
        points.append(
            {"words": float(np.median(lengths)) if own else None, "texts": len(own)} | shares
        )
    return points


def draw_figure(power: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.hashsalt": "tokenlight", "font.size": 9}
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for task, points in power.items():
        usable = [p for p in points if p["texts"] >= 20]
        words = [p["words"] for p in usable]
        (line,) = axes.plot(words, [100 * p["near-best"] for p in usable], "o-", label=task)
        axes.plot(words, [100 * p["random"] for p in usable], ":", color=line.get_color())
    axes.axhline(5, color="grey", lw=0.8)
    axes.set(
        xlabel="words of the text", ylabel="% with a good grade", xscale="log", ylim=(0, 100),
        title="Near-best scores (lines) and random scores (dotted)",
    )  # fmt: skip
    axes.set_xticks([5, 10, 20, 40], ["5", "10", "20", "40"])
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def report(arguments: argparse.Namespace) -> None:
    files = {}
    for task in TASKS:
        path = arguments.work / f"{task}.json.gz"
        if path.is_file():
            files[task] = json.loads(gzip.decompress(path.read_bytes()))
    halves = {task: split_halves(content["rows"]) for task, content in files.items()}
    limits = grade.DEFAULT_THRESHOLDS
    if not arguments.keep:
        limits = choose_limits({task: first for task, (first, _) in halves.items()})
    second = {task: other for task, (_, other) in halves.items()}
    rows = [row for task_rows in second.values() for row in task_rows]
    single = count_single_removals(rows, limits)
    power = {task: measure_power(own, limits) for task, own in second.items()}
    counts = {task: count_grades(own, limits) for task, own in second.items()}
    lines = [
        "# How reliable is a trust grade?", "",
        *__doc__.split("\n\n", 3)[3].strip().splitlines(), "",
        "![Power by the length of the text](calibration.svg)", "", "## Thresholds", "",
        "Chosen on the first half of the texts. All figures below are of texts that chose nothing.", "",
        "| threshold | value |", "|---|---|",
        *(f"| {name} | {value:g} |" for name, value in asdict(limits).items()), "",
        "## Each removal alone", "", "| removal | random scores with a good verdict |", "|---|---|",
        *(f"| {name} | {100 * some / of:.1f} % of {of} |" for name, (some, of) in single.items()),
        "", "## All tasks", "", *format_table(count_grades(rows, limits)), "",
    ]  # fmt: skip
    for task, own in counts.items():
        lines += [
            f"## {TASKS[task]}",
            "",
            f"{len(second[task])} texts.",
            "",
            *format_table(own),
            "",
        ]
    lines += ["## Power by length", "", "| task | words (median) | texts | near-best | attnlrp | random |",
              "|---|---|---|---|---|---|"]  # fmt: skip
    for task, points in power.items():
        for point in points:
            if point["texts"]:
                cells = [
                    f"{100 * point[kind]:.0f} %" for kind in ("near-best", "attnlrp", "random")
                ]
                lines.append(
                    f"| {task} | {point['words']:.0f} | {point['texts']} | {' | '.join(cells)} |"
                )
    made = {
        ", ".join(f"{k} {v}" for k, v in content["facts"].items()) for content in files.values()
    }
    lines += ["", *(f"Made with {text}." for text in sorted(made)), *arguments.note]
    PAGE.mkdir(parents=True, exist_ok=True)
    write_text(PAGE / "README.md", "\n".join(lines) + "\n")
    content = {
        "limits": asdict(limits), "single_removals": single, "power": power,
        "texts": {t: {"chose": len(a), "reported": len(b)} for t, (a, b) in halves.items()},
        "reported": counts, "facts": {task: found["facts"] for task, found in files.items()},
    }  # fmt: skip
    write_text(PAGE / "calibration.json", json.dumps(content, indent=1) + "\n")
    draw_figure(power, PAGE / "calibration.svg")
    print(limits)
    if limits != grade.DEFAULT_THRESHOLDS:
        print("These are not the thresholds of tokenlight.evaluation.grade: set them there.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    data = os.environ.get("TOKENLIGHT_DATA")
    measuring.add_argument("--data", type=Path, default=data and Path(data), required=not data)
    measuring.add_argument("--stories", type=Path, help="folder of the causal language model")
    measuring.add_argument("--device", default="cpu")
    measuring.add_argument("--workers", type=int, default=1)
    measuring.add_argument("--texts", type=int, default=1000, help="of each task, at most")
    measuring.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    measuring.add_argument(
        "--seconds", type=float, default=1e9, help="after which no chunk is begun"
    )
    measuring.add_argument("--parts", type=Path, help="finished chunks (default: WORK/parts)")
    measuring.set_defaults(run=measure)
    packing = commands.add_parser("pack")
    packing.add_argument("--data", type=Path, default=data and Path(data), required=not data)
    packing.add_argument("--to", type=Path, required=True)
    packing.set_defaults(run=pack)
    reporting = commands.add_parser("report")
    reporting.add_argument("--keep", action="store_true", help="keep the thresholds of the release")
    reporting.add_argument("--note", nargs="*", default=[], help="lines for the end of the page")
    reporting.set_defaults(run=report)
    for command in (measuring, reporting):
        command.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    if "work" in arguments:
        arguments.work.mkdir(parents=True, exist_ok=True)
    if "parts" in arguments:
        arguments.parts = arguments.parts or arguments.work / "parts"
    arguments.run(arguments)


if __name__ == "__main__":
    main()
