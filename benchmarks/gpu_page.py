"""Write the page of one run on a GPU: two versions in turns, and work of several passes.

    python benchmarks/gpu_page.py [docs/results/cost/gpu]

The folder holds the files that these commands wrote; one that is missing is left out of the page:

    python benchmarks/before_after.py --before OLD/src --device cuda --json before_after.json
    python benchmarks/subset_cost.py --device cuda --model bert-base --json subset_bert.json
    python benchmarks/subset_cost.py --device cuda --json subset_embedded.json
    python benchmarks/stream_cost.py --random-llama 8b --device cuda --dtype bfloat16 -o stream.json
    python benchmarks/trust_cost.py --device cuda --json trust_cost.json
    python benchmarks/one_pass_cost.py --device cuda --cases bare METHOD --json memory_NAME.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenlight.files.write import write_text

DEFAULT_FOLDER = Path(__file__).parent.parent / "docs/results/cost/gpu"
GOALS = {"subset": 5.5, "stream": 2.5, "trust": 4.0}
SLOWER = 1.05  # a row above this ratio is called slower if the bare pass beside it is not
STREAM_COLUMNS = ("cached generation", "teacher-forced generation", "explained stream")


def describe_facts(facts: dict[str, Any]) -> str:
    """Return the facts that are known as one line."""
    known = {key: value for key, value in facts.items() if value not in (None, "unknown")}
    return ", ".join(f"{key} {value}" for key, value in known.items())


def format_times(milliseconds: list[float]) -> str:
    return " and ".join(f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in milliseconds)


def render_before_after(content: dict[str, Any]) -> Iterator[str]:
    """Yield the table of both versions, and which rows became slower."""
    facts = content["facts"]
    rows = [row for row in content["rows"] if "ratio" in row]
    methods = [row for row in rows if row["method"] != "bare"]
    bare_ratios = [row["ratio"] for row in rows if row["method"] == "bare"]
    slower = [row for row in methods if row["ratio"] > SLOWER]
    yield f"## {facts['before']} and {facts['commit']} in turns"
    yield ""
    yield f"{describe_facts(facts)}. One process per version, the same random models; every row"
    yield "was measured before, after, after, before, each a median of at least three calls after warm-up"
    yield "calls. Milliseconds."
    yield ""
    yield from summarize_ratios(methods, slower, bare_ratios)
    yield ""
    yield "| model | dtype | texts × tokens | method | before | after | after / before |"
    yield "|---|---|---|---|---|---|---|"
    for row in content["rows"]:
        cells = [row["model"], row["dtype"], row["shape"].replace("x", "×"), row["method"]]
        cells += [format_times(row["before"]), format_times(row["after"])]
        failures = [str(row[key]) for key in row if key.endswith("failed")]
        cells.append(f"{row['ratio']:.2f}" if "ratio" in row else "; ".join(failures))
        yield f"| {' | '.join(cells)} |"


def summarize_ratios(
    methods: list[dict[str, Any]], slower: list[dict[str, Any]], bare_ratios: list[float]
) -> Iterator[str]:
    """Yield how many rows became slower, and how large the noise is."""
    if methods:
        median = statistics.median(row["ratio"] for row in methods)
        yield f"**{len(methods) - len(slower)} of {len(methods)} rows take at most {SLOWER} × the time of"
        yield f"before; the median ratio is {median:.2f}.**"
    if bare_ratios:
        yield f"The bare pass, which did not change, has ratios from {min(bare_ratios):.2f} to"
        yield f"{max(bare_ratios):.2f}: that is the noise."
    if slower:
        names = [f"{row['model']} {row['dtype']} {row['shape']} {row['method']}" for row in slower]
        yield f"Slower: {'; '.join(names)}."


def render_subset(content: dict[str, Any]) -> Iterator[str]:
    """Yield what sub-texts cost beside one attnlrp."""
    yield f"## Sub-texts: {content['model']}, {content['shape'].replace('x', ' × ')} tokens"
    yield ""
    yield f"{describe_facts(content['facts'])}, float32, medians of {content['rounds']} rounds. Goal: at most"
    yield f"{GOALS['subset']} × for `subset_relevance` with 8 sub-texts."
    yield ""
    yield "| method | ms | × attnlrp | range |"
    yield "|---|---|---|---|"
    for row in content["rows"]:
        low, high = row["range"]
        yield (
            f"| {row['method']} | {1e3 * row['seconds']:.1f} | {row['ratio']:.2f} | {low:.2f}–{high:.2f} |"
        )


def render_stream(content: dict[str, Any]) -> Iterator[str]:
    """Yield what it costs to explain each token while it is generated."""
    yield "## A stream of explained tokens"
    yield ""
    yield f"{content['device']}, torch {content['torch']}, bfloat16, random weights. Milliseconds per token."
    yield f"Goal: at most {GOALS['stream']} × teacher-forced generation."
    yield ""
    yield "| model | prompt | tokens | cached | teacher-forced | stream | / teacher-forced | / cached |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in content["results"]:
        times = [f"{row['ms_per_token'][column]:.1f}" for column in STREAM_COLUMNS]
        cells = [row["model"], str(row["prompt_tokens"]), str(row["new_tokens"]), *times]
        cells += [f"{row['over_teacher_forced']:.2f}", f"{row['over_cached']:.2f}"]
        yield f"| {' | '.join(cells)} |"


def render_trust(content: dict[str, Any]) -> Iterator[str]:
    """Yield what a grade costs beside one explanation."""
    ratios = [row["ratio"] for row in content["rows"]]
    yield "## A grade of trust"
    yield ""
    yield f"`tokenlight/sentiment`, `attnlrp`, float32, {content['device']}. One sentence, graded alone:"
    yield f"the median is **{statistics.median(ratios):.1f} × one explanation**, the most {max(ratios):.1f} ×"
    yield f"(goal: at most {GOALS['trust']:g} ×). {len(content['methods'])} methods on one text together:"
    yield f"{content['several']:.1f} × one explanation."
    yield ""
    yield "| words | random orders | grade | explanation, ms | grade / explanation |"
    yield "|---|---|---|---|---|"
    for row in content["rows"]:
        cells = [row["words"], row["orders"], row["grade"], row["explanation_ms"], row["ratio"]]
        yield f"| {' | '.join(map(str, cells))} |"


def render_memory(content: dict[str, Any]) -> Iterator[str]:
    """Yield time and peak memory of one-pass methods."""
    yield "## Memory of one pass"
    yield ""
    yield f"{describe_facts(content['facts'])}, BERT-base, no CUDA graphs. The weights of the bare pass are"
    yield "trainable."
    yield ""
    yield "| texts × tokens | case | time / bare | peak memory / bare | MB |"
    yield "|---|---|---|---|---|"
    for row in content["rows"]:
        cells = [row["shape"].replace("x", "×"), row["case"], f"{row['time']:.2f}"]
        cells += [f"{row['memory']:.2f}", f"{row['bytes'] / 1e6:.0f}"]
        yield f"| {' | '.join(cells)} |"


def read_memory(folder: Path) -> dict[str, Any] | None:
    """Return the rows of all files of memory as one table; each has the bare pass of its own."""
    content: dict[str, Any] = {"rows": []}
    for path in sorted(folder.glob("memory_*.json")):
        measured = json.loads(path.read_text(encoding="utf-8"))
        content["facts"] = measured["facts"]
        for row in measured["tables"][0]["rows"]:
            if row not in content["rows"] and (row["case"] != "bare" or not content["rows"]):
                content["rows"].append(row)
    return content if content["rows"] else None


RENDERERS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "before_after.json": render_before_after,
    "subset_bert.json": render_subset,
    "subset_embedded.json": render_subset,
    "stream.json": render_stream,
    "trust_cost.json": render_trust,
}


def main() -> None:
    """Write README.md beside the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT_FOLDER)
    arguments = parser.parse_args()
    lines = ["# On a GPU: before and after, and work of several passes", ""]
    lines += [
        "Written by `python benchmarks/gpu_page.py` from the files beside it; the commands that measured"
    ]
    lines += ["stand in [the script](../../../../benchmarks/gpu_page.py).", ""]
    device = arguments.folder / "device.txt"
    if device.is_file():
        name, _, _ = device.read_text(encoding="utf-8").partition(",")
        lines += [f"{name}, no other job on it.", ""] if name.strip() else []
    notes = arguments.folder / "notes.md"
    if notes.is_file():
        lines += [notes.read_text(encoding="utf-8").strip(), ""]
    for name, render in RENDERERS.items():
        path = arguments.folder / name
        if path.is_file():
            lines += [*render(json.loads(path.read_text(encoding="utf-8"))), ""]
    memory = read_memory(arguments.folder)
    if memory is not None:
        lines += [*render_memory(memory), ""]
    write_text(arguments.folder / "README.md", "\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
