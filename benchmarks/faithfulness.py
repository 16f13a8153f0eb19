"""Faithfulness of every method on the embedded models: the pages docs/results/faithfulness_*.

    python benchmarks/faithfulness.py --data DATA --work WORK --out docs/results [--device cuda]

DATA is the folder of public data sets (sst2/dev.jsonl.gz, ag_news/test.jsonl.gz,
eraser_movies/val.jsonl.gz). A run that was stopped resumes from WORK. Each page carries the command,
the versions and the seconds of its run.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight import Explainer, registry
from tokenlight.data.ranks import rank_correlation
from tokenlight.evaluation.measurement_records import Failure
from tokenlight.evaluation.report import draw_figure
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import read_examples
from tokenlight.files.write import write_text
from tokenlight.version import VERSION

CORE_METRICS = ["aopc", "lodds", "hiding_game", "revealing_game"]
OTHER_METRICS: list[Any] = [
    ("aopc", {"order": "bottom"}),
    ("lodds", {"order": "bottom"}),
    ("aopc", {"preset": "attcat"}),
    ("aopc", {"preset": "mask_lrp"}),
    ("lodds", {"preset": "mask_lrp"}),
    "comprehensiveness",
    "sufficiency",
    "kendall",
    ("kendall", {"preset": "attcat"}),
    "token_overlap",
]


@dataclass(frozen=True)
class Suite:
    """A data set, the model it is for, and what is measured.

    Attributes:
        name: Name of the suite, and of its files.
        title: Title of its page.
        file: Path of the rows below DATA.
        model: Name of the embedded model.
        metrics: What is measured.
        limit: Largest number of texts; None takes all.
        long: What is done with texts that are too long for the model.
    """

    name: str
    title: str
    file: str
    model: str
    metrics: list[Any]
    limit: int | None = None
    long: str = "truncate"


SUITES = (
    Suite(
        "sst2",
        "SST-2, development set",
        "sst2/dev.jsonl.gz",
        "sentiment",
        [*CORE_METRICS, *OTHER_METRICS],
    ),
    Suite(
        "eraser_movies",
        "ERASER movie reviews, validation set, cut to what the model reads",
        "eraser_movies/val.jsonl.gz",
        "sentiment",
        ["rationale"],
    ),
    Suite(
        "eraser_movies_stride",
        "ERASER movie reviews, validation set, in overlapping windows",
        "eraser_movies/val.jsonl.gz",
        "sentiment",
        ["rationale"],
        long="stride",
    ),
    Suite(
        "ag_news",
        "AG News, first 2,000 texts of the test set",
        "ag_news/test.jsonl.gz",
        "topics",
        [*CORE_METRICS, *OTHER_METRICS],
        2000,
    ),
)
# Means over k on SST-2 as printed in the papers. Their models are BERT-base, so only the order of the
# methods can be compared.
PRINTED = {
    "AttCAT, table 1, AOPC": (
        "aopc",
        {"raw_att": 0.331, "rollout": 0.286, "grads": 0.335, "att_grads": 0.351,
         "partial_lrp": 0.341, "transatt": 0.354, "cat": 0.352, "attcat": 0.371},
    ),
    "AttCAT, table 1, LOdds": (
        "lodds",
        {"raw_att": -0.885, "rollout": -0.641, "grads": -0.252, "att_grads": -0.603,
         "partial_lrp": -0.922, "transatt": -1.038, "cat": -1.115, "attcat": -1.319},
    ),
    "Mask-LRP, table 1, AOPC": (
        "aopc(preset=mask_lrp)",
        {"raw_att": 0.374, "rollout": 0.337, "lrp": 0.336, "partial_lrp": 0.396, "transatt": 0.423,
         "cam": 0.399, "att_gradcam": 0.341, "attcat": 0.405, "mask_lrp": 0.438},
    ),
    "Mask-LRP, table 1, LOdds": (
        "lodds(preset=mask_lrp)",
        {"raw_att": -0.992, "rollout": -0.911, "lrp": -0.888, "partial_lrp": -1.052,
         "transatt": -1.171, "cam": -1.086, "att_gradcam": -0.855, "attcat": -1.110,
         "mask_lrp": -1.208},
    ),
}  # fmt: skip


ARROWS = {"higher": "↑", "lower": "↓", "neither": ""}
MIN_COMPARED_METHODS = 3


def list_methods(*, include_slow: bool) -> list[tuple[str, dict[str, Any]]]:
    """List every registered method without options."""
    methods: list[tuple[str, dict[str, Any]]] = []
    for name in registry.list_names("methods"):
        is_slow = getattr(registry.load_class("methods", name), "slow", False)
        if include_slow or not is_slow:
            methods.append((name, {}))
    return methods


def render_page(
    suite: Suite,
    evaluation: Evaluation,
    refused: list[Failure],
    *,
    provenance: str,
    num_requested: int,
    extra_options: str = "",
) -> str:
    """Render the Markdown page of a suite.

    Args:
        suite: The suite.
        evaluation: What was measured.
        refused: Explanations that could not be made.
        provenance: Versions and seconds of the run.
        num_requested: Number of texts that were to be measured, which may be more than were.
        extra_options: Further options of the command.

    Returns:
        The page.
    """
    lines = [f"# {suite.title}", "", *_describe_texts(suite, evaluation, num_requested), ""]
    lines += _build_table(evaluation)
    if _has_curves(evaluation):
        figure = f"faithfulness_{suite.name}.png"
        lines += ["", f"![Curves of every metric, one line per method]({figure})"]
    if suite.name == "sst2":
        lines += ["", *_compare_with_papers(evaluation)]
    lines += ["", "## Left out", "", *_list_left_out(evaluation, refused)]
    command = "python benchmarks/faithfulness.py --data DATA --work WORK"
    command += f" --suite {suite.name}{extra_options}"
    lines += ["", "## How it was made", "", f"    {command}", "", provenance]
    return "\n".join(lines) + "\n"


def _describe_texts(suite: Suite, evaluation: Evaluation, num_requested: int) -> list[str]:
    """Say which model read how many texts, and how the table is read."""
    num_measured = len({record.text_index for record in evaluation.records})
    count = f"{num_measured:,}"
    if num_measured != num_requested:
        count += f" of {num_requested:,}"
    return [
        f"`tokenlight/{suite.model}`; means over {count} texts, 95 % bootstrap "
        "intervals below. The arrow shows which direction is better."
    ]


def _has_curves(evaluation: Evaluation) -> bool:
    """Return whether a metric was measured at several shares of removed tokens."""
    return any(part.curves for part in evaluation.by_method.values())


def _build_table(evaluation: Evaluation) -> list[str]:
    """Build the table of means, a row per method and a column per metric."""
    better = {}
    for part in evaluation.by_method.values():
        for metric, summary in part.summary.items():
            better[metric] = summary["better"]
    header = [f"{metric} {ARROWS[direction]}" for metric, direction in better.items()]
    lines = [f"| method | {' | '.join(header)} |", "|---" * (len(better) + 1) + "|"]
    for name, part in evaluation.by_method.items():
        cells = [_format_cell(part.summary.get(metric)) for metric in better]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _format_cell(summary: dict[str, Any] | None) -> str:
    """Format a mean with its interval; a dash where nothing was measured."""
    if summary is None or not summary["count"] or np.isnan(summary["mean"]):
        return "–"
    interval = f"{summary['low']:.3f} … {summary['high']:.3f}"
    return f"{summary['mean']:.3f}<br><small>{interval}</small>"


def _compare_with_papers(evaluation: Evaluation) -> list[str]:
    """Compare the order of the methods with the orders that the papers print."""
    lines = [
        "## The papers' orders",
        "",
        "Rank correlation between the order printed in the paper "
        "(BERT-base) and the order measured here, over the methods both have.",
        "",
        "| table | methods | rank correlation | the paper's best | its place here |",
        "|---|---|---|---|---|",
    ]
    for title, (metric, printed) in PRINTED.items():
        means = {}
        for name in printed:
            part = evaluation.by_method.get(name)
            summary = None if part is None else part.summary.get(metric)
            if summary is not None and summary["count"]:
                means[name] = summary["mean"]
        if len(means) < MIN_COMPARED_METHODS:
            continue
        sign = 1 if evaluation.metrics[metric].direction == "higher" else -1
        order = sorted(means, key=lambda name: -sign * means[name])
        paper_best = max(means, key=lambda name: sign * printed[name])
        printed_values = np.array([printed[name] for name in means])
        measured_values = np.array(list(means.values()))
        correlation = rank_correlation(printed_values, measured_values, "spearman")
        rank = order.index(paper_best) + 1
        lines.append(f"| {title} | {len(means)} | {correlation:+.2f} | {paper_best} | {rank} |")
    return lines


def _list_left_out(evaluation: Evaluation, refused: list[Failure]) -> list[str]:
    """List what could not be measured or explained, with the reasons."""
    lines = []
    for metric in evaluation.metrics:
        for reason, count in evaluation.summary[metric]["skipped"].items():
            lines.append(f"- {metric}: {count} explanations ({reason})")
    refusals = Counter((failure.method, failure.reason) for failure in refused)
    for (method, reason), count in refusals.items():
        lines.append(f"- {method}: {count} texts ({reason})")
    return lines or ["Nothing."]


def _note_provenance(folder: Path, seconds: float, num_shards: int) -> str:
    """Describe the run beside its rows when they are made, and read it back afterwards."""
    path = folder / "made.txt"
    if not path.exists():
        device = platform.processor() or "CPU"
        if torch.cuda.is_available():
            device = torch.cuda.get_device_name()
        write_text(
            path,
            f"tokenlight {VERSION}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, Python {platform.python_version()}, {device}, seed 0, "
            f"{seconds:.0f} s with {num_shards} process{'es' * (num_shards > 1)}.",
        )
    return path.read_text(encoding="utf-8")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--device", default=None)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--slow", action="store_true", help="methods marked slow, too")
    parser.add_argument("--core", action="store_true", help="only AOPC, LOdds and both games")
    parser.add_argument("--only-rows", action="store_true", help="no pages: rows into WORK only")
    parser.add_argument("--share", default="0/1", help="i/n: every n-th shard, for n processes")
    parser.add_argument("--method", action="append", help="only these")
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES])
    return parser


def run_suite(suite: Suite, arguments: argparse.Namespace) -> None:
    """Measure a suite and write its page and figure."""
    explainer = Explainer.from_pretrained(f"tokenlight/{suite.model}", device=arguments.device)
    examples = read_examples(arguments.data / suite.file, limit=arguments.limit or suite.limit)
    metrics = CORE_METRICS if arguments.core and len(suite.metrics) > 1 else suite.metrics
    if arguments.method:
        methods = [(name, {}) for name in arguments.method]
    else:
        methods = list_methods(include_slow=arguments.slow)
    experiment = Experiment(methods, metrics, {"long": suite.long})
    shard, num_shards = map(int, arguments.share.split("/"))
    folder = arguments.work / suite.name
    start_time = time.monotonic()
    evaluation, refused = evaluate_file(
        explainer, examples, experiment, folder, partition=(shard, num_shards)
    )
    seconds = time.monotonic() - start_time
    provenance = _note_provenance(folder, seconds, num_shards)
    summary = f"{len(examples)} texts, {len(experiment.methods)} methods, {seconds:.1f} s"
    print(suite.title, summary, flush=True)
    if arguments.only_rows:
        return
    print(evaluation.format_table(), flush=True)
    page = render_page(
        suite,
        evaluation,
        refused,
        provenance=provenance,
        num_requested=len(examples),
        extra_options=" --core" if metrics is CORE_METRICS else "",
    )
    page_name = f"faithfulness_{suite.name}"
    write_text(arguments.out / f"{page_name}.md", page)
    if _has_curves(evaluation):
        figure = draw_figure(evaluation, CORE_METRICS)
        figure.savefig(arguments.out / f"{page_name}.png", dpi=70)


def main() -> None:
    """Run the selected suites."""
    arguments = build_parser().parse_args()
    for suite in SUITES:
        if not arguments.suite or suite.name in arguments.suite:
            run_suite(suite, arguments)


if __name__ == "__main__":
    main()
