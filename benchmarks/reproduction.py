"""Every table and figure of the three papers on models of one's own: docs/results/reproduction/.

    python benchmarks/reproduction.py --models MODELS --data DATA --work WORK \
        --out docs/results/reproduction [--device cuda] [--limit 2000] [--jobs 6]

MODELS holds a folder for each data set with a fine-tuned checkpoint: sst2, imdb, yelp, amazon, qqp,
mnli (or snli), ag_news, squad_v1; each may hold heads.json, made with

    tokenlight heads MODELS/sst2 --conllu DATA/ud_ewt/en_ewt-ud-train.conllu.gz -o MODELS/sst2/heads.json

Without it the run makes one from 2,000 sentences. MODELS/lm, if there is one, is the masked language
model the classifiers were tuned from; without it the decoded suites run on the embedded models, which
have one. Suites run side by side (``--jobs`` processes); a run that was stopped goes on from WORK.

``--stage run`` makes WORK alone, ``--stage report`` the pages from it, on another machine if need be.
``--estimate`` prints what each suite asks of the model, and runs nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenlight import registry
from tokenlight.bench.report.claims import judge_claims
from tokenlight.bench.report.sentences import describe_order, describe_run
from tokenlight.bench.report.writers import RunReport
from tokenlight.bench.suite import Suite, find_suite, load_suite
from tokenlight.bench.suite_entries import DataSetEntry, MetricEntry
from tokenlight.files.write import write_text

SUITES = (  # the longest first, so that no long one is left for the end
    "decoded_table1b", "attcat_table1", "decoded_figures", "mask_lrp_table1", "decoded_layers",
    "planted_shortcuts", "leaderboard", "decoded_table1a", "hybrid_documents", "attcat_table1_code",
    "attcat_table5", "attcat_figures", "decoded_table2", "mask_lrp_table4", "mask_lrp_figures",
    "mask_lrp_table2", "attcat_table2", "mask_lrp_table3", "sst_signs",
)  # fmt: skip
# Every table takes --limit texts a data set. Pictures need fewer.
MAX_TEXTS = {
    "decoded_figures": 120, "mask_lrp_figures": 300, "leaderboard": 120, "decoded_layers": 200,
    "hybrid_documents": 150, "decoded_table1b": 160, "mask_lrp_table1": 160, "attcat_table5": 200,
}  # fmt: skip
# The model that stands in for the papers' on each data set; the first that is there.
STAND_IN_MODELS = {
    "sst2": ("sst2",), "imdb": ("imdb",), "yelp": ("yelp",), "amazon": ("amazon",), "qqp": ("qqp",),
    "mnli": ("mnli", "snli"), "ag_news": ("ag_news",), "squad_v1": ("squad_v1",),
    "squad_v2": ("squad_v2", "squad_v1"), "figure5": ("sst2",), "figure6": ("sst2",),
    "movies": ("imdb",), "squad_hybrid": ("squad_v1",), "figure7": ("mnli", "snli"),
    "figure12": ("sst2",), "figure13": ("yelp",), "figure14": ("squad_v1",), "a5_sst2": ("sst2",),
    "a5_ag_news": ("ag_news",), "masked_sst2": ("masked_sst2",), "masked_ag_news": ("masked_ag_news",),
}  # fmt: skip
# One of the papers' models is stood in for; the others (DistilBERT, GPT-2 …) are reported as not run.
REPLACED_MODELS = {"BERT-base", "RoBERTa-base", "Classifier", "Planted", "Reader"}
# Tokens of a batch: maps and relevances of 512 tokens × 12 × 12 heads take 10 GB at this size, and
# several workers share the device.
BATCH = {"cuda": 6144}
SLICE = {"cuda": 500}  # examples of a part: small ones leave the device idle
LAYERS = 12
# Workers of the suites with most parts: preparing a part is one core's work, the device waits.
WORKERS = {
    "mask_lrp_table1": 3, "attcat_table1": 3, "decoded_table1b": 3, "decoded_figures": 3,
    "decoded_layers": 2, "planted_shortcuts": 2, "leaderboard": 2,
}  # fmt: skip
# Mean tokens of a text, cut at 512: for the estimate alone.
LENGTHS = {
    "sst2": 26, "imdb": 290, "yelp": 150, "amazon": 50, "qqp": 31, "mnli": 40, "ag_news": 53,
    "squad_v1": 170, "squad_v2": 170, "figure5": 9, "figure6": 11, "movies": 500,
    "squad_hybrid": 330, "hybrid_documents/ag_news": 210, "figure7": 25, "figure12": 28, "figure13": 20,
    "figure14": 150, "a5_sst2": 16, "a5_ag_news": 50, "masked_sst2": 26, "masked_ag_news": 53,
    **{f"{name}_{kind}": length for name, length in (("sst2", 27), ("ag_news", 55))
       for kind in ("single", "context", "pair")},
}  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line."""

    models: Path | None
    data: Path
    work: Path
    out: Path
    device: str
    limit: int
    jobs: int
    only: tuple[str, ...]
    commit: str

    @property
    def suites(self) -> list[str]:
        """Names of the suites to run, in their order."""
        return [name for name in SUITES if not self.only or name in self.only]

    def count_texts(self, suite: str) -> int:
        """Return the largest number of texts per data set of a suite."""
        return min(self.limit, MAX_TEXTS.get(suite, self.limit))


def find_stand_in(options: RunOptions, data: str) -> Path | None:
    """Find the folder of the model for a data set."""
    if options.models is None:
        return None
    folders = (options.models / name for name in STAND_IN_MODELS.get(data, (f"planted_{data}",)))
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def build_command(options: RunOptions, name: str) -> list[str]:
    """Build the command ``tokenlight bench run`` of one suite."""
    suite = load_suite(name)
    arguments = [
        sys.executable, "-m", "tokenlight.cli", "bench", "run", name, "--offline", "--data",
        str(options.data), "--limit", str(options.count_texts(name)), "--device", options.device, "--workers",
        str(WORKERS.get(name, 1) if options.jobs > 1 else 1), "-o", str(options.work / name),
    ]  # fmt: skip
    kind = options.device.partition(":")[0]
    if kind in BATCH:
        arguments += ["--batch-tokens", str(BATCH[kind]), "--part-size", str(SLICE[kind])]
    lm = options.models / "lm" if options.models else None
    needs_lm = any(method.name.startswith("decoded") for method in suite.methods)
    if needs_lm and not (lm and lm.is_dir()):
        return arguments  # no language model of one's own: the embedded models have theirs
    for model in suite.models:
        for data in model.data:
            folder = find_stand_in(options, data)
            if folder is None or model.name not in REPLACED_MODELS:
                continue
            arguments += ["--model", f"{model.name}/{data}={folder}"]
            heads = folder / "heads.json"
            if suite.heads and heads.is_file():
                arguments += ["--heads", f"{model.name}/{data}={heads}"]
            if needs_lm:
                arguments += ["--lm", f"{model.name}/{data}={lm}"]
    return arguments


def run(options: RunOptions, name: str) -> tuple[str, int, float]:
    """Run one suite in a process of its own, whose output goes to WORK/NAME.log."""
    started = time.perf_counter()
    options.work.mkdir(parents=True, exist_ok=True)
    with (options.work / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.run(
            build_command(options, name),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    seconds = time.perf_counter() - started
    print(f"{name}: {'done' if process.returncode == 0 else f'exit {process.returncode}'}, {seconds:.0f} s",
          flush=True)  # fmt: skip
    return name, process.returncode, seconds


def run_all(options: RunOptions) -> dict[str, Any]:
    """Run all suites, ``jobs`` at a time, and write their seconds beside them."""
    started = time.perf_counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda name: run(options, name), options.suites))
    suite_times = {}
    for name, exit_code, seconds in results:
        suite_times[name] = {"exit": exit_code, "seconds": round(seconds, 1)}
    summary = {"seconds": round(time.perf_counter() - started, 1), "jobs": options.jobs,
             "device": options.device, "limit": options.limit, "suites": suite_times}  # fmt: skip
    write_text(options.work / "took.json", json.dumps(summary, indent=1))
    return summary


def write_pages(options: RunOptions) -> None:
    """Write the reports of all suites that were begun, and one page with links to them."""
    path = options.work / "took.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    device = summary.get("device", options.device)
    limit = summary.get("limit", options.limit)
    lines = [
        "# The papers' tables and figures, reproduced",
        "",
        "Each page shows our numbers with the published ones, which claims hold and which do not, and "
        "what can be compared. Made with:",
        "",
        "    python benchmarks/reproduction.py --models MODELS --data DATA --work WORK "
        f"--out docs/results/reproduction --device {device} --limit {limit}",
        "",
    ]
    if summary:
        lines += [f"All {len(summary['suites'])} suites, {summary['jobs']} at a time: "
                  f"{summary['seconds']:.0f} s.", ""]  # fmt: skip
    lines += [*describe_models(options), "| suite | claim | here |", "|---|---|---|"]
    run_notes = []
    provenance_path = options.out / "made.json"
    provenance = (
        json.loads(provenance_path.read_text(encoding="utf-8")) if provenance_path.is_file() else {}
    )
    for name in options.suites:
        folder = options.work / name
        if not (folder / "run.json").is_file():
            continue
        path = options.out / name
        update_claims(folder, name)
        report = RunReport.from_folder(folder)
        report.write("md", output=path.with_suffix(".md"), figures=path)
        provenance[name] = {"commit": options.commit, "digest": report.suite.compute_digest()}
        with path.with_suffix(".md").open("a", encoding="utf-8") as page:
            page.write(f"\nMade at commit `{options.commit}`.\n")
        report.write("csv", output=path.with_suffix(".csv"))
        link = f"[{report.suite.title or name}]({name}.md)"
        for claim, verdict, _ in judge_claims(report):
            lines.append(f"| {link} | {claim} | {verdict} |")
            link = ""
        seconds = summary.get("suites", {}).get(name, {}).get("seconds")
        duration = f" {seconds:.0f} s." if seconds else ""
        run_notes += [f"- **{name}** ([numbers]({name}.csv)):{duration} "
                  + " ".join([*describe_run(report), describe_order(report)])]  # fmt: skip
        print(f"{name}: reported", flush=True)
    write_text(provenance_path, json.dumps(provenance, indent=1) + "\n")
    index = options.out / "README.md"
    lines += ["", *read_written_sections(index), "## What was run", "", *run_notes, ""]
    write_text(index, "\n".join(lines))


def update_claims(folder: Path, name: str) -> None:
    """Give a run the claims, notes and figures that its suite has today, where it measures the same."""
    begun = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if load_suite(name).compute_digest() == begun["digest"]:
        write_text(folder / "suite.yaml", find_suite(name).read_text(encoding="utf-8"))


def read_written_sections(index: Path) -> list[str]:
    """Read what people wrote into the page: what is missing, and the reason found for each claim."""
    text = index.read_text(encoding="utf-8") if index.is_file() else ""
    _, heading, section = text.partition("## What is missing")
    return [heading + section.partition("## What was run")[0]] if heading else []


def describe_models(options: RunOptions) -> list[str]:
    """Describe the scores of the stand-in models, if their training left its figures."""
    path = options.models / "figures.json" if options.models else None
    if path is None or not path.is_file():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "The models replace the papers' BERT-base; they were trained with `python -m training.finetune` "
        f"({content['measured']}). Everything computes in float32. The heads of mask_lrp come from the "
        "training part of UD English EWT.",
        "",
        "| data set | rows learned | dev rows | reached |",
        "|---|---|---|---|",
    ]
    for name, figures in content["figures"].items():
        scores = []
        for key in ("accuracy", "f1", "exact_match"):
            if key in figures:
                scores.append(f"{key.replace('_', ' ')} {figures[key]:.3f}")
        reached = ", ".join(scores)
        lines.append(f"| {name} | {figures['rows']:,} | {figures['dev_rows']:,} | {reached} |")
    return [*lines, ""]


def count_measuring_passes(metrics: list[MetricEntry]) -> float:
    """Count the passes that measuring one explanation takes, in lengths of the text.

    Metrics that need the same changed texts share their passes.
    """
    passes_by_variants: dict[Any, float] = {}
    for metric in metrics:
        built = registry.build("metrics", metric.name, metric.options)
        if built.needs_model:
            variant_options = [
                getattr(built, name, metric.name) for name in ("perturb", "grid", "order", "side")
            ]
            # Deleting shortens the text: half of it is there in the mean.
            passes = max(1, len(built.curve_points)) * getattr(built, "num_samples", 1)
            passes_by_variants[tuple(variant_options)] = passes * (
                0.5 if variant_options[0] == "delete" else 1.0
            )
    return sum(passes_by_variants.values())


def count_explaining_passes(name: str, length: float) -> float:
    """Count the passes of one explanation; a backward counts as two forwards."""
    passes_by_method = {"shapley": 25 * length, "occlusion": length, "lime": 26, "smooth": 31,
               "integrated": 31, "integrated_gradients": 77, "gradient_shap": 17,
               "deeplift_shap": 15, "value_zeroing": length}  # fmt: skip
    relevance = ("lrp", "partial_lrp", "transatt", "mask_lrp", "alti")
    return passes_by_method.get(name, 9.0 if name in relevance else 3.0)


def estimate_tokens(options: RunOptions, suite: Suite) -> Iterator[tuple[str, float]]:
    """Yield each data set of a suite with the millions of tokens that go through the model."""
    for data in suite.data:
        texts = min(
            options.count_texts(suite.name), data.size or options.limit, _count_examples(data)
        )
        length = LENGTHS.get(f"{suite.name}/{data.name}") or LENGTHS[data.name]
        cost = count_measuring_passes(
            [m for m in suite.metrics if not m.data or data.name in m.data]
        )
        passes_per_text = 0.0
        for method in suite.methods:
            if method.data and data.name not in method.data:
                continue
            for entry in method.expand(LAYERS):
                passes_per_text += cost + count_explaining_passes(entry.name, length)
        yield data.name, texts * length * passes_per_text / 1e6


def _count_examples(data: DataSetEntry) -> int:
    """Return the number of texts of a small data set; of a large one, more than any limit."""
    if data.name.startswith(("figure", "a5_")):
        return 4
    return {"sst2": 872, "squad_hybrid": 250}.get(data.name, 10**9)


def print_estimate(options: RunOptions, speed: float) -> None:
    """Print tokens and seconds of every suite at ``speed`` million tokens a second."""
    all_tokens = 0.0
    for name in options.suites:
        tokens_by_data = dict(estimate_tokens(options, load_suite(name)))
        total = sum(tokens_by_data.values())
        all_tokens += total
        details = ", ".join(f"{data} {tokens:.0f}" for data, tokens in tokens_by_data.items())
        print(f"{name:18} {total:6.0f} M tokens {total / speed:6.0f} s   ({details})")
    print(
        f"{'together':18} {all_tokens:6.0f} M tokens {all_tokens / speed:6.0f} s "
        f"at {speed:g} M tokens a second"
    )


def read_commit() -> str:
    """Return the short name of the commit that is checked out; empty outside a repository."""
    git_command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(git_command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Estimate, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=Path, help="folder of checkpoints; else the embedded models"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, default=2000, help="texts a data set")
    parser.add_argument("--jobs", type=int, default=6, help="suites side by side")
    parser.add_argument("--only", action="append", default=[], choices=SUITES, help="these suites")
    parser.add_argument("--stage", choices=("run", "report", "all"), default="all")
    parser.add_argument("--commit", help="that the run was made at; else the one checked out")
    parser.add_argument("--estimate", action="store_true")
    parser.add_argument("--speed", type=float, default=3.0, help="million tokens a second")
    arguments = parser.parse_args()
    options = RunOptions(
        arguments.models and arguments.models.resolve(), arguments.data.resolve(), arguments.work.resolve(),
        arguments.out.resolve(), arguments.device, arguments.limit, arguments.jobs, tuple(arguments.only),
        arguments.commit or read_commit(),
    )  # fmt: skip
    if arguments.estimate:
        print_estimate(options, arguments.speed)
        return
    if arguments.stage in ("run", "all"):
        summary = run_all(options)
        print(f"all suites: {summary['seconds']:.0f} s", flush=True)
    if arguments.stage in ("report", "all"):
        write_pages(options)


if __name__ == "__main__":
    main()
