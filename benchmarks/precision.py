"""Precision@K on SQuAD with the embedded question-answering model: docs/results/precision/.

    python benchmarks/precision.py --data DATA --work WORK --questions 2000 [--device cuda]

DATA is the folder of public data sets (squad_v1/dev.jsonl.gz, squad_v2/dev.jsonl.gz). Questions are
taken in an order that their ids and the seed decide, so that any number of finished ones is a random
sample; a question that is in both sets is explained once. A run that was stopped resumes from
WORK; --report writes the page from what is finished by then.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight import Attribution, Explainer, SpanTarget
from tokenlight.data.intervals import bootstrap_mean
from tokenlight.data.postprocess import absolute
from tokenlight.evaluation.evaluate import build_metrics
from tokenlight.evaluation.measure import measure
from tokenlight.evaluation.measurement_records import Record, shorten_method_names
from tokenlight.evaluation.preflight import parse_spans
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.tables import Example, read_examples
from tokenlight.files.write import write_text
from tokenlight.progress import progress_bar
from tokenlight.version import VERSION

SETS = {"v1": "squad_v1/dev.jsonl.gz", "v2": "squad_v2/dev.jsonl.gz"}
NUM_QUESTIONS = {"v1": 10570, "v2": 5928}  # questions with an answer
TITLES = {"v1": "SQuAD v1.1 dev", "v2": "SQuAD v2.0 dev, unanswerable dropped"}
K_VALUES = (10, 20, 30, 40, 50)
METRICS: list[Any] = [
    *(("precision_at_k", {"k": k}) for k in K_VALUES),
    ("precision_at_k", {"preset": "mask_lrp"}),
]
SHARE_METRIC = "precision_at_k(preset=mask_lrp)"
SHARD_SIZE = 32  # questions that an interrupt loses
# Mask-LRP, table 2, BERT-base, Precision@20 in percent; AttCAT prints bars without numbers.
PRINTED = {
    "v1": {"rollout": 4.62, "raw_att": 36.33, "attcat": 31.44, "mask_lrp": 52.97},
    "v2": {"rollout": 6.15, "raw_att": 4.69, "attcat": 18.81, "mask_lrp": 27.03},
}


def build_metric_key(k: int) -> str:
    """Build the name that an evaluation gives the count at K."""
    return "precision_at_k" if k == 20 else f"precision_at_k(k={k})"


@dataclass
class QuestionReadings:
    """A question as each set that has it reads it.

    Attributes:
        question_id: Its id, the same in both sets.
        examples: The question with its answer spans, by set.
        attributions: Its explanations, one per method.
    """

    question_id: str
    examples: dict[str, Example] = field(default_factory=dict)
    attributions: list[Attribution] = field(default_factory=list)


def draw_questions(data: Path, max_questions: int, seed: int) -> list[QuestionReadings]:
    """Draw questions with an answer, in random order."""
    readings_by_id: dict[str, QuestionReadings] = {}
    for set_name, file in SETS.items():
        rows = _read_rows(data / file)
        for row, example in zip(rows, read_examples(data / file), strict=True):
            if not example.spans:
                continue
            question_id = str(row["id"])
            readings = readings_by_id.setdefault(question_id, QuestionReadings(question_id))
            readings.examples[set_name] = example
    shuffled = sorted(
        readings_by_id.values(), key=lambda readings: _hash_id(readings.question_id, seed)
    )
    return shuffled[:max_questions]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _hash_id(question_id: str, seed: int) -> bytes:
    """Hash an id with the seed: the order of the hashes is a random order."""
    return hashlib.blake2b(f"{seed}:{question_id}".encode(), digest_size=8).digest()


def measure_shard(
    explainer: Explainer, shard: Sequence[QuestionReadings], methods: Sequence[Any]
) -> list[dict[str, Any]]:
    """Explain the questions of a shard once and measure them in every set that has them.

    Returns:
        Rows with the set, the id of the question and the record.
    """
    texts = [next(iter(readings.examples.values())).text for readings in shard]
    attributions = explainer.explain(
        texts,
        method=list(methods),
        target=SpanTarget("argmax", "argmax"),
        long="truncate",
        progress=False,
    )
    num_methods = len(methods)
    for index, readings in enumerate(shard):
        first = index * num_methods
        readings.attributions = attributions[first : first + num_methods]
        for attribution in attributions[first : first + num_methods]:
            # The official code of AttCAT takes absolute values on SQuAD v2.
            if attribution.method == "attcat":
                readings.attributions.append(absolute(attribution))
    rows = []
    for set_name in SETS:
        rows += measure_set(explainer, set_name, shard)
    return rows


def measure_set(
    explainer: Explainer, set_name: str, shard: Sequence[QuestionReadings]
) -> list[dict[str, Any]]:
    """Measure the explanations of a shard against the answers of one set."""
    shard = [readings for readings in shard if set_name in readings.examples]
    if not shard:
        return []
    answer_spans = [readings.examples[set_name].spans for readings in shard]
    token_rows = [readings.attributions[0].row for readings in shard]
    spans = parse_spans(answer_spans, token_rows)
    attributions = []
    text_indices = []
    for index, readings in enumerate(shard):
        attributions += readings.attributions
        text_indices += [index] * len(readings.attributions)
    records = measure(
        explainer,
        attributions,
        build_metrics(METRICS),
        text_indices,
        spans=spans,
        progress=False,
    )
    short_records, _ = shorten_method_names(records)
    rows = []
    for record in short_records:
        question_id = shard[record.text_index].question_id
        rows.append({"set": set_name, "id": question_id, "record": record.to_dict()})
    return rows


def load_finished(work: Path) -> dict[str, Evaluation]:
    """Load what is finished in WORK, by set."""
    records_by_set: dict[str, list[Record]] = {set_name: [] for set_name in SETS}
    text_indices: dict[str, int] = {}  # every shard counts its questions from 0
    for path in sorted((work / "parts").glob("*.jsonl")):
        # splitlines() would also cut at characters such as U+2028, which JSON strings may hold.
        for line in path.read_text(encoding="utf-8").split("\n"):
            if not line:
                continue
            row = json.loads(line)
            text_index = text_indices.setdefault(row["id"], len(text_indices))
            record = Record.from_dict(row["record"])
            method = record.method.replace(" | ", ", ")  # a bar would end a cell of the table
            record = replace(record, text_index=text_index, method=method)
            records_by_set[row["set"]].append(record)
    evaluations = {}
    for set_name, records in records_by_set.items():
        if records:
            evaluations[set_name] = Evaluation(tuple(records), build_metrics(METRICS), 0)
    return evaluations


def render_page(evaluations: dict[str, Evaluation], provenance: str, command: str) -> str:
    """Render the Markdown page.

    Args:
        evaluations: What was measured, by set.
        provenance: Versions and seconds of the run.
        command: The command that made the page.

    Returns:
        The page.
    """
    lines = ["# Precision@K on SQuAD", "", *INTRODUCTION, ""]
    for set_name, evaluation in evaluations.items():
        lines += _render_set(set_name, evaluation)
    figure = "![Precision@K of each method with 95 % intervals](precision.png)"
    lines += [figure, "", "## How it was made", "", f"    {command}", "", provenance]
    return "\n".join(lines) + "\n"


def _render_set(set_name: str, evaluation: Evaluation) -> list[str]:
    """Render the section of a set."""
    num_questions = len(evaluation.records) // len(evaluation.methods)
    mean_length = _list_answer_lengths(evaluation).mean()
    header = [f"K = {k}" for k in K_VALUES]
    lines = [
        f"## {TITLES[set_name]}: {num_questions:,} of {NUM_QUESTIONS[set_name]:,} questions",
        "",
        f"Tokens of the answer among the K top-ranked; at most {mean_length:.2f}, the "
        "mean answer. Share at K = 20 in percent, ours and as printed in the Mask-LRP paper.",
        "",
        f"| method | {' | '.join(header)} | share at 20 | printed |",
        "|---" * (len(K_VALUES) + 3) + "|",
    ]
    means = {}
    for method, part in evaluation.by_method.items():
        means[method] = part.summary[build_metric_key(20)]["mean"]
        cells = [_format_cell(part.summary[build_metric_key(k)], 2) for k in K_VALUES]
        cells.append(_format_cell(part.summary[SHARE_METRIC], 1))
        cells.append(str(PRINTED[set_name].get(method, "")))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    lines += ["", _describe_order(means, PRINTED[set_name]), ""]
    return [*lines, _describe_differences(evaluation), ""]


INTRODUCTION = (
    "`tokenlight/qa`, 6 layers × 12 heads; the target is the sum of the highest start and the highest",
    "end logit, as in the official codes; contexts are truncated to 512 tokens. 95 % bootstrap",
    "intervals over questions. The papers' models are BERT-base, so only the order can be compared.",
    "The answerable questions of v2 dev are also in v1 dev, and the model is the same, so the second",
    "table is a subset of the first. `attcat, absolute` ranks by magnitude, as the official",
    "code does on v2; `random` is the baseline. The heads of `mask_lrp`: [qa.json](../heads/README.md).",
)


def _describe_order(means: dict[str, float], printed: dict[str, float]) -> str:
    """Say how the methods are ordered here and in the paper."""
    measured_order = " > ".join(sorted(means, key=lambda method: -means[method]))
    paper_order = " > ".join(sorted(printed, key=lambda method: -printed[method]))
    return f"Order at K = 20: {measured_order}. Mask-LRP, table 2, BERT-base: {paper_order}."


def _describe_differences(evaluation: Evaluation) -> str:
    """Say how mask_lrp differs from every other method on the same questions.

    Paired differences show what the intervals of the means hide.
    """
    counts_by_method: dict[str, dict[int, float]] = {}
    for method, part in evaluation.by_method.items():
        counts_by_method[method] = {}
        for record in part.records:
            count = record.measurements[build_metric_key(20)].value
            counts_by_method[method][record.text_index] = count
    mask_lrp_counts = counts_by_method.pop("mask_lrp")
    differences = []
    for method, counts in counts_by_method.items():
        gaps = [mask_lrp_counts[text] - counts[text] for text in mask_lrp_counts]
        gap = bootstrap_mean(gaps, seed=0)
        differences.append(f"{method} {gap.mean:+.2f} ({gap.low:+.2f} … {gap.high:+.2f})")
    return (
        "At K = 20 `mask_lrp` minus each other method, paired by question: "
        f"{', '.join(differences)}."
    )


def _list_answer_lengths(evaluation: Evaluation) -> np.ndarray:
    """List the number of answer tokens of each question."""
    first_part = evaluation.by_method[evaluation.methods[0]]
    lengths = []
    for record in first_part.records:
        lengths.append(record.measurements[build_metric_key(20)].detail["length"])
    return np.array(lengths)


def _format_cell(interval: dict[str, Any], digits: int) -> str:
    """Format a mean with its interval."""
    mean = f"{interval['mean']:.{digits}f}"
    low = f"{interval['low']:.{digits}f}"
    high = f"{interval['high']:.{digits}f}"
    return f"{mean}<br><small>{low} … {high}</small>"


def draw_figure(evaluations: dict[str, Evaluation], path: Path) -> None:
    """Draw the counts over K: a line per method, a panel per set (AttCAT, figures 4 and 8 to 11)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(evaluations), figsize=(11, 4.4), sharey=True, squeeze=False
    )
    for panel, (set_name, evaluation) in zip(panels[0], evaluations.items(), strict=True):
        mean_length = float(_list_answer_lengths(evaluation).mean())
        panel.axhline(mean_length, color="0.4", linestyle=":", linewidth=1)
        panel.text(50, mean_length * 0.985, "mean answer ", ha="right", va="top", color="0.4")
        for method, part in evaluation.by_method.items():
            intervals = [part.summary[build_metric_key(k)] for k in K_VALUES]
            means = [interval["mean"] for interval in intervals]
            lows = [interval["low"] for interval in intervals]
            highs = [interval["high"] for interval in intervals]
            (line,) = panel.plot(K_VALUES, means, marker="o", label=method)
            panel.fill_between(
                K_VALUES, lows, highs, alpha=0.15, color=line.get_color(), linewidth=0
            )
        num_questions = len(evaluation.records) // len(evaluation.methods)
        title = f"{TITLES[set_name]} ({num_questions:,})"
        panel.set(title=title, xlabel="K", xticks=K_VALUES, ylim=(0, 5.4))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("answer tokens among the top K")
    panels[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=80, bbox_inches="tight")


def _describe_run(explainer: Explainer, seconds: float, num_processes: int) -> str:
    """Say with which versions, on what and in how many seconds the rows were made."""
    device = explainer.model.device
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"tokenlight {VERSION}, commit {commit or 'unknown'}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, "
        f"Python {platform.python_version()}, {device_name}, {torch.get_num_threads()} thread(s), "
        f"{seconds:.0f} s in the last run with {num_processes} process{'es' * (num_processes > 1)}."
    )


def measure_questions(
    explainer: Explainer, questions: Sequence[QuestionReadings], arguments: argparse.Namespace
) -> None:
    """Measure the shards of this process that WORK does not hold yet."""
    methods: list[Any] = ["raw_att", "rollout", "attcat", "transatt"]
    methods += [("mask_lrp", {"heads": str(arguments.heads)}), "random"]
    process_index, num_processes = map(int, arguments.share.split("/"))
    start_time = time.monotonic()
    first_of_process = process_index * SHARD_SIZE
    with progress_bar("questions", len(questions) // num_processes) as advance:
        for first in range(first_of_process, len(questions), num_processes * SHARD_SIZE):
            shard = questions[first : first + SHARD_SIZE]
            path = arguments.work / "parts" / f"{first:08d}.jsonl"
            if not path.exists():
                rows = measure_shard(explainer, shard, methods)
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
                write_text(path, "".join(lines))
                seconds = time.monotonic() - start_time
                provenance = _describe_run(explainer, seconds, num_processes)
                write_text(arguments.work / "made.txt", provenance)
            advance(len(shard))


def write_report(work: Path, out: Path) -> None:
    """Write the page and its figure from what is finished, and print the tables."""
    evaluations = load_finished(work)
    out.mkdir(parents=True, exist_ok=True)
    text_indices: set[int] = set()
    for evaluation in evaluations.values():
        text_indices.update(record.text_index for record in evaluation.records)
    command = (
        f"python benchmarks/precision.py --data DATA --work WORK --questions {len(text_indices)}"
    )
    provenance = (work / "made.txt").read_text(encoding="utf-8")
    write_text(out / "README.md", render_page(evaluations, provenance, command))
    draw_figure(evaluations, out / "precision.png")
    for set_name, evaluation in evaluations.items():
        print(TITLES[set_name], evaluation.format_table(), sep="\n", flush=True)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/precision"))
    parser.add_argument("--heads", type=Path, default=Path("docs/results/heads/qa.json"))
    parser.add_argument("--questions", type=int, default=2000, help="of both sets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default=None)
    parser.add_argument("--share", default="0/1", help="i/n: every n-th shard, for n processes")
    parser.add_argument("--only-rows", action="store_true", help="no page: rows into WORK only")
    parser.add_argument("--report", action="store_true", help="only write what is finished")
    return parser


def main() -> None:
    """Explain, measure, and write the page and its figure."""
    arguments = build_parser().parse_args()
    if not arguments.report:
        explainer = Explainer.from_pretrained("tokenlight/qa", device=arguments.device)
        questions = draw_questions(arguments.data, arguments.questions, arguments.seed)
        measure_questions(explainer, questions, arguments)
    if not arguments.only_rows:
        write_report(arguments.work, arguments.out)


if __name__ == "__main__":
    main()
