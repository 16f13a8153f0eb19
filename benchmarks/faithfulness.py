"""Faithfulness of every method on the embedded models: the pages docs/results/faithfulness_*.

    python benchmarks/faithfulness.py --data DATA --work WORK --out docs/results [--device cuda]

DATA is the folder of public data sets (sst2/dev.jsonl.gz, ag_news/test.jsonl.gz,
eraser_movies/val.jsonl.gz). A run that was stopped goes on from WORK. Each page carries the command,
the versions and the seconds that made it.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tokenlight import Explainer, registry
from tokenlight.evaluation.measure import Failure
from tokenlight.evaluation.report import draw_figure
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import read_examples
from tokenlight.files.write import write_text
from tokenlight.metrics._ranking import rank_correlation
from tokenlight.version import VERSION

CORE = ["aopc", "lodds", "hiding_game", "revealing_game"]
MORE: list[Any] = [
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
    """One data set, the model it is for, and what is measured."""

    name: str
    title: str
    file: str
    model: str
    metrics: list[Any]
    limit: int | None = None
    long: str = "truncate"


SUITES = (
    Suite("sst2", "SST-2, development set", "sst2/dev.jsonl.gz", "sentiment", [*CORE, *MORE]),
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
        [*CORE, *MORE],
        2000,
    ),
)
# Mean over k on SST-2 as printed: AttCAT, table 1 (AOPC) and Mask-LRP, table 1 (AOPC). Their models
# are BERT-base; only the order of the methods can be compared.
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


def methods(slow: bool) -> list[tuple[str, dict[str, Any]]]:
    """Every method, those marked slow only where asked for."""
    return [
        (name, {})
        for name in registry.list_names("methods")
        if slow or not getattr(registry.load_class("methods", name), "slow", False)
    ]


def page(
    suite: Suite,
    found: Evaluation,
    refused: list[Failure],
    *,
    made: str,
    asked: int,
    more: str = "",
) -> str:
    """One Markdown page. ``asked``: texts that were to be measured, which may be more than were;
    ``more``: further options of the command."""
    better = {k: v["better"] for part in found.by_method.values() for k, v in part.summary.items()}
    arrows = {"higher": "↑", "lower": "↓", "neither": ""}
    measured = len({record.text_index for record in found.records})
    texts = f"{measured:,} texts" if measured == asked else f"{measured:,} of {asked:,} texts"
    lines = [f"# {suite.title}", "", f"`tokenlight/{suite.model}`; means over {texts}, 95 % bootstrap "
             "intervals below. The arrow shows which direction is better.", ""]  # fmt: skip
    lines.append("| method | " + " | ".join(f"{k} {arrows[w]}" for k, w in better.items()) + " |")
    lines.append("|---" * (len(better) + 1) + "|")
    for name, part in found.by_method.items():
        cells = [_cell(part.summary.get(key)) for key in better]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if any(part.curves for part in found.by_method.values()):
        lines += [
            "",
            f"![Curves of every metric, one line per method](faithfulness_{suite.name}.png)",
        ]
    lines += ["", *_printed(found)] if suite.name == "sst2" else []
    lines += ["", "## Left out", "", *_left_out(found, refused)]
    command = (
        f"python benchmarks/faithfulness.py --data DATA --work WORK --suite {suite.name}{more}"
    )
    lines += ["", "## How it was made", "", f"    {command}", "", made]
    return "\n".join(lines) + "\n"


def _cell(one: dict[str, Any] | None) -> str:
    if one is None or not one["count"] or one["mean"] != one["mean"]:
        return "–"
    return f"{one['mean']:.3f}<br><small>{one['low']:.3f} … {one['high']:.3f}</small>"


def _printed(found: Evaluation) -> list[str]:
    """Which of the papers' orders hold here."""
    lines = ["## The papers' orders", "", "Rank correlation between the order printed in the paper "
             "(BERT-base) and the order measured here, over the methods both have.", "",
             "| table | methods | rank correlation | the paper's best | its place here |",
             "|---|---|---|---|---|"]  # fmt: skip
    for title, (key, printed) in PRINTED.items():
        ours = {
            name: found.by_method[name].summary[key]["mean"]
            for name in printed
            if name in found.by_method and found.by_method[name].summary[key]["count"]
        }
        if len(ours) < 3:
            continue
        sign = 1 if found.metrics[key].direction == "higher" else -1
        here = sorted(ours, key=lambda name: -sign * ours[name])
        best = max(ours, key=lambda name: sign * printed[name])
        rho = rank_correlation(
            _array([printed[name] for name in ours]), _array([*ours.values()]), "spearman"
        )
        lines.append(f"| {title} | {len(ours)} | {rho:+.2f} | {best} | {here.index(best) + 1} |")
    return lines


def _array(values: list[float]) -> Any:
    import numpy as np

    return np.array(values)


def _left_out(found: Evaluation, refused: list[Failure]) -> list[str]:
    lines = [
        f"- {key}: {count} explanations ({reason})"
        for key in found.metrics
        for reason, count in found.summary[key]["skipped"].items()
    ]
    counts: dict[tuple[str, str], int] = {}
    for one in refused:
        counts[one.method, one.reason] = counts.get((one.method, one.reason), 0) + 1
    lines += [f"- {method}: {n} texts ({why})" for (method, why), n in counts.items()]
    return lines or ["Nothing."]


def _made(folder: Path, seconds: float, share: str) -> str:
    """What made the rows: noted beside them when they are made, read back when a page is."""
    place = folder / "made.txt"
    if not place.exists():
        cuda = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if cuda else platform.processor() or "CPU"
        processes = int(share.partition("/")[2])
        write_text(
            place,
            f"tokenlight {VERSION}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, Python {platform.python_version()}, {device}, seed 0, "
            f"{seconds:.0f} s with {processes} process{'es' * (processes > 1)}.",
        )
    return place.read_text(encoding="utf-8")


def main() -> None:
    """Run every suite and write its page and figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--out", type=Path, default=Path("docs/results"))
    options.add_argument("--device", default=None)
    options.add_argument("--limit", type=int, default=None)
    options.add_argument("--slow", action="store_true", help="methods marked slow, too")
    options.add_argument("--core", action="store_true", help="only AOPC, LOdds and both games")
    options.add_argument("--only-rows", action="store_true", help="no pages: rows into WORK only")
    options.add_argument("--share", default="0/1", help="i/n: every n-th shard, for n processes")
    options.add_argument("--method", action="append", help="only these")
    options.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES])
    given = options.parse_args()
    for suite in SUITES:
        if given.suite and suite.name not in given.suite:
            continue
        explainer = Explainer.from_pretrained(f"tokenlight/{suite.model}", device=given.device)
        examples = read_examples(given.data / suite.file, limit=given.limit or suite.limit)
        metrics = CORE if given.core and len(suite.metrics) > 1 else suite.metrics
        chosen = [(name, {}) for name in given.method] if given.method else methods(given.slow)
        job = Experiment(chosen, metrics, {"long": suite.long})
        begun = time.monotonic()
        turn, of = map(int, given.share.split("/"))
        found, refused = evaluate_file(
            explainer, examples, job, given.work / suite.name, partition=(turn, of)
        )
        seconds = time.monotonic() - begun
        made = _made(given.work / suite.name, seconds, given.share)
        said = f"{len(examples)} texts, {len(job.methods)} methods, {seconds:.1f} s"
        print(suite.title, said, flush=True)
        if given.only_rows:
            continue
        print(found.format_table(), flush=True)
        page_name = f"faithfulness_{suite.name}"
        more = " --core" if metrics is CORE else ""
        written = page(suite, found, refused, made=made, asked=len(examples), more=more)
        write_text(given.out / f"{page_name}.md", written)
        if any(part.curves for part in found.by_method.values()):
            drawn = draw_figure(found, CORE)
            drawn.savefig(given.out / f"{page_name}.png", dpi=70)


if __name__ == "__main__":
    main()
