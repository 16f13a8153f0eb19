"""Six tasks and eight measures for the methods of the frontier, by the protocol of ADR 0021.

    python benchmarks/frontier_board.py --data DATA --models MODELS --out board.json --panels sst2 qqp …

DATA holds the public data sets and what ``python -m training.planted`` made of them; MODELS holds the models
tuned by ``python -m training.finetune``, each in the folder of its name. A panel is one set of texts, its
model and what is measured on it; without ``--panels`` all of them run in order. ``--count`` limits the texts
of a panel and ``--seconds`` the whole run: what comes later is left out. The file holds the value of every
text and is written after each method, so that a run that was stopped loses one method at most.

``--wait`` waits for a tuned model that another process still trains.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frontier import ENTRIES, TRIAL_SEED, Entry, subset_entry
from machine import facts

from tokenlight import Attribution, Explainer, Question
from tokenlight.errors import TokenlightError

MAX_TOKENS = 128
MAX_CONTEXT_WORDS = 80
Row = dict[str, Any]

FOUR_MEASURES = ("aopc", "aopc:perturb=mask", "sufficiency", "comprehensiveness")
NORMALISED = ("naopc", {"beam_width": 3, "max_tokens": 40})
PRECISION = ("rationale", {"report": "f1"})
BOARD_ENTRIES = (
    Entry("random", "random"),
    Entry("grad_x_input", "grad_x_input"),
    Entry("gae", "gae"),
    Entry("attcat", "attcat"),
    Entry("attnlrp", "attnlrp"),
    Entry("cp_lrp", "cp_lrp"),
    Entry("cat:gradient=cp", "cat", {"gradient": "cp"}),
    Entry("attcat:gradient=attnlrp", "attcat", {"gradient": "attnlrp"}),
    Entry("attcat:gradient=cp", "attcat", {"gradient": "cp"}),
    Entry("alti_logit", "alti_logit"),
    Entry("gim", "gim"),
    Entry("fullgrad_plus:gradient=libra", "fullgrad_plus", {"gradient": "libra"}),
    Entry("integrated_gradients", "integrated_gradients", {"num_steps": 50}),
    Entry("occlusion", "occlusion"),
    Entry("lime", "lime"),
    subset_entry(8, 1),
    subset_entry(8, 1, readout="embeddings"),
    subset_entry(64, 1),
)
FEW_ENTRIES = tuple(
    entry
    for entry in BOARD_ENTRIES
    if entry.label
    in (
        "random",
        "attnlrp",
        "cp_lrp",
        "cat:gradient=cp",
        "integrated_gradients",
        "subset_relevance, 8 sub-texts",
        "subset_relevance, 8 sub-texts, readout=embeddings",
        "subset_relevance, 64 sub-texts",
    )
)


@dataclass(frozen=True)
class Panel:
    """A set of texts, its model and what is measured on it."""

    model: str
    file: str
    metrics: tuple[Any, ...]
    entries: Sequence[Entry]
    count: int
    first: int = 0
    target: str = "predicted"
    measure: Callable[..., dict[str, list[float | None]]] | None = None


def list_panels() -> dict[str, Panel]:
    """Return the panels by name, in the order in which they run."""
    tasks = list_task_panels()
    return {**tasks, **list_board_panels(tasks), **list_check_panels()}


def list_task_panels() -> dict[str, Panel]:
    """Return the panels of the six tasks."""
    four_measures_and_soft = (*FOUR_MEASURES, "soft_comprehensiveness")
    return {
        "sst2": Panel(
            "tokenlight/sentiment",
            "sst2/dev.jsonl.gz",
            four_measures_and_soft,
            ENTRIES,
            count=200,
            first=500,
        ),
        "ag_news": Panel(
            "tokenlight/topics",
            "ag_news/test.jsonl.gz",
            four_measures_and_soft,
            ENTRIES,
            count=150,
            first=300,
        ),
        "amazon": Panel(
            "tokenlight/sentiment",
            "amazon/test_subset.jsonl.gz",
            four_measures_and_soft,
            ENTRIES,
            count=150,
        ),
        "squad_v1": Panel(
            "tokenlight/qa", "squad_v1/dev.jsonl.gz", FOUR_MEASURES, ENTRIES, count=100
        ),
        "qqp": Panel("qqp", "qqp/test_subset.jsonl.gz", four_measures_and_soft, ENTRIES, count=150),
        "snli": Panel("snli", "snli/dev.jsonl.gz", four_measures_and_soft, ENTRIES, count=150),
    }


def list_board_panels(tasks: Mapping[str, Panel]) -> dict[str, Panel]:
    """Return the panels of the other measures, from signs to normalized AOPC."""
    panels = {
        "signs": Panel(
            "tokenlight/sentiment",
            "signs/sst.jsonl.gz",
            ("sign_agreement",),
            BOARD_ENTRIES,
            count=300,
        ),
        "hybrid_ag_news": Panel(
            "tokenlight/topics",
            "hybrid/ag_news.jsonl.gz",
            ("pointing_game",),
            BOARD_ENTRIES,
            count=200,
            target="label",
        ),
        "hybrid_squad": Panel(
            "tokenlight/qa",
            "hybrid/squad_v1.jsonl.gz",
            ("pointing_game",),
            BOARD_ENTRIES,
            count=80,
        ),
        "movies": Panel(
            "tokenlight/sentiment",
            "eraser_movies/val.jsonl.gz",
            ("rationale",),
            BOARD_ENTRIES,
            count=80,
        ),
    }
    for name in ("sst2", "ag_news"):
        for kind in ("single", "context", "pair"):
            file = f"planted_{name}/{kind}_test.jsonl.gz"
            panel_name = f"planted_{name}_{kind}"
            panels[panel_name] = Panel(panel_name, file, (PRECISION,), BOARD_ENTRIES, count=150)
    for name, file in (("sst2", "sst2/dev.jsonl.gz"), ("ag_news", "ag_news/test.jsonl.gz")):
        panels[f"masked_{name}"] = Panel(
            f"masked_{name}",
            file,
            ("f_fidelity",),
            BOARD_ENTRIES,
            count=150,
            first=tasks[name].first,
        )
    for name in ("sst2", "qqp"):
        panels[f"normalised_{name}"] = replace(
            tasks[name], metrics=(NORMALISED,), entries=BOARD_ENTRIES, count=60
        )
    return panels


def list_check_panels() -> dict[str, Panel]:
    """Return the panels that check methods on randomised models and paraphrased texts."""
    return {
        "randomised": Panel(
            "tokenlight/sentiment",
            "sst2/dev.jsonl.gz",
            ("randomisation",),
            FEW_ENTRIES,
            count=60,
            first=500,
        ),
        "paraphrased": Panel(
            "tokenlight/sentiment",
            "sst2/dev.jsonl.gz",
            (),
            FEW_ENTRIES,
            count=150,
            first=500,
            measure=measure_stability,
        ),
    }


def read_rows(path: Path, first: int, count: int) -> list[Row]:
    """Read rows of a file in the order of the protocol; questions whose context is long are left out."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    order = np.random.default_rng(TRIAL_SEED).permutation(len(rows))
    is_marked = "spans" in rows[0]  # hybrid documents are long by design
    chosen = []
    for index in order[first:]:
        row = rows[index]
        num_words = len(row.get("context", "").split())
        if num_words > MAX_CONTEXT_WORDS and not is_marked:
            continue
        chosen.append(row)
        if len(chosen) == count:
            break
    return chosen


def make_input(row: Row) -> Any:
    """Return a row as what an explainer takes."""
    if "question" in row:
        return Question(row["question"], row["context"])
    if "text_a" in row:
        return row["text_a"], row["text_b"]
    return row.get("text") or row["sentence"]


def read_spans(rows: Sequence[Row]) -> list[Any] | None:
    """Return the marked characters of each row, or None where rows have none."""
    for key in ("spans", "evidences", "rationales"):
        if key in rows[0]:
            return [row[key] for row in rows]
    return None


def cut_text(explainer: Explainer, text: Any) -> Any:
    """Cut a text at the most tokens of the protocol, so that all methods read the same."""
    if not isinstance(text, str):
        return text
    encoded = explainer.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    offsets = encoded["offset_mapping"]
    limit = MAX_TOKENS - 2
    return text if len(offsets) <= limit else text[: offsets[limit - 1][1]]


def fits_model(explainer: Explainer, row: Row) -> bool:
    """Return whether the model reads a question whole; other texts are cut or truncated."""
    if "question" not in row:
        return True
    encoded = explainer.tokenizer(row["question"], row["context"])
    limit: int = explainer.model.config.max_position_embeddings
    return len(encoded["input_ids"]) <= limit


def explain(explainer: Explainer, inputs: list[Any], spec: Any, target: Any) -> list[Attribution]:
    """Explain all inputs and read the scores."""
    options: dict[str, Any] = {"progress": False}
    if not isinstance(inputs[0], Question):
        options["long"] = "truncate"
    attributions = list(explainer.explain(inputs, spec, target, **options))
    for attribution in attributions:
        attribution.scores  # noqa: B018 - lazy: computed when it is read
    return attributions


def measure_panel(
    explainer: Explainer, panel: Panel, rows: Sequence[Row], inputs: list[Any], spec: Any
) -> tuple[dict[str, list[float | None]], float, list[Attribution]]:
    """Return each metric's value per text, the seconds of the explanations, and the explanations."""
    target: Any = "predicted"
    if panel.target == "label":
        target = [row["label"] for row in rows]
    start = time.perf_counter()
    attributions = explain(explainer, inputs, spec, target)
    seconds = time.perf_counter() - start
    labels = [row["label"] for row in rows] if "label" in rows[0] else None
    spans = read_spans(rows)
    values: dict[str, list[float | None]] = {}
    for part in split_repeated(inputs):
        evaluation = explainer.evaluate(
            [attributions[i] for i in part],
            list(panel.metrics),
            labels=None if labels is None else [labels[i] for i in part],
            spans=None if spans is None else [spans[i] for i in part],
            progress=False,
        )
        for key in evaluation.metrics:
            numbers = values.setdefault(key, [None] * len(inputs))
            for i, row in zip(part, evaluation.rows, strict=True):
                numbers[i] = row.get(key)
    return values, seconds, attributions


def split_repeated(inputs: Sequence[Any]) -> list[list[int]]:
    """Split the indices of inputs into lists in which no text is repeated.

    A hybrid document stands in the data once per topic, with other marks each time. An evaluation takes
    neighbours with the same text for explanations of one text, which has one set of marks.
    """
    parts: list[list[int]] = []
    num_seen: dict[Any, int] = {}
    for i, text in enumerate(inputs):
        number = num_seen.get(text, 0)
        num_seen[text] = number + 1
        if number == len(parts):
            parts.append([])
        parts[number].append(i)
    return parts


def measure_stability(
    explainer: Explainer, rows: Sequence[Row], inputs: list[str], spec: Any
) -> dict[str, list[float | None]]:
    """Return the rank correlation of the scores of unchanged words after others were replaced.

    A masked language model replaces a tenth of the words, at least one; where the predicted class changes,
    there is no value.
    """
    changed = [replace_words(row["text"]) for row in rows]
    originals = explain(explainer, inputs, spec, "predicted")
    paraphrases = explain(explainer, [text for text, _ in changed], spec, "predicted")
    values: list[float | None] = []
    for original, paraphrase, (_, positions) in zip(originals, paraphrases, changed, strict=True):
        if original.prediction.label != paraphrase.prediction.label:
            values.append(None)
            continue
        first = score_words(original)
        second = score_words(paraphrase)
        common = [i for i in first if i in second and i not in positions]
        if len(common) < 3:
            values.append(None)
            continue
        ranks = []
        for scores in (first, second):
            ranks.append(np.argsort(np.argsort([scores[i] for i in common])))
        values.append(float(np.corrcoef(*ranks)[0, 1]))
    return {"stability": values}


def score_words(attribution: Attribution) -> dict[int, float]:
    """Return the sum of scores of each word of the text, by its number between spaces."""
    text = attribution.row.texts[0]
    scores: dict[int, float] = {}
    for span, score in zip(attribution.row.spans, attribution.scores, strict=True):
        if span is not None:
            number = text[: span[0]].count(" ")
            scores[number] = scores.get(number, 0.0) + float(score)
    return scores


REPLACED: dict[str, tuple[str, set[int]]] = {}


def replace_words(text: str) -> tuple[str, set[int]]:
    """Replace a tenth of the words by the masked language model's first other proposal."""
    if text not in REPLACED:
        filler = masked_lm()
        words = text.split()
        generator = np.random.default_rng([TRIAL_SEED, len(text)])
        candidates = [i for i, word in enumerate(words) if word.isalpha()]
        generator.shuffle(candidates)
        positions = set()
        for i in candidates[: max(1, round(len(words) / 10))]:
            masked = [*words[:i], filler.tokenizer.mask_token, *words[i + 1 :]]
            words[i] = propose_word(filler, " ".join(masked), words[i])
            positions.add(i)
        REPLACED[text] = " ".join(words), positions
    return REPLACED[text]


def propose_word(filler: Explainer, text: str, original: str) -> str:
    """Return the most likely whole word at the mask other than the original."""
    batch = filler.tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
    batch = batch.to(filler.model.device)
    with torch.no_grad():
        logits = filler.model(**batch).logits[0]
    position = int((batch["input_ids"][0] == filler.tokenizer.mask_token_id).nonzero()[0])
    for token in logits[position].argsort(descending=True)[:20].tolist():
        word = filler.tokenizer.decode([token]).strip()
        if word.isalpha() and word != original.lower():
            return word
    return original


LOADED: dict[str, Explainer] = {}


def masked_lm() -> Explainer:
    """Load the embedded masked language model once."""
    if "masked_lm" not in LOADED:
        LOADED["masked_lm"] = Explainer.from_pretrained("tokenlight/masked_lm", device=DEVICE)
    return LOADED["masked_lm"]


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def find_model(panel: Panel, models: Path | None, deadline: float, *, wait: bool) -> str | None:
    """Return the panel's model, or None if it is not there in time."""
    if panel.model.startswith("tokenlight/"):
        return panel.model
    if models is None:
        return None
    # Written last by training.finetune, so the weights are whole.
    path = models / panel.model / "tokenizer_config.json"
    while wait and not path.is_file() and time.monotonic() < deadline:
        time.sleep(1)
    if not path.is_file():
        return None
    if wait:
        time.sleep(2)
    return str(path.parent)


def measure_entry(
    explainer: Explainer, panel: Panel, rows: Sequence[Row], inputs: list[Any], entry: Entry
) -> Row:
    """Return one row of a panel: values per text by metric and seed, passes and seconds."""
    runs: list[dict[str, list[float | None]]] = []
    seconds = []
    num_tokens = 0
    for spec in entry.specs:
        if panel.measure is not None:
            runs.append(panel.measure(explainer, rows, inputs, spec))
            continue
        values, took, attributions = measure_panel(explainer, panel, rows, inputs, spec)
        runs.append(values)
        seconds.append(took)
        num_tokens = round(float(np.mean([len(attribution) for attribution in attributions])))
    return {
        "label": entry.label,
        "passes": entry.count_passes(num_tokens or 30),
        "seconds": float(np.mean(seconds)) if seconds else None,
        "runs": round_values(runs),
    }


def round_values(runs: list[dict[str, list[float | None]]]) -> list[dict[str, Any]]:
    """Return the values with five digits: the file stays small."""
    rounded = []
    for values in runs:
        rounded.append(
            {
                name: [None if value is None else round(float(value), 5) for value in numbers]
                for name, numbers in values.items()
            }
        )
    return rounded


@dataclass
class Run:
    """One run over panels: what was asked for, when it ends, and what was measured so far."""

    arguments: argparse.Namespace
    deadline: float
    results: dict[str, Any]

    def save(self) -> None:
        """Write what was measured so far."""
        content = json.dumps(self.results, ensure_ascii=False, separators=(",", ":"))
        self.arguments.out.write_text(content + "\n", encoding="utf-8")

    def measure(self, name: str, panel: Panel) -> None:
        """Measure every method of a panel that there is time for."""
        arguments = self.arguments
        model = find_model(panel, arguments.models, self.deadline, wait=arguments.wait)
        if model is None:
            self.results["missing"].append(f"{name}: no model {panel.model}")
            return
        explainer = Explainer.from_pretrained(model, device=DEVICE)
        count = min(panel.count, arguments.count)
        rows = read_rows(arguments.data / panel.file, panel.first, count)
        # A question has no way to be cut at its end: the answer may stand there.
        rows = [row for row in rows if fits_model(explainer, row)]
        inputs = [make_input(row) for row in rows]
        if panel.metrics[:1] in (FOUR_MEASURES[:1], (NORMALISED,)):
            inputs = [cut_text(explainer, text) for text in inputs]
        content: dict[str, Any] = {"model": panel.model, "texts": len(inputs), "rows": []}
        self.results["panels"][name] = content
        for entry in panel.entries:
            if arguments.only and entry.label not in arguments.only:
                continue
            if time.monotonic() > self.deadline:
                self.results["missing"].append(f"{name}, {entry.label}: no time left")
                continue
            start = time.monotonic()
            try:
                row = measure_entry(explainer, panel, rows, inputs, entry)
            except TokenlightError as error:
                self.results["missing"].append(f"{name}, {entry.label}: {error.code}")
                print(f"{name} {entry.label} refused: {error}", flush=True)
                continue
            content["rows"].append(row)
            means = summarize_run(row["runs"][0])
            took = time.monotonic() - start
            print(f"{name:20} {entry.label:52} {means} {took:.1f} s", flush=True)
            self.save()


def main() -> None:
    """Measure the panels that were asked for."""
    panels = list_panels()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--panels", nargs="+", choices=[*panels], default=[*panels])
    parser.add_argument("--only", nargs="+", help="labels of methods; by default all of a panel")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    run = Run(arguments, deadline, {"facts": facts(DEVICE), "panels": {}, "missing": []})
    for name in arguments.panels:
        run.measure(name, panels[name])
        run.save()


def summarize_run(values: dict[str, list[float | None]]) -> str:
    """Return the means of a run for the log."""
    means = []
    for name, numbers in values.items():
        known = [number for number in numbers if number is not None]
        means.append(f"{name} {np.mean(known) if known else float('nan'):.3f}")
    return ", ".join(means)


if __name__ == "__main__":
    main()
