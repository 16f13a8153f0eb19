"""How reliable is a trust grade? Record what subtexts do under scores of known quality.

    python benchmarks/trust_calibration.py pack --data DATA --to FOLDER   # 5 MB: all that measuring reads
    python benchmarks/trust_calibration.py measure --data DATA --work WORK [--device cuda] [--workers 8]
    python benchmarks/trust_report.py --work WORK   # counts the grades

DATA is the folder of public data sets (default: TOKENLIGHT_DATA). WORK/parts keeps finished chunks, so that
the same command goes on where it was stopped. What is kept are probabilities of subtexts, not grades:
``trust_report.py`` grades them by the code of the package, so that a rule can be tried without the models.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts
from trust_texts import TASKS, TRAINED_TASKS, load_explainer, pack, read_texts, train_model

from tokenlight import Explainer
from tokenlight.data.attribution import Attribution
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.random_subtexts import (
    NUM_OWN_POINTS,
    RandomSubtexts,
    choose_own_words,
    compute_log_odds,
)
from tokenlight.evaluation.removal import PerturbedText, TargetProbability, list_removals
from tokenlight.evaluation.removal_grading import (
    RANDOM_STREAM,
    count_tied,
    find_cancelled_share,
    find_special_share,
    find_tolerance,
)

METHODS = ("attnlrp", "grad_x_input", "rollout")
NUM_ORDERS = 6  # random orders that are measured, so that fewer of them can be tried
NUM_FIT_TEXTS = 40  # subtexts of each removal that near-best scores are fitted on
NUM_PICKED_FROM = 20  # random scores that "picked" ones are the best of
NUM_SEEDS = 5  # of the texts that are measured with several seeds
CHUNK_SIZE = 20
MAX_WORDS = 400
# Texts of trained models wait until this many of the other tasks' texts were begun.
TRAINING_DELAY = 160


def measure_texts(
    model: str, device: str, inputs: Sequence[tuple[Any, Any]], num_seeds: int
) -> list[dict[str, Any]]:
    """Return what every subtext of each text did; texts that cannot be explained are left out."""
    while "/" in model and not model.startswith("tokenlight/") and not Path(model).is_dir():
        time.sleep(1)  # it is being trained
    explainer = load_explainer(model, device)
    records = []
    for text, target in inputs:
        try:
            attributions = explainer.explain(
                [text], list(METHODS), [target], long="truncate", progress=False
            )
            record = measure_text(explainer, attributions, 0)
            if record and not record["is_floor"]:
                own = attributions[:1]
                seeds = [measure_text(explainer, own, seed) for seed in range(1, num_seeds)]
                record["seeds"] = seeds
        except TokenlightError as error:
            print(f"left out: {str(error)[:100]}", flush=True)
            continue
        if record:
            records.append(record)
    return records


def measure_text(
    explainer: Explainer, attributions: Sequence[Attribution], seed: int
) -> dict[str, Any]:
    """Measure the random subtexts, and the own subtexts of every kind of scores; with a seed, of methods."""
    attribution = attributions[0]
    row = attribution.row
    probability = TargetProbability(explainer, attribution, {})
    num_words = len(probability.words)
    if not 2 <= num_words <= MAX_WORDS:
        return {}
    generator = row.make_generator(seed, RANDOM_STREAM)
    removals = list_removals(explainer, row, probability.words, generator)
    subtexts = RandomSubtexts(probability, removals, generator, max_orders=NUM_ORDERS)
    is_token = explainer.runner.head.is_language_model
    record: dict[str, Any] = {
        "words": num_words,
        "before": subtexts.before,
        "removals": [removal.name for removal in removals],
        "is_token": is_token,
        "is_floor": subtexts.before < (0.01 if is_token else 0.05),
    }
    if record["is_floor"]:
        return record
    made = {a.method: a.scores for a in attributions}
    if not seed:
        made |= make_scores(attribution, subtexts, row.make_generator(0, 1))
    subtexts.prefetch(list(made.values()), NUM_ORDERS)
    subtexts.measure(attribution.scores, NUM_ORDERS)
    record |= {
        "empty": subtexts._empty,
        "choices": [[[chosen.tolist() for chosen in o] for o in r] for r in subtexts.choices],
        "random": [_round(compute_log_odds(np.stack(orders))) for orders in subtexts._random],
        "scores": {
            name: record_scores(subtexts, attribution, scores) for name, scores in made.items()
        },
    }
    return record


def record_scores(
    subtexts: RandomSubtexts, attribution: Attribution, scores: np.ndarray
) -> dict[str, Any]:
    """Return the scores of words, and what their own subtexts did."""
    word_scores = subtexts.sum_words(scores)
    order = subtexts.rank_words(word_scores)
    own = []
    for removal in subtexts.removals:
        texts = subtexts.list_own_texts(removal, choose_own_words(order, subtexts.num_top_words))
        odds = compute_log_odds(subtexts.probability.run(texts))
        own.append(_round(odds.reshape(-1, NUM_OWN_POINTS)))
    removable = scores[subtexts.probability.removable_positions]
    dtype = subtexts.probability.runner.dtype
    tested = replace(attribution, scores=scores, layers=None)
    return {
        "words": [float(f"{score:.5g}") for score in word_scores],
        "order": order.tolist(),
        "own": own,
        "tied": count_tied(removable, find_tolerance(tested, dtype)) / len(removable),
        "special": round(find_special_share(tested), 4),
        "cancelled": round(find_cancelled_share(scores, subtexts.words), 4),
    }


def _round(values: np.ndarray) -> list[Any]:
    return list(np.round(values, 3).tolist())


def make_scores(
    attribution: Attribution, subtexts: RandomSubtexts, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return scores of known worth, one per token."""
    num_words = len(subtexts.words)
    best = fit_scores(subtexts, generator)
    method = subtexts.sum_words(attribution.scores)
    one_word = np.zeros(num_words)
    one_word[generator.integers(num_words)] = 1.0
    by_word = {
        "near-best": best,
        "near-best, noise added": best + best.std() * generator.normal(size=num_words),
        "near-best, without sign": np.abs(best),
        "near-best, all raised": best + np.abs(best).max(),
        "near-best, all lowered": best - np.abs(best).max(),
        "near-best, rest inverted": invert_rest(best, subtexts.num_top_words),
        "attnlrp, all raised": method + np.abs(method).max(),
        "attnlrp, all lowered": method - np.abs(method).max(),
        "attnlrp, rest inverted": invert_rest(method, subtexts.num_top_words),
        "inverted": -best,
        "random 0": generator.normal(size=num_words),
        "random 1": generator.normal(size=num_words),
        "random, all positive": generator.random(num_words),
        "picked": pick_random_scores(subtexts, generator),
        "position": -np.arange(num_words, dtype=float),
        "last first": np.arange(num_words, dtype=float),
        "word length": measure_lengths(attribution, subtexts),
        "one word": one_word,
        "tied": generator.integers(2, size=num_words).astype(float),
        "near-constant": 1.0 + 1e-7 * generator.normal(size=num_words),
    }
    made = {"constant": np.ones(len(attribution.row))}
    for name, word_scores in by_word.items():
        scores = np.zeros(len(attribution.row))
        for positions, score in zip(subtexts.words, word_scores, strict=True):
            scores[positions] = score / len(positions)
        made[name] = scores
    return made


def invert_rest(word_scores: np.ndarray, num_top_words: int) -> np.ndarray:
    """Keep the top words, and give the others each other's scores in the opposite order."""
    order = np.argsort(-word_scores, kind="stable")
    rest = order[num_top_words:]
    inverted = word_scores.copy()
    inverted[rest] = word_scores[rest[::-1]]
    return inverted


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
    """Fit the log-odds of fresh subtexts of all removals by one weight per word (ridge regression)."""
    num_words = len(subtexts.words)
    counts = (subtexts.num_top_words, max(1, num_words // 2))
    texts = []
    presence = np.ones((len(subtexts.removals), NUM_FIT_TEXTS, num_words))
    for removal, rows in zip(subtexts.removals, presence, strict=True):
        for i, row in enumerate(rows):
            removed = generator.permutation(num_words)[: counts[i % 2]]
            row[removed] = 0.0
            texts.append(PerturbedText(removal, subtexts.select_positions(removed), i))
    odds = compute_log_odds(subtexts.probability.run(texts)).reshape(presence.shape[:2])
    # Each removal has an intercept of its own.
    centered = (presence - presence.mean(axis=1, keepdims=True)).reshape(-1, num_words)
    centered_odds = (odds - odds.mean(axis=1, keepdims=True)).ravel()
    gram = centered.T @ centered + np.eye(num_words)
    return np.asarray(np.linalg.solve(gram, centered.T @ centered_odds))


def measure(arguments: argparse.Namespace) -> None:
    start = time.monotonic()
    parts = arguments.work / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    models = {
        "text": "tokenlight/sentiment", "topic": "tokenlight/topics", "question": "tokenlight/qa",
        "pair": str(arguments.models / "pair_model"), "token": str(arguments.models / "token_model"),
        "next": str(arguments.stories or arguments.data.parent / "base_models/stories15M"),
    }  # fmt: skip
    (arguments.work / "facts.json").write_text(json.dumps(facts(arguments.device)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        for task in TRAINED_TASKS:
            if task in arguments.tasks:
                pool.submit(train_model, task, arguments.data, Path(models[task]), arguments.device)
        jobs = {}
        for path, task, chunk, num_seeds in list_chunks(arguments, parts):
            job = pool.submit(measure_texts, models[task], arguments.device, chunk, num_seeds)
            jobs[job] = path
        collect_jobs(jobs, start, arguments.seconds)
    print(f"{len(list(parts.iterdir()))} chunks, {time.monotonic() - start:.0f} s", flush=True)


def list_chunks(
    arguments: argparse.Namespace, parts: Path
) -> list[tuple[Path, str, list[tuple[Any, Any]], int]]:
    """List what no earlier run measured; tasks in turn, so that a limit of time leaves each its share."""
    texts = {task: read_texts(task, arguments.data, arguments.texts) for task in arguments.tasks}
    chunks = []
    for i, task in product(range(0, arguments.texts, CHUNK_SIZE), arguments.tasks):
        chunk = texts[task][i : i + CHUNK_SIZE]
        path = parts / f"{task}-{i:05}.json.gz"
        if chunk and not path.is_file():
            num_seeds = NUM_SEEDS if i < arguments.seed_texts else 1
            rank = i + (TRAINING_DELAY if task in TRAINED_TASKS else 0)
            chunks.append((rank, path, task, chunk, num_seeds))
    return [chunk for _, *chunk in sorted(chunks, key=lambda chunk: chunk[0])]


def collect_jobs(jobs: dict[Future[Any], Path], start: float, seconds: float) -> None:
    """Write each chunk as it arrives; after ``seconds`` no further one is begun."""
    for job in as_completed(jobs):
        if job.cancelled():
            continue
        if job.exception() is None:
            content = json.dumps(job.result(), separators=(",", ":")).encode()
            draft = jobs[job].with_suffix(".draft")
            draft.write_bytes(gzip.compress(content, mtime=0))
            draft.rename(jobs[job])
        else:
            print(f"{jobs[job].stem}: {job.exception()!r}"[:300], flush=True)
        if time.monotonic() - start > seconds:
            for other in jobs:
                other.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    packing = commands.add_parser("pack")
    data = os.environ.get("TOKENLIGHT_DATA")
    for command in (measuring, packing):
        command.add_argument("--data", type=Path, default=data and Path(data), required=not data)
    measuring.add_argument("--work", type=Path, required=True)
    measuring.add_argument("--models", type=Path, help="folder of trained models (default: WORK)")
    measuring.add_argument("--stories", type=Path, help="folder of the causal language model")
    measuring.add_argument("--device", default="cpu")
    measuring.add_argument("--workers", type=int, default=1)
    measuring.add_argument("--texts", type=int, default=1200, help="of each task, at most")
    measuring.add_argument("--seed-texts", type=int, default=200, help="with several seeds")
    measuring.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    measuring.add_argument(
        "--seconds", type=float, default=1e9, help="after which no chunk is begun"
    )
    measuring.set_defaults(run=measure)
    packing.add_argument("--to", type=Path, required=True)
    packing.set_defaults(run=lambda arguments: pack(arguments.data, arguments.to))
    arguments = parser.parse_args()
    if "work" in arguments:
        arguments.models = arguments.models or arguments.work
        arguments.models.mkdir(parents=True, exist_ok=True)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
