"""How reliable is a trust grade? Record what partial texts do under scores of known quality.

    python benchmarks/trust_calibration.py pack --data DATA --to FOLDER   # 1 MB: all that measuring reads
    python benchmarks/trust_calibration.py measure --data DATA --work WORK [--device cuda] [--workers 8]
    python benchmarks/trust_calibration.py measure --work WORK --further --tasks text topic   # further texts
    python benchmarks/trust_report.py --work WORK   # counts the grades

DATA is the folder of public data sets (default: TOKENLIGHT_DATA). WORK/parts keeps finished chunks, so that
the same command goes on where it was stopped. What is kept are probabilities of partial texts, not grades:
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
from pathlib import Path
from typing import Any

import numpy as np
from machine import facts
from trust_texts import (
    FURTHER_TASKS,
    TASKS,
    TRAINED_TASKS,
    load_explainer,
    pack,
    read_further_texts,
    read_texts,
    train_model,
)

from tokenlight import Explainer
from tokenlight.accel.precision import compute_rounding_eps
from tokenlight.data.attribution import Attribution
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.partial_text_statistics import RandomPoint
from tokenlight.evaluation.random_partial_texts import RandomPartialTexts, choose_explanation_words
from tokenlight.evaluation.removal import RemovalRunner, list_removals
from tokenlight.evaluation.removal_evidence import (
    RemovedWords,
    compute_log_odds,
    list_presence,
)
from tokenlight.evaluation.removal_test import (
    MAX_TIED_SHARE,
    RANDOM_STREAM,
    compute_cancelled_share,
    compute_special_share,
    compute_tie_tolerance,
    count_tied,
)

METHOD = "attnlrp"
# Random orders that are measured. A grade reads the first ones; near-best and picked scores are made from
# the others, and blocks of them stand for other seeds.
NUM_ORDERS = 10
NUM_FIT_ORDERS = 5  # the last ones
FIT_PENALTY = 2.0  # of the ridge regression that near-best scores are fitted by
TIED_KINDS = ("constant", "one word", "near-constant")  # no model has to run for these
MAX_WORDS = 400
# Texts of each task per round: longer ones cost more.
CHUNK_SIZES = {"text": 12, "next": 8, "topic": 4, "question": 2, "pair": 6, "token": 8}


def measure_texts(
    model: str, device: str, inputs: Sequence[tuple[Any, Any]]
) -> list[dict[str, Any]]:
    """Return what every partial text of each text did; texts that cannot be explained are left out."""
    explainer = load_explainer(model, device)
    records = []
    for text, target in inputs:
        try:
            attribution = explainer.explain(text, METHOD, target, long="truncate", progress=False)
            record = measure_text(explainer, attribution)
        except TokenlightError as error:
            print(f"left out: {str(error)[:100]}", flush=True)
            continue
        if record:
            records.append(record)
    return records


def measure_text(explainer: Explainer, attribution: Attribution) -> dict[str, Any]:
    """Measure the random partial texts of one text, and the own partial texts of every kind of scores."""
    row = attribution.row
    removal_runner = RemovalRunner(explainer, attribution, {})
    num_words = len(removal_runner.words)
    if not 2 <= num_words <= MAX_WORDS:
        return {}
    generator = row.make_generator(0, RANDOM_STREAM)
    removals = list_removals(explainer, row, removal_runner.words, generator)
    partial_texts = RandomPartialTexts(removal_runner, removals, generator, max_orders=NUM_ORDERS)
    is_token = explainer.runner.head.is_language_model
    record: dict[str, Any] = {
        "words": num_words,
        "before": partial_texts.whole_probability,
        "removals": [removal.name for removal in removals],
        "is_token": is_token,
        "is_floor": partial_texts.whole_probability < (0.01 if is_token else 0.05),
    }
    if record["is_floor"]:
        return record
    partial_texts.measure(attribution.scores, NUM_ORDERS)
    scores_by_kind = {METHOD: attribution.scores}
    scores_by_kind |= make_scores(attribution, partial_texts, row.make_generator(0, 1))
    untied = [scores for kind, scores in scores_by_kind.items() if kind not in TIED_KINDS]
    partial_texts.prefetch(untied, NUM_ORDERS)
    record |= {
        "empty": partial_texts._empty_probability,
        "choices": [
            [[chosen.tolist() for chosen in o] for o in r] for r in partial_texts.random_choices
        ],
        "random": [
            _round(compute_log_odds(np.stack(orders)))
            for orders in partial_texts._random_probabilities
        ],
        "scores": {
            kind: record_scores(partial_texts, attribution, scores)
            for kind, scores in scores_by_kind.items()
        },
    }
    return record


def record_scores(
    partial_texts: RandomPartialTexts, attribution: Attribution, scores: np.ndarray
) -> dict[str, Any]:
    """Return the scores of words, and what their own partial texts did."""
    removable = scores[partial_texts.removal_runner.removable_positions]
    runner = partial_texts.removal_runner.runner
    eps = compute_rounding_eps(runner.device, runner.dtype)
    tested = replace(attribution, scores=scores, layers=None)
    tied = count_tied(removable, compute_tie_tolerance(tested, eps)) / len(removable)
    word_scores = partial_texts.sum_words(scores)
    order = partial_texts.rank_words(word_scores)
    own: list[Any] = []
    # Ties alone make these scores "cannot tell" or "untested": no model has to run.
    is_tied = tied > MAX_TIED_SHARE
    for removal in [] if is_tied else partial_texts.removals:
        texts = partial_texts.list_explanation_texts(
            removal, choose_explanation_words(order, partial_texts.num_top_words)
        )
        odds = compute_log_odds(partial_texts.removal_runner.run(texts))
        own.append(_round(odds.reshape(-1, len(RemovedWords))))
    return {
        "words": [float(f"{score:.5g}") for score in word_scores],
        "order": order.tolist(),
        "own": own,
        "tied": tied,
        "special": round(compute_special_share(tested), 4),
        "cancelled": round(compute_cancelled_share(scores, partial_texts.words), 4),
    }


def _round(values: np.ndarray) -> list[Any]:
    return list(np.round(values, 3).tolist())


def make_scores(
    attribution: Attribution, partial_texts: RandomPartialTexts, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return scores of known worth, one per token."""
    num_words = len(partial_texts.words)
    method = partial_texts.sum_words(attribution.scores)
    best = fit_scores(partial_texts, method)
    one_word = np.zeros(num_words)
    one_word[generator.integers(num_words)] = 1.0
    by_word = {
        "near-best": best,
        "near-best, all raised": best + np.abs(best).max(),
        "near-best, all lowered": best - np.abs(best).max(),
        "attnlrp, all raised": method + np.abs(method).max(),
        "attnlrp, all lowered": method - np.abs(method).max(),
        "attnlrp, rest inverted": invert_rest(method, partial_texts.num_top_words),
        "attnlrp, rest shuffled": shuffle_rest(method, partial_texts.num_top_words, generator),
        "inverted": -best,
        "random 0": generator.normal(size=num_words),
        "random 1": generator.normal(size=num_words),
        "picked": pick_random_scores(partial_texts, generator),
        "position": -np.arange(num_words, dtype=float),
        "last first": np.arange(num_words, dtype=float),
        "one word": one_word,
        "tied": generator.integers(2, size=num_words).astype(float),
        "near-constant": 1.0 + 1e-7 * generator.normal(size=num_words),
    }
    made = {"constant": np.ones(len(attribution.row))}
    for name, word_scores in by_word.items():
        scores = np.zeros(len(attribution.row))
        for positions, score in zip(partial_texts.words, word_scores, strict=True):
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


def shuffle_rest(
    word_scores: np.ndarray, num_top_words: int, generator: np.random.Generator
) -> np.ndarray:
    """Keep the top words, and give the others each other's scores at random."""
    rest = np.argsort(-word_scores, kind="stable")[num_top_words:]
    shuffled = word_scores.copy()
    shuffled[rest] = word_scores[generator.permutation(rest)]
    return shuffled


def pick_random_scores(
    partial_texts: RandomPartialTexts, generator: np.random.Generator
) -> np.ndarray:
    """Return random scores whose top words are, of several random choices, those of the largest fall."""
    deleted = np.stack(partial_texts._random_probabilities[0])[-NUM_FIT_ORDERS:, RandomPoint.FEW]
    choices = partial_texts.random_choices[0][-NUM_FIT_ORDERS:]
    few = choices[int(np.argmin(deleted))][RandomPoint.FEW]
    scores = np.sort(generator.normal(size=len(partial_texts.words)))
    rest = np.setdiff1d(np.arange(len(scores)), few)
    order = np.concatenate([generator.permutation(rest), few])
    picked = np.empty(len(scores))
    picked[order] = scores
    return picked


def fit_scores(partial_texts: RandomPartialTexts, prior: np.ndarray) -> np.ndarray:
    """Correct a method's scores by a ridge regression on random partial texts that the test does not see."""
    presence, odds = [], []
    for orders, random in zip(
        partial_texts.random_choices, partial_texts._random_probabilities, strict=True
    ):
        left = list_presence(orders[-NUM_FIT_ORDERS:], len(prior)).reshape(-1, len(prior))
        log_odds = compute_log_odds(np.stack(random[-NUM_FIT_ORDERS:])).ravel()
        # Each removal has an intercept of its own.
        presence.append(left - left.mean(axis=0))
        odds.append(log_odds - log_odds.mean())
    design = np.concatenate(presence)
    changes = np.concatenate(odds)
    claims = design @ prior
    scale = max(0.0, float(claims @ changes) / max(float(claims @ claims), 1e-12))
    gram = design.T @ design + FIT_PENALTY * np.eye(len(prior))
    correction = np.linalg.solve(gram, design.T @ (changes - scale * claims))
    return np.asarray(scale * prior + correction)


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
    for task in TRAINED_TASKS:
        if task in arguments.tasks:
            train_model(task, arguments.data, Path(models[task]), arguments.device)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        jobs = {}
        for path, task, chunk in list_chunks(arguments, parts):
            jobs[pool.submit(measure_texts, models[task], arguments.device, chunk)] = path
        collect_jobs(jobs, start, arguments.seconds)
    print(f"{len(list(parts.iterdir()))} chunks, {time.monotonic() - start:.0f} s", flush=True)


def list_chunks(
    arguments: argparse.Namespace, parts: Path
) -> list[tuple[Path, str, list[tuple[Any, Any]]]]:
    """List what no earlier run measured; tasks in turn, so that a limit of time leaves each its share."""
    chunks = []
    for task in arguments.tasks:
        count = arguments.topic_texts if task == "topic" else arguments.texts
        read = read_further_texts if arguments.further else read_texts
        texts = read(task, arguments.data, count)
        size = CHUNK_SIZES[task]
        for i in range(0, len(texts), size):
            path = parts / f"{task}-{i:05}.json.gz"
            if not path.is_file():
                chunks.append((i / len(texts), path, task, texts[i : i + size]))
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
    measuring.add_argument(
        "--topic-texts", type=int, default=1200, help="of the long texts, at most"
    )
    measuring.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    measuring.add_argument(
        "--further",
        action="store_true",
        help=f"texts that the first calibration did not read ({', '.join(FURTHER_TASKS)})",
    )
    measuring.add_argument(
        "--seconds", type=float, default=1e9, help="after which no chunk is begun"
    )
    measuring.set_defaults(run=measure)
    packing.add_argument("--to", type=Path, required=True)
    packing.add_argument("--texts", type=int, default=1200, help="of each task, at most")
    packing.set_defaults(run=lambda arguments: pack(arguments.data, arguments.to, arguments.texts))
    arguments = parser.parse_args()
    if "work" in arguments:
        if arguments.further and not FURTHER_TASKS.keys() >= set(arguments.tasks):
            parser.error(
                f"--further has texts of {' and '.join(FURTHER_TASKS)} alone: give --tasks"
            )
        arguments.models = arguments.models or arguments.work
        arguments.models.mkdir(parents=True, exist_ok=True)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
