"""Precision@K on SQuAD with the embedded question-answering model: docs/results/precision/.

    python benchmarks/precision.py --data DATA --work WORK --questions 2000 [--device cuda]

DATA is the folder of public data sets (squad_v1/dev.jsonl.gz, squad_v2/dev.jsonl.gz). Questions are
taken in an order that their ids and the seed decide, so that any number of finished ones is a random
sample; a question that stands in both sets is explained once. A run that was stopped goes on from
WORK; --report writes the page from what is finished by then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tokenlight import Explainer, SpanTarget
from tokenlight.data.postprocess import absolute
from tokenlight.evaluation.evaluate import build_metrics
from tokenlight.evaluation.measure import Record, measure, shorten_method_names
from tokenlight.evaluation.preflight import parse_spans
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.tables import Example, read_examples
from tokenlight.files.write import write_text
from tokenlight.metrics._interval import bootstrap_mean
from tokenlight.progress import progress_bar
from tokenlight.version import VERSION

SETS = {"v1": "squad_v1/dev.jsonl.gz", "v2": "squad_v2/dev.jsonl.gz"}
ALL = {"v1": 10570, "v2": 5928}  # questions with an answer
TITLES = {"v1": "SQuAD v1.1 dev", "v2": "SQuAD v2.0 dev, unanswerable dropped"}
AT = (10, 20, 30, 40, 50)
METRICS: list[Any] = [
    *(("precision_at_k", {"k": k}) for k in AT),
    ("precision_at_k", {"preset": "mask_lrp"}),
]
RATIO = "precision_at_k(preset=mask_lrp)"
SHARD = 32  # questions: what an interrupt loses
# Mask-LRP, table 2, BERT-base, Precision@20 in percent; AttCAT prints bars without numbers.
PRINTED = {
    "v1": {"rollout": 4.62, "raw_att": 36.33, "attcat": 31.44, "mask_lrp": 52.97},
    "v2": {"rollout": 6.15, "raw_att": 4.69, "attcat": 18.81, "mask_lrp": 27.03},
}


def metric_key(k: int) -> str:
    """The name Evaluation gives the count at K."""
    return "precision_at_k" if k == 20 else f"precision_at_k(k={k})"


def draw_questions(data: Path, most: int, seed: int) -> list[tuple[str, dict[str, Example]]]:
    """Questions by id, each with its reading in every set it stands in, in random order."""
    examples_by_id: dict[str, dict[str, Example]] = {}
    for name, file in SETS.items():
        ids = [str(row["id"]) for row in _read_rows(data / file)]
        for i, example in zip(ids, read_examples(data / file), strict=True):
            if example.spans:
                examples_by_id.setdefault(i, {})[name] = example
    return sorted(examples_by_id.items(), key=lambda pair: _hash_id(pair[0], seed))[:most]


def _read_rows(path: Path) -> list[dict[str, Any]]:
    import gzip

    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _hash_id(identity: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{identity}".encode(), digest_size=8).digest()


def measure_shard(
    explainer: Explainer, shard: Sequence[tuple[str, dict[str, Example]]], methods: Sequence[Any]
) -> list[dict[str, Any]]:
    """Explain a shard once and measure it in every set it stands in."""
    texts = [next(iter(sets.values())).text for _, sets in shard]
    attributions = explainer.explain(
        texts,
        method=list(methods),
        target=SpanTarget("argmax", "argmax"),
        long="truncate",
        progress=False,
    )
    share = len(methods)
    groups = [attributions[i * share : (i + 1) * share] for i in range(len(texts))]
    # The official code of AttCAT takes absolute values on SQuAD v2.
    groups = [[*group, *(absolute(a) for a in group if a.method == "attcat")] for group in groups]
    metrics = build_metrics(METRICS)
    lines = []
    for name in SETS:
        indices = [i for i, (_, sets) in enumerate(shard) if name in sets]
        set_attributions = [a for i in indices for a in groups[i]]
        spans = [shard[i][1][name].spans for i in indices]
        if not indices:
            continue
        marks = parse_spans(spans, [groups[i][0].row for i in indices])
        texts = [position for position, i in enumerate(indices) for _ in groups[i]]
        records = measure(explainer, set_attributions, metrics, texts, spans=marks, progress=False)
        lines += [
            {"set": name, "id": shard[indices[record.text_index]][0], "record": record.to_dict()}
            for record in shorten_method_names(records)[0]
        ]
    return lines


def load_finished(work: Path) -> dict[str, Evaluation]:
    """What stands in WORK by now, set by set."""
    records: dict[str, list[Record]] = {name: [] for name in SETS}
    numbers: dict[str, int] = {}  # shards count their own questions
    for path in sorted((work / "parts").glob("*.jsonl")):
        # splitlines() would also cut at characters such as U+2028, which JSON strings may hold.
        for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
            entry = json.loads(line)
            number = numbers.setdefault(entry["id"], len(numbers))
            record = replace(Record.from_dict(entry["record"]), text_index=number)
            method = record.method.replace(" | ", ", ")  # a bar would end a cell of the table
            records[entry["set"]].append(replace(record, method=method))
    return {
        name: Evaluation(tuple(set_records), build_metrics(METRICS), 0)
        for name, set_records in records.items()
        if set_records
    }


def render_page(evaluations: dict[str, Evaluation], provenance: str, command: str) -> str:
    """The page, in Markdown."""
    lines = ["# Precision@K on SQuAD", "", *INTRODUCTION, ""]
    for name, evaluation in evaluations.items():
        questions = len(evaluation.records) // len(evaluation.methods)
        lengths = _lengths(evaluation)
        lines += [f"## {TITLES[name]}: {questions:,} of {ALL[name]:,} questions", "",
                  f"Tokens of the answer among the K top-ranked; at most {lengths.mean():.2f}, the "
                  f"mean answer. Share at K = 20 in percent, ours and as printed in the Mask-LRP paper.", "",
                  "| method | " + " | ".join(f"K = {k}" for k in AT) + " | share at 20 | printed |",
                  "|---" * (len(AT) + 3) + "|"]  # fmt: skip
        for method, part in evaluation.by_method.items():
            cells = [_cell(part.summary[metric_key(k)], 2) for k in AT]
            printed = PRINTED[name].get(method, "")
            ratio = _cell(part.summary[RATIO], 1)
            lines.append(f"| {method} | " + " | ".join(cells) + f" | {ratio} | {printed} |")
        means = {
            m: part.summary[metric_key(20)]["mean"] for m, part in evaluation.by_method.items()
        }
        lines += [
            "",
            _describe_order(means, PRINTED[name]),
            "",
            *_describe_differences(evaluation),
            "",
        ]
    lines += ["![Precision@K of each method with 95 % intervals](precision.png)", "",
              "## How it was made", "", f"    {command}", "", provenance]  # fmt: skip
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "`tokenlight/qa`, 6 layers × 12 heads; the target is the sum of the highest start and the highest",
    "end logit, as in the official codes; contexts are truncated to 512 tokens. 95 % bootstrap",
    "intervals over questions. The papers' models are BERT-base, so only the order can be compared.",
    "The answerable questions of v2 dev are also in v1 dev, and the model is the same, so the second",
    "table is a subset of the first. `attcat, absolute` ranks by magnitude, as the official",
    "code does on v2; `random` is the baseline. The heads of `mask_lrp`: [qa.json](../heads/README.md).",
)


def _describe_order(means: dict[str, float], printed: dict[str, float]) -> str:
    """The order of the methods here and in the paper."""
    our_order = " > ".join(sorted(means, key=lambda method: -means[method]))
    paper_order = " > ".join(sorted(printed, key=lambda method: -printed[method]))
    return f"Order at K = 20: {our_order}. Mask-LRP, table 2, BERT-base: {paper_order}."


def _describe_differences(evaluation: Evaluation) -> list[str]:
    """mask_lrp less every other method on the same questions: what the intervals alone hide."""
    counts = {
        method: {
            record.text_index: record.measurements[metric_key(20)].value for record in part.records
        }
        for method, part in evaluation.by_method.items()
    }
    ours = counts["mask_lrp"]
    differences = []
    for method, theirs in counts.items():
        if method != "mask_lrp":
            gap = bootstrap_mean([ours[text] - theirs[text] for text in ours], seed=0)
            differences.append(f"{method} {gap.mean:+.2f} ({gap.low:+.2f} … {gap.high:+.2f})")
    return [
        f"At K = 20 `mask_lrp` minus each other method, paired by question: {', '.join(differences)}."
    ]


def _lengths(evaluation: Evaluation) -> np.ndarray:
    first = evaluation.by_method[evaluation.methods[0]]
    return np.array(
        [record.measurements[metric_key(20)].detail["length"] for record in first.records]
    )


def _cell(interval: dict[str, Any], digits: int) -> str:
    mean, low, high = (f"{interval[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean}<br><small>{low} … {high}</small>"


def draw(evaluations: dict[str, Evaluation], path: Path) -> None:
    """Counts over K, a line a method, a panel a set (AttCAT, figures 4 and 8 to 11)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(evaluations), figsize=(11, 4.4), sharey=True, squeeze=False
    )
    for panel, (name, evaluation) in zip(panels[0], evaluations.items(), strict=True):
        most = float(_lengths(evaluation).mean())
        panel.axhline(most, color="0.4", linestyle=":", linewidth=1)
        panel.text(50, most * 0.985, "mean answer ", ha="right", va="top", color="0.4")
        for method, part in evaluation.by_method.items():
            intervals = [part.summary[metric_key(k)] for k in AT]
            (line,) = panel.plot(
                AT, [interval["mean"] for interval in intervals], marker="o", label=method
            )
            low = [interval["low"] for interval in intervals]
            high = [interval["high"] for interval in intervals]
            panel.fill_between(AT, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        questions = len(evaluation.records) // len(evaluation.methods)
        panel.set(title=f"{TITLES[name]} ({questions:,})", xlabel="K", xticks=AT, ylim=(0, 5.4))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("answer tokens among the top K")
    panels[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=80, bbox_inches="tight")


def _describe_run(explainer: Explainer, seconds: float, processes: int) -> str:
    device = explainer.model.device
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"tokenlight {VERSION}, commit {commit or 'unknown'}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, "
        f"Python {platform.python_version()}, {device_name}, {torch.get_num_threads()} thread(s), "
        f"{seconds:.0f} s in the last run with {processes} process{'es' * (processes > 1)}."
    )


def main() -> None:
    """Explain, measure, and write the page and its figure."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--work", type=Path, required=True)
    options.add_argument("--out", type=Path, default=Path("docs/results/precision"))
    options.add_argument("--heads", type=Path, default=Path("docs/results/heads/qa.json"))
    options.add_argument("--questions", type=int, default=2000, help="of both sets together")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--device", default=None)
    options.add_argument("--share", default="0/1", help="i/n: every n-th shard, for n processes")
    options.add_argument("--only-rows", action="store_true", help="no page: rows into WORK only")
    options.add_argument("--report", action="store_true", help="only write what is finished")
    arguments = options.parse_args()
    methods: list[Any] = ["raw_att", "rollout", "attcat", "transatt", "random"]
    methods.insert(4, ("mask_lrp", {"heads": str(arguments.heads)}))
    explainer = Explainer.from_pretrained("tokenlight/qa", device=arguments.device)
    questions = draw_questions(arguments.data, arguments.questions, arguments.seed)
    start = time.monotonic()
    process_index, num_processes = map(int, arguments.share.split("/"))
    with progress_bar("questions", len(questions) // num_processes) as advance:
        for first in range(
            process_index * SHARD, 0 if arguments.report else len(questions), num_processes * SHARD
        ):
            shard = questions[first : first + SHARD]
            path = arguments.work / "parts" / f"{first:08d}.jsonl"
            if not path.exists():
                lines = [
                    json.dumps(row, ensure_ascii=False)
                    for row in measure_shard(explainer, shard, methods)
                ]
                write_text(path, "".join(line + "\n" for line in lines))
                write_text(
                    arguments.work / "made.txt",
                    _describe_run(explainer, time.monotonic() - start, num_processes),
                )
            advance(len(shard))
    if arguments.only_rows:
        return
    evaluations = load_finished(arguments.work)
    arguments.out.mkdir(parents=True, exist_ok=True)
    num_questions = len(
        {record.text_index for evaluation in evaluations.values() for record in evaluation.records}
    )
    command = f"python benchmarks/precision.py --data DATA --work WORK --questions {num_questions}"
    provenance = (arguments.work / "made.txt").read_text(encoding="utf-8")
    write_text(arguments.out / "README.md", render_page(evaluations, provenance, command))
    draw(evaluations, arguments.out / "precision.png")
    for name, evaluation in evaluations.items():
        print(TITLES[name], evaluation.format_table(), sep="\n", flush=True)


if __name__ == "__main__":
    main()
