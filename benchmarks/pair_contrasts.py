"""Which method, and which alternatives of a token, put a word that decided first?

    python benchmarks/pair_contrasts.py measure --model MODEL [--per-family 4] -o FILE.jsonl
    python benchmarks/pair_contrasts.py report FILE.jsonl

The prompts are those of the suite counterfactual_pairs, in a seeded order. A line is written for each as soon
as its batch is measured; the same command goes on where it was stopped. Templates "first" may be used to
choose, templates "held out" only to report. "foil" contrasts with the token that the other prompt of the pair
is completed with: nobody who asks about one prompt knows it, so it is a diagnosis, not a candidate.

``--diagnose`` adds other methods (scores averaged over subsets of the words among them), and three readings
that run the model once per changed prompt: *without* deletes a word; *swapped* puts words in its place that
the model finds likely there, by what precedes it, and takes the mean, *swapped most* the largest. Each is the
fall of the answer's log-odds.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair_records import read_records, wilson

from tokenlight import Explainer, NextToken
from tokenlight.bench.completions import find_completed_prompts, predict_next_tokens
from tokenlight.bench.suite import SUITES_FOLDER
from tokenlight.data.annotations import find_annotated_tokens
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import group_by_unit
from tokenlight.files.tables import Example, read_examples

METHODS: Mapping[str, Any] = {
    "attnlrp": "attnlrp",
    "attcat, gradient of attnlrp": ("attcat", {"gradient": "attnlrp"}),
}
OTHER_METHODS: Mapping[str, Any] = {
    "cat, gradient of attnlrp": ("cat", {"gradient": "attnlrp"}),
    "cp_lrp": "cp_lrp",
    "subset_relevance": "subset_relevance",
    "subset_relevance, 0.8 kept": (
        "subset_relevance",
        {"units": "word", "keep_probability": 0.8, "gradient": "attnlrp", "readout": "attcat"},
    ),
}
AGAINST: Mapping[str, Any] = {
    "20 likeliest": 20,
    "the likeliest": 1,
    "all": "all",
    "nothing (its logit)": None,
}
MODEL_READINGS = (
    "without",
    "swapped",
    "swapped most",
    "without: 20 likeliest",
    "without: foil",
)
SPLITS = ("first", "held out")
CHUNK = 40
BATCH = 16
NUM_SWAPS = 6
NUM_ALTERNATIVES = 20
# So many prompts of a family are asked for each one that is wanted.
PATIENCE = 6


def choose_prompts(
    explainer: Explainer, per_family: int | None
) -> Iterator[tuple[Example, list[str]]]:
    """Yield completed prompts with the tokens that complete the other prompts of their pairs."""
    examples = read_examples(SUITES_FOLDER / "counterfactual_pairs.jsonl")
    random.Random(1).shuffle(examples)
    limit = per_family or len(examples)
    num_asked: Counter[tuple[str, str]] = Counter()
    num_chosen: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(examples), CHUNK):
        wanted = []
        for example in examples[start : start + CHUNK]:
            kind = (example.extra_columns["templates"], example.extra_columns["family"])
            if num_chosen[kind] < limit and num_asked[kind] < PATIENCE * limit:
                wanted.append((kind, example))
        others = [text for _, e in wanted for text in e.extra_columns["counterfactuals"]]
        foils = predict_next_tokens(explainer, others)
        completed = set(find_completed_prompts(explainer, [e for _, e in wanted]).indices)
        for index, (kind, example) in enumerate(wanted):
            if num_chosen[kind] < limit:
                num_asked[kind] += 1
                if index in completed:
                    num_chosen[kind] += 1
                    yield example, [foils[t] for t in example.extra_columns["counterfactuals"]]


def score_words(
    explainer: Explainer,
    examples: Sequence[Example],
    foils: Sequence[Sequence[str]],
    *,
    diagnose: bool = False,
) -> list[dict[str, Any]]:
    """Return a record per prompt, with the word scores of every method under every contrast."""
    records = [
        describe_prompt(example, own_foils)
        for example, own_foils in zip(examples, foils, strict=True)
    ]
    labels = list(explainer.runner.head.labels)
    texts = [example.text for example in examples]
    contrasts: dict[str, list[Any]] = {
        name: [against] * len(texts) for name, against in AGAINST.items()
    }
    contrasts["foil"] = [[labels.index(foil) for foil in own_foils] for own_foils in foils]
    for name, against in contrasts.items():
        targets = [NextToken("predicted", against=tokens) for tokens in against]
        with_others = diagnose and name == "20 likeliest"
        methods = {**METHODS, **OTHER_METHODS} if with_others else METHODS
        attributions = explainer.explain(texts, list(methods.values()), targets, progress=False)
        # Attributions come text by text, each with all methods.
        for index, record in enumerate(records):
            rows = attributions[index * len(methods) : (index + 1) * len(methods)]
            for label, attribution in zip(methods, rows, strict=True):
                words = group_by_unit(attribution.row, "word")
                record[f"{label}: {name}"] = [
                    float(attribution.scores[word].sum()) for word in words
                ]
            mark_words(record, rows[0].row, examples[index])
    if diagnose:
        for record, attribution in zip(records, attributions[:: len(methods)], strict=True):
            words = group_by_unit(attribution.row, "word")
            ids = list(attribution.row.ids)
            record.update(ask_model(explainer, ids, words))
            foil_ids = [labels.index(foil) for foil in record["foils"]]
            record.update(ask_model_contrasts(explainer, ids, words, foil_ids))
    return records


def describe_prompt(example: Example, foils: Sequence[str]) -> dict[str, Any]:
    """Return the record of a prompt before anything is measured."""
    columns = example.extra_columns
    return {
        "text": example.text,
        "foils": list(foils),
        "family": columns["family"],
        "templates": columns["templates"],
    }


def mark_words(record: dict[str, Any], row: TokenRow, example: Example) -> None:
    """Note which words decide, and which of them is the word that the first pair differs in."""
    words = group_by_unit(row, "word")
    spans = [(0, *span) for span in example.spans or ()]
    is_marked = find_annotated_tokens(row, spans)
    record["marked"] = [bool(is_marked[word].any()) for word in words]
    # The giver, where two words decide.
    is_marked = find_annotated_tokens(row, spans[:1])
    record["marked by the first pair"] = [bool(is_marked[word].any()) for word in words]


@torch.inference_mode()
def ask_model(
    explainer: Explainer, ids: list[int], words: Sequence[Sequence[int]]
) -> dict[str, list[float]]:
    """Return by how much the answer's log-odds fall as each word is deleted, or swapped for others."""
    model = explainer.model
    logits = model(torch.tensor([ids], device=model.device)).logits[0].double()
    answer = int(logits[-1].argmax())
    labels = explainer.runner.head.labels
    special = set(explainer.tokenizer.all_special_ids)
    without = []
    swapped = []
    most = []
    for word in words:
        first = word[0]
        last = word[-1]
        variants = [ids[:first] + ids[last + 1 :]] if len(word) < len(ids) else []
        likely = logits[first - 1].argsort(descending=True)[:200].tolist() if first else []
        swaps = []
        for token in likely:
            text = labels[token]
            is_word = text[:1] == " " and text[1:].isalpha() and token not in special
            if is_word and token != ids[first]:
                swaps.append([*ids[:first], token, *ids[last + 1 :]])
            if len(swaps) == NUM_SWAPS:
                break
        falls = [
            log_odds(logits[-1], answer) - log_odds(values, answer)
            for values in read_last_logits(model, variants + swaps)
        ]
        num_deleted = len(variants)
        without.append(falls[0] if variants else 0.0)
        swapped.append(float(np.mean(falls[num_deleted:])) if swaps else without[-1])
        most.append(float(np.max(falls[num_deleted:])) if swaps else without[-1])
    return {"without": without, "swapped": swapped, "swapped most": most}


@torch.inference_mode()
def ask_model_contrasts(
    explainer: Explainer, ids: list[int], words: Sequence[Sequence[int]], foil_ids: Sequence[int]
) -> dict[str, Any]:
    """Return by how much two contrasts fall as each word is deleted, and the share of the foils in one.

    The contrasts are the default, with the 20 likeliest other tokens, and that with the tokens that
    complete the other prompts of the pairs (the foils).
    """
    variants = [ids[: word[0]] + ids[word[-1] + 1 :] for word in words]
    whole, *without = read_last_logits(explainer.model, [ids, *variants])
    answer = int(whole.argmax())
    probabilities = whole.softmax(-1)
    probabilities[answer] = 0
    likeliest = probabilities.topk(NUM_ALTERNATIVES)
    weights = likeliest.values / likeliest.values.sum()
    is_foil = torch.isin(likeliest.indices, torch.tensor(foil_ids, device=whole.device))

    def contrast_likeliest(logits: torch.Tensor) -> float:
        return float(logits[answer] - weights @ logits[likeliest.indices])

    def contrast_foils(logits: torch.Tensor) -> float:
        return float(logits[answer] - logits[list(foil_ids)].mean())

    return {
        "foil share": float(weights[is_foil].sum()),
        "without: 20 likeliest": [
            contrast_likeliest(whole) - contrast_likeliest(logits) for logits in without
        ],
        "without: foil": [contrast_foils(whole) - contrast_foils(logits) for logits in without],
    }


def read_last_logits(model: Any, rows: Sequence[list[int]]) -> list[torch.Tensor]:
    """Return the logits after the last token of each row, padded on the right."""
    if not rows:
        return []
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    logits = model(ids.to(model.device), attention_mask=mask.to(model.device)).logits.double()
    return [logits[i, len(row) - 1] for i, row in enumerate(rows)]


def log_odds(logits: torch.Tensor, token: int) -> float:
    """Return the log-odds of a token against all others."""
    others = logits.clone()
    others[token] = -torch.inf
    return float(logits[token] - others.logsumexp(-1))


def is_first(record: Mapping[str, Any], key: str, marked: str = "marked") -> float:
    """Return whether a deciding word has the highest score; of equal scores, the share of it."""
    scores = np.array(record[key])
    return float(np.array(record[marked])[scores == scores.max()].mean())


def rank_first(record: Mapping[str, Any], key: str) -> float:
    """Return the best rank of a deciding word; 1 is the highest score."""
    scores = np.array(record[key])
    best = scores[np.array(record["marked"])].max()
    return float((scores > best).sum() + ((scores == best).sum() + 1) / 2)


def measure_share(record: Mapping[str, Any], key: str) -> float:
    """Return the share of the deciding words in all absolute scores."""
    sizes = np.abs(np.array(record[key]))
    total = float(sizes.sum())
    return float(sizes[np.array(record["marked"])].sum()) / total if total else 0.0


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table: the share of prompts with a deciding word first, by contrast."""
    lines = ["| method | rather than | first | held out | rank | the first pair's word |"]
    lines.append("|---|---|---|---|---|---|")
    keys = [(label, name) for label in METHODS for name in (*AGAINST, "foil")]
    keys += [(label, "20 likeliest") for label in OTHER_METHODS]
    for label, name in (*keys, *((reading, "") for reading in MODEL_READINGS)):
        key = f"{label}: {name}" if name else label
        if any(key not in record for record in records):
            continue
        cells = []
        for split in SPLITS:
            chosen = [record for record in records if record["templates"] == split]
            share = float(np.mean([is_first(record, key) for record in chosen]))
            low, high = wilson(share, len(chosen))
            cells.append(f"{share:.3f} ({low:.2f}–{high:.2f}, n = {len(chosen)})")
        held_out = [record for record in records if record["templates"] == SPLITS[1]]
        rank = np.mean([rank_first(record, key) for record in held_out])
        strict = np.mean([is_first(r, key, "marked by the first pair") for r in held_out])
        lines.append(f"| {label} | {name} | {' | '.join(cells)} | {rank:.2f} | {strict:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--model", required=True)
    measured.add_argument("--per-family", type=int, help="at most so many prompts of a family")
    measured.add_argument("--limit", type=int, help="at most so many prompts")
    measured.add_argument("--diagnose", action="store_true", help="also delete and swap words")
    measured.add_argument("-o", "--output", type=Path, required=True)
    reported = commands.add_parser("report")
    reported.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "report":
        print(report(read_records(arguments.file)))
        return
    explainer = Explainer.from_pretrained(arguments.model, dtype="float32")
    measured_texts = {record["text"] for record in read_records(arguments.output)}
    prompts = islice(choose_prompts(explainer, arguments.per_family), arguments.limit)
    remaining = (item for item in prompts if item[0].text not in measured_texts)
    with arguments.output.open("a", encoding="utf-8") as file:
        while batch := list(islice(remaining, BATCH)):
            examples, foils = zip(*batch, strict=True)
            for record in score_words(explainer, examples, foils, diagnose=arguments.diagnose):
                print(json.dumps(record), file=file, flush=True)


if __name__ == "__main__":
    main()
