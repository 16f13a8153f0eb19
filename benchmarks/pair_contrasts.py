"""Which alternatives should a token be contrasted with, so that the word that decided comes first?

    python benchmarks/pair_contrasts.py measure --model MODEL --per-family 4 -o FILE.jsonl
    python benchmarks/pair_contrasts.py report FILE.jsonl

The prompts are those of the suite counterfactual_pairs, in a seeded order. Templates "first" may be used to
choose, templates "held out" only to report. "foil" contrasts with the token that the other prompt of the pair
is completed with: nobody who asks about one prompt knows it, so it is a diagnosis, not a candidate.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from counterfactual_pairs import wilson

from tokenlight import Explainer, NextToken
from tokenlight.bench.completions import find_completed_prompts, predict_next_tokens
from tokenlight.bench.suite import SUITES_FOLDER
from tokenlight.data.units import group_by_unit
from tokenlight.files.tables import Example, read_examples
from tokenlight.metrics._ranking import find_annotated_tokens

METHODS: Mapping[str, Any] = {
    "attnlrp": "attnlrp",
    "attcat, gradient of attnlrp": ("attcat", {"gradient": "attnlrp"}),
}
AGAINST: Mapping[str, Any] = {"20 likeliest": 20, "the likeliest": 1, "all": "all"}
SPLITS = ("first", "held out")
CHUNK = 40
# So many prompts of a family are asked for each one that is wanted.
PATIENCE = 6


def choose_prompts(explainer: Explainer, per_family: int) -> Iterator[tuple[Example, str]]:
    """Yield completed prompts with the token that completes the other prompt of the pair."""
    examples = read_examples(SUITES_FOLDER / "counterfactual_pairs.jsonl")
    random.Random(1).shuffle(examples)
    num_asked: Counter[tuple[str, str]] = Counter()
    num_chosen: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(examples), CHUNK):
        wanted = []
        for example in examples[start : start + CHUNK]:
            kind = (example.extra_columns["templates"], example.extra_columns["family"])
            if num_chosen[kind] < per_family and num_asked[kind] < PATIENCE * per_family:
                wanted.append((kind, example))
        others = [example.extra_columns["counterfactual"] for _, example in wanted]
        foils = predict_next_tokens(explainer, others)
        completed = set(find_completed_prompts(explainer, [e for _, e in wanted]).indices)
        for index, (kind, example) in enumerate(wanted):
            if num_chosen[kind] < per_family:
                num_asked[kind] += 1
                if index in completed:
                    num_chosen[kind] += 1
                    yield example, foils[example.extra_columns["counterfactual"]]


def score_words(explainer: Explainer, example: Example, foil: str) -> dict[str, Any]:
    """Return the word scores of every method under every contrast."""
    columns = example.extra_columns
    record: dict[str, Any] = {"text": example.text, "foil": foil}
    record |= {"family": columns["family"], "templates": columns["templates"]}
    foil_id = list(explainer._runner.head.labels).index(foil)
    spans = [(0, *span) for span in example.spans or ()]
    for name, against in (*AGAINST.items(), ("foil", [foil_id])):
        target = NextToken("predicted", against=against)
        attributions = explainer.explain(
            example.text, list(METHODS.values()), target, progress=False
        )
        for label, attribution in zip(METHODS, attributions, strict=True):
            words = group_by_unit(attribution.row, "word")
            is_marked = find_annotated_tokens(attribution.row, spans)
            record["marked"] = [bool(is_marked[word].any()) for word in words]
            record[f"{label}: {name}"] = [float(attribution.scores[word].sum()) for word in words]
    return record


def is_first(record: Mapping[str, Any], key: str) -> float:
    """Return whether the deciding word has the highest score; of equal scores, the share of it."""
    scores = np.array(record[key])
    return float(np.array(record["marked"])[scores == scores.max()].mean())


def report(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table: the share of prompts with the deciding word first, by contrast."""
    lines = ["| method | rather than | first | held out |", "|---|---|---|---|"]
    for label in METHODS:
        for name in (*AGAINST, "foil"):
            cells = []
            for split in SPLITS:
                chosen = [record for record in records if record["templates"] == split]
                share = float(np.mean([is_first(record, f"{label}: {name}") for record in chosen]))
                low, high = wilson(share, len(chosen))
                cells.append(f"{share:.2f} ({low:.2f}–{high:.2f}, n = {len(chosen)})")
            lines.append(f"| {label} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--model", required=True)
    measured.add_argument("--per-family", type=int, default=4)
    measured.add_argument("-o", "--output", type=Path, required=True)
    reported = commands.add_parser("report")
    reported.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "report":
        lines = arguments.file.read_text("utf-8").splitlines()
        print(report([json.loads(line) for line in lines]))
        return
    explainer = Explainer.from_pretrained(arguments.model, dtype="float32")
    with arguments.output.open("w", encoding="utf-8") as file:
        for example, foil in choose_prompts(explainer, arguments.per_family):
            print(json.dumps(score_words(explainer, example, foil)), file=file, flush=True)


if __name__ == "__main__":
    main()
