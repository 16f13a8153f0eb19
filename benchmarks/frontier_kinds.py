"""Sub-texts of other kinds of input: masked words, next tokens, vectors, images, written words and more.

    python benchmarks/frontier_kinds.py --data DATA --out kinds.json [--models MODELS] [--count 40]
    python benchmarks/frontier_kinds.py --report kinds.json    # the page docs/results/frontier/kinds.md

DATA is the folder of public data sets; MODELS may hold the models that benchmarks/default_method.py names,
and those that ``python -m training.small_kinds`` makes (planted_patches, word_table, topic_words); a kind
without a model is left out. ``--report`` takes several files, of tasks that were measured one by one.

Every input is explained for the model's own prediction by one-pass methods and by ``subset_relevance`` with
other options, and the explanations are measured by AOPC: tokens deleted and, where the model has a [MASK],
replaced by it (a cosine: its fall while words are deleted; an image: insertion minus deletion, too). Where
it is known which patch or source token decides, ``top-1`` is the share of explanations with the largest score
there. Sub-texts keep special tokens, templates, the question, the answer, a language model's last token and
what a decoder wrote. This is an exploration, not the protocol of ADR 0019: few inputs, and many options
looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from default_method import (
    PIXEL_MEAN,
    PIXEL_STD,
    list_tasks,
    load_explainer,
    measure_cosine_falls,
    measure_pictures,
)
from frontier import bootstrap_mean
from frontier_page import FOLDER, format_interval
from machine import facts

from tokenlight import Attribution, Continuation, Explainer, Picture
from tokenlight.errors import TokenlightError
from tokenlight.files.write import write_text

sys.path.insert(0, str(Path(__file__).parents[1]))
from training.small_kinds import (
    MAX_NEWS_TOKENS,
    load_news_tokenizer,
    make_planted_pictures,
    make_sentences,
    read_news,
)

PAGE = FOLDER / "kinds.md"
TEXT = Path(__file__).with_name("frontier_kinds_text.md")  # tables take the place of [[NAME]]
KIND_TITLES = {
    "pair": "Pairs",
    "span": "Questions",
    "mask": "Masked words",
    "next": "Next tokens",
    "cosine": "Similar texts",
    "image": "Images",
    "patch": "Pictures with a known patch",
    "word": "Written words with a known source word",
    "topic": "Topics written as a word",
}

SKIPPED = frozenset({"text"})  # the protocol itself is about texts
REFERENCE = "attnlrp"
SECOND_REFERENCE = "cat:gradient=cp"  # the one pass that is averaged over sub-texts
METHODS = (
    "attnlrp",
    "random",
    "cp_lrp",
    "cat:gradient=cp",
    "integrated_gradients",
    "subset_relevance",
    "subset_relevance:readout=embeddings",
    "subset_relevance:keep_probability=0.8",
    "subset_relevance:removal=hide",
    "subset_relevance:removal=replace,baseline=mask",
    "subset_relevance:keep_probability=0.8,removal=hide",
    "subset_relevance:units=word",
    "subset_relevance:units=sentence",
)


SMALL_COUNTS = {"planted_patches": 100, "word_table": 40, "topic_words": 60}


def list_small_tasks(data: Path, models: Path | None) -> Iterator[tuple[str, str, str, list[Any]]]:
    """Yield kind, name, model and inputs of the tasks of training.small_kinds whose models are given.

    An input is what is explained; where the deciding patch or words are known, a pair of it and them.
    """
    if models is None:
        return
    if (models / "planted_patches").is_dir():
        pixels, _, positions = make_planted_pictures(data, SMALL_COUNTS["planted_patches"])
        pictures = []
        for image, position in zip(pixels, positions, strict=True):
            mean = PIXEL_MEAN[:, None, None]
            values = (image / 255 - mean) / PIXEL_STD[:, None, None]
            picture = Picture.from_pixels(values, mean=PIXEL_MEAN, std=PIXEL_STD)
            pictures.append((picture, int(position)))
        yield "patch", "planted_patches", str(models / "planted_patches"), pictures
    if (models / "word_table").is_dir():
        sentences = make_sentences(SMALL_COUNTS["word_table"])
        yield "word", "word_table", str(models / "word_table"), sentences
    if (models / "topic_words").is_dir():
        texts, _ = read_news(data / "ag_news/test.jsonl.gz")
        tokenizer = load_news_tokenizer()
        short_texts = []
        for text in texts[1000:]:  # the first thousand measured the model
            if len(tokenizer(text)["input_ids"]) <= MAX_NEWS_TOKENS:
                short_texts.append(text)
            if len(short_texts) == SMALL_COUNTS["topic_words"]:
                break
        yield "topic", "topic_words", str(models / "topic_words"), short_texts


def measure_patches(explainer: Explainer, inputs: list[Any], method: str) -> dict[str, list[float]]:
    """Return whether the patch that decides has the largest score, and AOPC by hiding patches."""
    pictures = [picture for picture, _ in inputs]
    attributions = list(explainer.explain(pictures, method, progress=False))
    hits = []
    for attribution, (_, position) in zip(attributions, inputs, strict=True):
        patches = attribution.row.image.get_positions(len(attribution))
        hits.append(float(np.argmax(attribution.scores[patches]) == position))
    evaluation = explainer.evaluate(attributions, ["aopc:perturb=mask"], progress=False)
    (key,) = evaluation.metrics
    return {"top-1": hits, "AOPC by hiding": [row[key] for row in evaluation.rows]}


def measure_real_pictures(
    explainer: Explainer, inputs: list[Any], method: str
) -> dict[str, list[Any]]:
    """Return insertion minus deletion, and AOPC by hiding patches."""
    attributions = list(explainer.explain(inputs, method, progress=False))
    evaluation = explainer.evaluate(attributions, ["aopc:perturb=mask"], progress=False)
    (key,) = evaluation.metrics
    return {
        "insertion − deletion": measure_pictures(explainer, inputs, method),
        "AOPC by hiding": [row[key] for row in evaluation.rows],
    }


def measure_words(explainer: Explainer, inputs: list[Any], method: str) -> dict[str, list[float]]:
    """Return, for each sentence, the mean over its written words of ``top-1`` and AOPC by hiding."""
    hits = []
    falls = []
    for source, translation in inputs:
        written = explainer.explain(source, method, Continuation(translation), progress=False)
        attributions: list[Attribution] = list(written)
        sentence_hits = []
        for position, attribution in enumerate(attributions):
            source_length = attribution.row.source_length
            assert source_length is not None, "The model reads a source."
            num_words = source_length - 1  # its last token is </s>
            sentence_hits.append(np.argmax(attribution.scores[:num_words]) == position)
        hits.append(float(np.mean(sentence_hits)))
        evaluation = explainer.evaluate(attributions, ["aopc:perturb=mask"], progress=False)
        (key,) = evaluation.metrics
        falls.append(float(np.mean([row[key] for row in evaluation.rows])))
    return {"top-1": hits, "AOPC by hiding": falls}


def measure_topics(explainer: Explainer, inputs: list[str], method: str) -> dict[str, list[float]]:
    """Return AOPC of the first written word, by hiding and by deleting tokens of the source."""
    metrics = {"AOPC by hiding": "aopc:perturb=mask", "AOPC by deletion": "aopc"}
    attributions = list(explainer.explain(inputs, method, progress=False))
    evaluation = explainer.evaluate(attributions, list(metrics.values()), progress=False)
    values = {}
    for name, key in zip(metrics, evaluation.metrics, strict=True):
        values[name] = [row[key] for row in evaluation.rows]
    return values


def measure_aopc(explainer: Explainer, inputs: list[Any], method: str) -> dict[str, list[float]]:
    """Return AOPC of each input, by deletion and by [MASK] where the model has one."""
    metrics = {"aopc": "aopc"}
    if getattr(explainer.tokenizer, "mask_token", None):
        metrics["aopc_mask"] = "aopc:perturb=mask"
    attributions = list(explainer.explain(inputs, method, progress=False))
    evaluation = explainer.evaluate(attributions, list(metrics.values()), progress=False)
    values = {}
    for name, key in zip(metrics, evaluation.metrics, strict=True):
        values[name] = [row[key] for row in evaluation.rows]
    return values


def measure_method(
    kind: str, explainer: Explainer, inputs: list[Any], method: str
) -> dict[str, list[Any]]:
    """Return the measures of each input by name."""
    if kind == "cosine":
        return {"fall of the cosine": measure_cosine_falls(explainer, inputs, method)}
    if kind == "patch":
        return measure_patches(explainer, inputs, method)
    if kind == "word":
        return measure_words(explainer, inputs, method)
    if kind == "topic":
        return measure_topics(explainer, inputs, method)
    if kind == "image":
        return measure_real_pictures(explainer, inputs, method)
    return measure_aopc(explainer, inputs, method)


def measure_task(
    kind: str, explainer: Explainer, inputs: list[Any], methods: Sequence[str] = METHODS
) -> list[dict[str, Any]]:
    """Measure every method on one task: means, and paired differences from the reference."""
    values: dict[str, dict[str, np.ndarray]] = {}
    rows: list[dict[str, Any]] = []
    for method in methods:
        start = time.perf_counter()
        try:
            measured = measure_method(kind, explainer, inputs, method)
        except TokenlightError as error:
            print(f"  {method} refused: {error}", flush=True)
            rows.append({"label": method, "refused": error.code})
            continue
        seconds = time.perf_counter() - start
        values[method] = {name: np.array(numbers) for name, numbers in measured.items()}
        means = {name: float(numbers.mean()) for name, numbers in values[method].items()}
        row: dict[str, Any] = {"label": method, "means": means}
        for key, reference in (
            ("ahead_of_attnlrp", REFERENCE),
            ("ahead_of_cat_cp", SECOND_REFERENCE),
        ):
            row[key] = {}
            if reference in values:
                for name, numbers in values[method].items():
                    row[key][name] = bootstrap_mean(numbers - values[reference][name])
        rows.append(row)
        print(f"  {method:40} {means} ({seconds:.0f} s)", flush=True)
    return rows


def render_page(runs: list[dict[str, Any]]) -> str:
    """Render one table per task: means, and paired differences from the reference with their intervals."""
    tables = []
    for run in runs:
        for task, result in run["tasks"].items():
            tables.append(render_task(task, result))
    commands = []
    for run in runs:
        commands.append(f"$ {run['command']} --data DATA --models MODELS --out FILE")
    commits = ", ".join(str(run["facts"]["commit"]) for run in runs)
    text = TEXT.read_text(encoding="utf-8")
    text = text.replace("[[COMMANDS]]", "\n".join(commands))
    text = text.replace("[[COMMITS]]", commits)
    return text.replace("[[TABLES]]", "\n\n".join(tables))


def render_task(task: str, result: dict[str, Any]) -> str:
    """Render the table of a task."""
    lines = [
        f"## {KIND_TITLES[result['kind']]}: {task}",
        "",
        f"`{result['model']}`, {result['texts']} inputs.",
        "",
        f"| method | measure | mean | difference from {REFERENCE} | from {SECOND_REFERENCE} |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if "refused" in row:
            lines.append(f"| {row['label']} | refused: `{row['refused']}` | | | |")
            continue
        for measure, mean in row["means"].items():
            differences = []
            for key in ("ahead_of_attnlrp", "ahead_of_cat_cp"):
                interval = row.get(key, {}).get(measure)
                differences.append(format_interval(interval) if interval else "")
            lines.append(f"| {row['label']} | {measure} | {mean:.3f} | {' | '.join(differences)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure every kind of input that has data and a model, or write the page of an earlier run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path, nargs="+", help="write the page of these results")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--tasks", nargs="+", help="names of tasks; by default all")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    if arguments.report:
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.report]
        write_text(PAGE, render_page(runs))
        return
    if not (arguments.data and arguments.out):
        parser.error("give --data and --out, or --report")
    results: dict[str, Any] = {
        "facts": facts(arguments.device),
        "command": f"python benchmarks/frontier_kinds.py --count {arguments.count}"
        + (f" --tasks {' '.join(arguments.tasks)}" if arguments.tasks else "")
        + (
            f" --methods {' '.join(arguments.methods)}"
            if len(arguments.methods) < len(METHODS)
            else ""
        ),
        "tasks": {},
        "missing": [],
    }
    all_tasks = chain(
        list_tasks(arguments.data, arguments.models),
        list_small_tasks(arguments.data, arguments.models),
    )
    for kind, task, model, inputs in all_tasks:
        if kind in SKIPPED or (arguments.tasks and task not in arguments.tasks):
            continue
        is_embedded = model.startswith("tokenlight/")
        if not inputs or not (is_embedded or Path(model, "config.json").is_file()):
            results["missing"].append(kind)
            continue
        print(task, flush=True)
        loaded_kind = "image" if kind == "patch" else kind
        explainer = load_explainer(loaded_kind, model, arguments.device)
        rows = measure_task(kind, explainer, inputs[: arguments.count], arguments.methods)
        results["tasks"][task] = {
            "kind": kind,
            "model": model if is_embedded else Path(model).resolve().name,
            "texts": min(arguments.count, len(inputs)),
            "rows": rows,
        }
        content = json.dumps(results, indent=1, ensure_ascii=False)
        arguments.out.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
