"""Is another method better on pairs that no earlier result was seen on? The protocol is ADR 0020's appendix.

    python benchmarks/pair_fresh.py measure --model MODEL -o FILE.jsonl
    python benchmarks/pair_fresh.py report --records NAME=FILE.jsonl NAME=FILE.jsonl [-o FILE.json]

Prompts and pairs are made as those of the suite counterfactual_pairs, from templates that are not in it and,
but for the names of who gives to whom, from words that are not in it. A line is written for every prompt that
the model completes as expected; the same command goes on where it was stopped.

Prompts of one template are alike, so intervals resample templates, not prompts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pair_contrasts import describe_prompt, is_first, mark_words, measure_share
from pair_data import PLURAL, SINGULAR, Templates, dump_rows, gather_rows
from pair_records import read_records

from tokenlight import Explainer
from tokenlight.bench.completions import find_completed_prompts
from tokenlight.data.units import group_by_unit
from tokenlight.files.tables import Example, read_examples

DEFAULT = "attnlrp"
CANDIDATE = "attcat, gradient of attnlrp"
METHODS: Mapping[str, Any] = {
    DEFAULT: "attnlrp",
    CANDIDATE: ("attcat", {"gradient": "attnlrp"}),
    "cat, gradient of attnlrp": ("cat", {"gradient": "attnlrp"}),
    "cp_lrp": "cp_lrp",
}
BATCH = 8
NUM_RESAMPLES = 10_000
MAX_LOSS = 0.05  # by how much the candidate may be worse on one model

WOMEN_AND_MEN = {
    "niece": "she", "nephew": "he", "waitress": "she", "waiter": "he", "actress": "she", "actor": "he",
    "bride": "she", "groom": "he", "grandma": "she", "grandpa": "he", "witch": "she", "wizard": "he",
    "mom": "she", "dad": "he", "stepmother": "she", "stepfather": "he",
}  # fmt: skip
FURTHER_NAMES = {
    "Sophie": "she", "Daniel": "he", "Rachel": "she", "Thomas": "he", "Laura": "she", "George": "he",
    "Emily": "she", "Henry": "he", "Julia": "she", "Robert": "he", "Jane": "she", "Mike": "he",
}  # fmt: skip
ONE_AND_SEVERAL = {
    "cat": SINGULAR, "cats": PLURAL, "tree": SINGULAR, "trees": PLURAL, "house": SINGULAR,
    "houses": PLURAL, "boy": SINGULAR, "boys": PLURAL, "horse": SINGULAR, "horses": PLURAL,
    "cookie": SINGULAR, "cookies": PLURAL, "rabbit": SINGULAR, "rabbits": PLURAL, "woman": SINGULAR,
    "women": PLURAL,
}  # fmt: skip
FURTHER_COUNTRIES = {
    "Argentina": "Buenos", "Belgium": "Brussels", "Ukraine": "Kyiv Kiev", "Chile": "Santiago",
    "Scotland": "Edinburgh", "Lebanon": "Beirut", "Vietnam": "Hanoi", "Colombia": "Bogot Bogotá",
    "Venezuela": "Caracas", "Ghana": "Accra", "Romania": "Bucharest", "Taiwan": "Taipei",
}  # fmt: skip
FURTHER_OPPOSITES = {
    "tall": "short", "new": "old", "heavy": "light", "deep": "shallow", "brave": "cowardly",
    "empty": "full", "sweet": "sour bitter", "warm": "cold cool", "right": "wrong left", "long": "short",
    "day": "night", "love": "hate",
}  # fmt: skip
MOODS = {
    "cold": "shiver", "scared": "cry run hide scream", "excited": "jump run dance", "sleepy": "sleep yawn",
    "sick": "cough cry vomit", "bored": "play",
}  # fmt: skip
ANIMALS = ("cat", "dog", "bird", "frog", "horse", "cow", "pig", "duck")
TOYS = ("train", "doll", "drum", "robot", "puzzle", "boat", "truck", "plane")
ROOMS = ("garage", "attic", "closet", "bathroom", "barn", "forest", "park", "castle")
DRINKS = ("milk", "water", "juice", "tea", "coffee", "lemonade")


def replace_answers(words: Mapping[str, str], she: str, he: str) -> dict[str, str]:
    """Return the words with other pronouns as answers."""
    return {word: she if answer == "she" else he for word, answer in words.items()}


FRESH = Templates(
    lists=(
        ("gender", "The {} was hungry, so", WOMEN_AND_MEN),
        ("gender", "The {} could not sleep because", WOMEN_AND_MEN),
        ("gender", "The {} smiled when", WOMEN_AND_MEN),
        ("gender", "The {} picked up", replace_answers(WOMEN_AND_MEN, "her", "his")),
        ("gender", "The {} was proud of", replace_answers(WOMEN_AND_MEN, "her", "his")),
        ("gender", "{} was late, so", FURTHER_NAMES),
        ("gender", "{} was very happy when", FURTHER_NAMES),
        ("gender", "{} could not find", replace_answers(FURTHER_NAMES, "her", "his")),
        ("gender", "When I asked {} a question,", FURTHER_NAMES),
        ("number", "The {} on the hill", ONE_AND_SEVERAL),
        ("number", "The {} in front of the school", ONE_AND_SEVERAL),
        ("number", "Mom said that the {} in the yard", ONE_AND_SEVERAL),
        ("number", "Now the little {} next to the road", ONE_AND_SEVERAL),
        ("capitals", "The largest city and capital of {} is", FURTHER_COUNTRIES),
        ("capitals", "We flew to {} and landed in its capital,", FURTHER_COUNTRIES),
        ("opposites", "Black is the opposite of white, and {} is the opposite of", FURTHER_OPPOSITES),
        ("opposites", "fast, slow; rich, poor; {},", FURTHER_OPPOSITES),
        ("feelings", "The little girl was {}. She started to", MOODS),
    ),
    facts=(
        ("There is a {} in the yard. Sam looks at the yard and sees the", ANIMALS),
        ("Max has a pet {}. Every day Max plays with his pet", ANIMALS),
        ("Grandpa gave Tim a toy {}. Tim was happy and played with his toy", TOYS),
        ("The children went to the {}. They had fun in the", ROOMS),
        ("I would like a glass of {}, please. Here is your glass of", DRINKS),
        ("The old man only drinks {}. So I bought him some", DRINKS),
    ),
    number=(),
    gender=(),
    gender_names=(),
    giving=(
        "{first} and {second} were playing in the garden when {giver} threw the ball to",
        "One day, {first} and {second} met in the kitchen, and {giver} showed a picture to",
    ),
)  # fmt: skip


def build_examples() -> list[tuple[str, Example]]:
    """Return the prompts of all fresh templates, each with the name of its template."""
    names_by_text: dict[str, str] = {}
    empty = Templates(lists=(), facts=(), number=(), gender=(), gender_names=(), giving=())
    sources = [("lists", template) for template in FRESH.lists]
    sources += [("facts", template) for template in FRESH.facts]
    sources += [("giving", template) for template in FRESH.giving]
    rows: list[dict[str, Any]] = []
    for field, template in sources:
        single = Templates(**{**vars(empty), field: (template,)})
        name = template if isinstance(template, str) else " ".join(map(str, template[:-1]))
        for row in gather_rows([("fresh", single)]):
            if row["text"] not in names_by_text:
                names_by_text[row["text"]] = name
                rows.append(row)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fresh.jsonl"
        path.write_text(dump_rows(rows), encoding="utf-8")
        examples = read_examples(path)
    return [(names_by_text[str(example.text)], example) for example in examples]


def measure(explainer: Explainer, path: Path) -> None:
    """Write a line with the word scores of every method for each prompt that the model completes."""
    prompts = build_examples()
    completed = find_completed_prompts(explainer, [example for _, example in prompts])
    measured_texts = {record["text"] for record in read_records(path)}
    chosen = [prompts[index] for index in completed.indices]
    remaining = iter([item for item in chosen if item[1].text not in measured_texts])
    with path.open("a", encoding="utf-8") as file:
        while batch := list(islice(remaining, BATCH)):
            for record in score_batch(explainer, batch):
                print(json.dumps(record), file=file, flush=True)


def score_batch(
    explainer: Explainer, prompts: Sequence[tuple[str, Example]]
) -> list[dict[str, Any]]:
    """Return a record per prompt, with the word scores of every method."""
    texts = [example.text for _, example in prompts]
    attributions = explainer.explain(texts, list(METHODS.values()), progress=False)
    records = []
    for index, (template, example) in enumerate(prompts):
        record = describe_prompt(example, ()) | {"template": template}
        rows = attributions[index * len(METHODS) : (index + 1) * len(METHODS)]
        for label, attribution in zip(METHODS, rows, strict=True):
            words = group_by_unit(attribution.row, "word")
            record[label] = [float(attribution.scores[word].sum()) for word in words]
        mark_words(record, rows[0].row, example)
        records.append(record)
    return records


def resample_differences(records: Sequence[Mapping[str, Any]], label: str) -> np.ndarray:
    """Return the mean difference to the default in top-1: of all prompts, then of every resampling.

    A resampling draws as many templates as there are, and takes all prompts of each.
    """
    by_template: dict[str, list[float]] = {}
    for record in records:
        difference = is_first(record, label) - is_first(record, DEFAULT)
        by_template.setdefault(record["template"], []).append(difference)
    sums = np.array([sum(values) for values in by_template.values()])
    counts = np.array([len(values) for values in by_template.values()])
    draws = np.random.default_rng(0).integers(len(sums), size=(NUM_RESAMPLES, len(sums)))
    resampled = sums[draws].sum(1) / counts[draws].sum(1)
    return np.array([sums.sum() / counts.sum(), *resampled])


def summarize_difference(values: np.ndarray) -> dict[str, float]:
    """Return the difference with its 95 % interval."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"mean": float(values[0]), "low": float(low), "high": float(high)}


def summarize(records_by_model: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return top-1, share and difference to the default of every model and method, and the decision."""
    models: dict[str, Any] = {}
    for name, records in records_by_model.items():
        rows = {}
        for label in METHODS:
            rows[label] = {
                "top": float(np.mean([is_first(record, label) for record in records])),
                "share": float(np.mean([measure_share(record, label) for record in records])),
                "difference": summarize_difference(resample_differences(records, label)),
            }
        num_templates = len({record["template"] for record in records})
        models[name] = {"prompts": len(records), "templates": num_templates, "rows": rows}
    pooled = {}
    for label in METHODS:
        # Both models count the same, however many prompts they complete.
        draws = [resample_differences(records, label) for records in records_by_model.values()]
        pooled[label] = summarize_difference(np.mean(draws, axis=0))
    lowest = [models[name]["rows"][CANDIDATE]["difference"]["low"] for name in models]
    is_better = pooled[CANDIDATE]["low"] > 0 and min(lowest) > -MAX_LOSS
    return {"models": models, "pooled": pooled, "candidate is better": is_better}


def format_report(summary: Mapping[str, Any]) -> str:
    """Return a Markdown table of :func:`summarize`."""
    lines = ["| model | prompts | templates | method | top | share | difference to the default |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, model in summary["models"].items():
        for label, row in model["rows"].items():
            cells = [name, str(model["prompts"]), str(model["templates"]), label]
            cells += [f"{row['top']:.2f}", f"{row['share']:.2f}", format_difference(row)]
            lines.append(f"| {' | '.join(cells)} |")
    for label, difference in summary["pooled"].items():
        pooled = format_difference({"difference": difference})
        lines.append(f"| both, counted the same | | | {label} | | | {pooled} |")
    verdict = "better" if summary["candidate is better"] else "not better"
    return "\n".join([*lines, "", f"By the rule, `{CANDIDATE}` is {verdict}."])


def format_difference(row: Mapping[str, Any]) -> str:
    difference = row["difference"]
    return f"{difference['mean']:+.2f} ({difference['low']:+.2f} to {difference['high']:+.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--model", required=True)
    measured.add_argument("-o", "--output", type=Path, required=True)
    reported = commands.add_parser("report")
    reported.add_argument("--records", nargs="+", required=True, help="NAME=FILE.jsonl")
    reported.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(Explainer.from_pretrained(arguments.model, dtype="float32"), arguments.output)
        return
    records_by_model = {}
    for item in arguments.records:
        name, _, path = item.partition("=")
        records_by_model[name] = read_records(Path(path))
    summary = summarize(records_by_model)
    print(format_report(summary))
    if arguments.output:
        arguments.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
