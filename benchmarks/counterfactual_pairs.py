"""Which word decided? Asked of prompts whose deciding word is known, because another answer follows another.

    python benchmarks/counterfactual_pairs.py measure --model FOLDER -o docs/results/pairs/NAME.json
    python benchmarks/counterfactual_pairs.py report

A pair of prompts differs in one word, and the model gives both their right, different answers: that word
decided (``benchmarks/pair_data.py``). For each method: how often that word has the highest score of all
words, its mean rank, its share of all absolute scores, and the cost. ``--peer captum inseq shap gim`` asks
other libraries about the same prompts; they must be installed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair_data import Pair, Prompt, build_pairs

from tokenlight import Explainer, NextToken

OUT = Path(__file__).parent.parent / "docs" / "results" / "pairs"
BATCH = 32
Scorer = Callable[[Prompt, int], np.ndarray]
# Label → method and target: "soft" contrasts the token with its likely alternatives, "logit" is its logit.
METHODS: dict[str, tuple[Any, str]] = {
    "attnlrp": ("attnlrp", "soft"),
    "attnlrp, logit": ("attnlrp", "logit"),
    "attcat, gradient of attnlrp": (("attcat", {"gradient": "attnlrp"}), "soft"),
    "attcat, gradient of cp_lrp": (("attcat", {"gradient": "cp"}), "soft"),
    "cat, gradient of attnlrp": (("cat", {"gradient": "attnlrp"}), "soft"),
    "cat, gradient of cp_lrp": (("cat", {"gradient": "cp"}), "soft"),
    "cp_lrp": ("cp_lrp", "soft"),
    "cp_lrp, logit": ("cp_lrp", "logit"),
    "grad_x_input": ("grad_x_input", "soft"),
    "saliency": ("saliency", "soft"),
    "attcat": ("attcat", "soft"),
    "gae": ("gae", "soft"),
    "integrated_gradients": (("integrated_gradients", {"n_steps": 20}), "soft"),
    "integrated_gradients, logit": (("integrated_gradients", {"n_steps": 20}), "logit"),
    "occlusion": ("occlusion", "soft"),
    "occlusion, logit": ("occlusion", "logit"),
    "attention of the last layer": ("raw_att", "logit"),
    "rollout": ("rollout", "logit"),
    "random": ("random", "logit"),
}


@dataclass(frozen=True)
class Reading:
    """What one method says about one prompt.

    Attributes:
        family: The family of the prompt's template.
        text: The prompt.
        is_top: Whether the deciding word has the highest score; of equal scores, the share of it.
        rank: The rank of the deciding word; equal scores share their mean rank.
        share: Its share of the absolute scores of all words.
    """

    family: str
    text: str
    is_top: float
    rank: float
    share: float


def split_words(text: str) -> list[tuple[int, int]]:
    """Return where the words of a text begin and end; punctuation belongs to the word before it."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def sum_by_word(
    text: str, offsets: Sequence[tuple[int, int] | None], scores: np.ndarray
) -> np.ndarray:
    """Return one score per word: the sum over its tokens. Tokens without text belong to none."""
    words = split_words(text)
    sums = np.zeros(len(words))
    for span, score in zip(offsets, scores, strict=True):
        if span is None or span[0] == span[1]:
            continue
        # Of a token that begins with a blank, the last character is inside its word.
        last = span[1] - 1
        for index, (start, end) in enumerate(words):
            if start <= last < end:
                sums[index] += score
    return sums


def read_scores(family: str, prompt: Prompt, word_scores: np.ndarray) -> Reading:
    """Return rank and share of the deciding word."""
    words = split_words(prompt.text)
    (index,) = [i for i, (start, end) in enumerate(words) if start <= prompt.start < end]
    score = word_scores[index]
    num_higher = int((word_scores > score).sum())
    num_equal = int((word_scores == score).sum())
    is_top = 0.0 if num_higher else 1.0 / num_equal
    total = float(np.abs(word_scores).sum())
    share = float(abs(score)) / total if total else 0.0
    return Reading(family, prompt.text, is_top, num_higher + (num_equal + 1) / 2, share)


def predict_tokens(explainer: Explainer, texts: Sequence[str]) -> dict[str, int]:
    """Return the most likely next token of each text."""
    by_length: dict[int, list[tuple[str, list[int]]]] = {}
    for text in dict.fromkeys(texts):
        ids = list(explainer.tokenizer(text).input_ids)
        by_length.setdefault(len(ids), []).append((text, ids))
    predicted: dict[str, int] = {}
    with torch.inference_mode():
        for rows in by_length.values():
            for start in range(0, len(rows), BATCH):
                batch = rows[start : start + BATCH]
                input_ids = torch.tensor([ids for _, ids in batch], device=explainer.model.device)
                logits = explainer.model(input_ids).logits[:, -1]
                for (text, _), token in zip(batch, logits.argmax(-1).tolist(), strict=True):
                    predicted[text] = token
    return predicted


def is_right(prompt: Prompt, token: str) -> bool:
    """Return whether a token is an answer, or the beginning of one, of two letters or more."""
    word = token.strip()
    return any(
        word == answer or (len(word) > 1 and answer.startswith(word)) for answer in prompt.answers
    )


def keep_answered(
    explainer: Explainer, pairs: Sequence[Pair], answers: str | None = None
) -> tuple[list[Pair], dict[str, int]]:
    """Return the pairs that the model answers right with two different tokens, and its tokens.

    ``answers`` is a JSON file of tokens by prompt that is read where it exists, and written.
    """
    predicted: dict[str, int] = {}
    if answers is not None and Path(answers).is_file():
        predicted = json.loads(Path(answers).read_text("utf-8"))
    texts = [prompt.text for pair in pairs for prompt in (pair.first, pair.second)]
    predicted |= predict_tokens(explainer, [text for text in texts if text not in predicted])
    if answers is not None:
        Path(answers).write_text(json.dumps(predicted, indent=1) + "\n", encoding="utf-8")
    decode = explainer.tokenizer.decode
    kept = []
    for pair in pairs:
        first = predicted[pair.first.text]
        second = predicted[pair.second.text]
        both_right = is_right(pair.first, decode([first])) and is_right(
            pair.second, decode([second])
        )
        if both_right and first != second:
            kept.append(pair)
    return kept, predicted


def score_words(explainer: Explainer, prompt: Prompt, token: int, label: str) -> np.ndarray:
    """Return the word scores of one of our own methods."""
    method, question = METHODS[label]
    target = NextToken(token) if question == "soft" else NextToken(token, against=None)
    attribution = explainer.explain(prompt.text, method, target, progress=False)
    return sum_by_word(prompt.text, attribution.row.spans, attribution.scores)


def measure(
    prompts: Sequence[tuple[str, Prompt, int]], score: Scorer
) -> tuple[list[Reading], float]:
    """Return a reading per prompt, and the processor seconds per prompt."""
    score(*prompts[0][1:])  # the first call also verifies or compiles
    readings = []
    start = time.process_time()
    for family, prompt, token in prompts:
        readings.append(read_scores(family, prompt, score(prompt, token)))
    return readings, (time.process_time() - start) / len(prompts)


def choose_prompts(
    pairs: Sequence[Pair], predicted: dict[str, int], per_family: int | None
) -> list[tuple[str, Prompt, int]]:
    """Return the prompts of the pairs, each once, at most so many of a family, in a seeded order."""
    chosen: dict[str, tuple[str, Prompt, int]] = {}
    counts: dict[str, int] = {}
    shuffled = random.Random(0).sample(list(pairs), len(pairs))
    for pair in shuffled:
        for prompt in (pair.first, pair.second):
            is_full = per_family is not None and counts.get(pair.family, 0) >= per_family
            if prompt.text in chosen or is_full:
                continue
            chosen[prompt.text] = (pair.family, prompt, predicted[prompt.text])
            counts[pair.family] = counts.get(pair.family, 0) + 1
    return list(chosen.values())


def bare_cost(explainer: Explainer, prompts: Sequence[tuple[str, Prompt, int]]) -> float:
    """Return the processor seconds of a forward and a backward pass to the embeddings, per prompt."""
    embed = explainer.model.get_input_embeddings()
    start = time.process_time()
    for _, prompt, token in prompts:
        ids = explainer.tokenizer(prompt.text, return_tensors="pt").input_ids
        embeddings = embed(ids.to(explainer.model.device)).detach().requires_grad_()
        logits = explainer.model(inputs_embeds=embeddings).logits
        torch.autograd.grad(logits[0, -1, token], embeddings)
    return (time.process_time() - start) / len(prompts)


def summarize(readings: Sequence[Reading]) -> dict[str, Any]:
    top = float(np.mean([reading.is_top for reading in readings]))
    low, high = wilson(top, len(readings))
    families: dict[str, list[float]] = {}
    for reading in readings:
        families.setdefault(reading.family, []).append(reading.is_top)
    return {
        "top": top,
        "low": low,
        "high": high,
        "rank": float(np.mean([reading.rank for reading in readings])),
        "share": float(np.mean([reading.share for reading in readings])),
        "prompts": len(readings),
        "families": {name: float(np.mean(values)) for name, values in sorted(families.items())},
    }


def wilson(share: float, cases: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = 1.96
    middle = (share + z * z / (2 * cases)) / (1 + z * z / cases)
    half = z * sqrt(share * (1 - share) / cases + z * z / (4 * cases**2)) / (1 + z * z / cases)
    return max(0.0, middle - half), min(1.0, middle + half)


def run_measure(arguments: argparse.Namespace) -> None:
    explainer = Explainer.from_pretrained(arguments.model, dtype="float32")
    explainer.model.requires_grad_(requires_grad=False)
    pairs = build_pairs()
    if arguments.sample:
        pairs = random.Random(0).sample(pairs, arguments.sample)
    kept, predicted = keep_answered(explainer, pairs, arguments.answers)
    prompts = choose_prompts(kept, predicted, arguments.per_family)
    print(f"{len(pairs)} pairs, {len(kept)} answered right; {len(prompts)} prompts are measured")
    path = Path(arguments.output)
    results: dict[str, Any] = {"rows": {}}
    if path.is_file():
        results = json.loads(path.read_text("utf-8"))
    results |= {
        "model": arguments.name or Path(arguments.model).name,
        "written": len(build_pairs()),
        "pairs": len(pairs),
        "answered": len(kept),
        "prompts": len(prompts),
        "words": float(np.mean([len(split_words(prompt.text)) for _, prompt, _ in prompts])),
    }
    scorers: dict[str, Scorer] = {}
    for label in arguments.method if arguments.method is not None else METHODS:
        scorers[label] = lambda prompt, token, label=label: score_words(
            explainer, prompt, token, label
        )
    for name in arguments.peer:
        from pair_peers import build_peer

        scorers |= build_peer(name, explainer)
    for label, score in scorers.items():
        measured = prompts[: arguments.limit] if arguments.limit else prompts
        bare = bare_cost(explainer, measured)
        readings, seconds = measure(measured, score)
        row = summarize(readings) | {"seconds": seconds, "cost": seconds / bare}
        results["rows"][label] = row
        print(
            f"{label:32} top {row['top']:.3f}  rank {row['rank']:.2f}  cost {row['cost']:.1f}",
            flush=True,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if arguments.readings:
            lines = [json.dumps({"method": label} | asdict(reading)) for reading in readings]
            with Path(arguments.readings).open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--model", required=True)
    measured.add_argument("--name", help="what the page calls the model")
    measured.add_argument("--method", nargs="*", choices=list(METHODS), help="by default all")
    measured.add_argument("--peer", nargs="*", default=[])
    measured.add_argument("--sample", type=int, help="only so many pairs, drawn with a seed")
    measured.add_argument("--answers", help="keep the model's answers in this JSON file")
    measured.add_argument("--per-family", type=int, help="at most so many prompts of a family")
    measured.add_argument("--limit", type=int, help="only the first so many prompts")
    measured.add_argument("--readings", help="also append every reading to this JSON Lines file")
    measured.add_argument("-o", "--output", required=True)
    commands.add_parser("report")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        run_measure(arguments)
    else:
        write_report()


def write_report() -> None:
    from pair_report import write_page

    write_page(OUT)


if __name__ == "__main__":
    main()
