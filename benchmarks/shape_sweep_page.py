"""Draw the heat maps of benchmarks/shape_sweep.py and write the page docs/results/cost/shapes.md.

    python benchmarks/shape_sweep_page.py docs/results/cost/shape_sweep_before.json

Each file becomes two pictures beside it, time and memory, and a section of the page, in the order given.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenlight.files.write import write_text

PAGE = Path("docs/results/cost/shapes.md")
BATCH_SIZES = (1, 8, 16, 64, 256)
LENGTHS = (16, 32, 64, 128, 384, 512, 1024, 4096)
DTYPES = ("bf16", "fp16", "fp32", "tf32")
METHODS = ("attcat", "attnlrp", "gae", "13 methods", "lrp", "transatt", "IG, 8 steps")
# The most time, in bare passes, that a method should take; eight steps are eight passes.
TIME_GOALS = {
    "attcat": 1.25,
    "attnlrp": 1.25,
    "gae": 1.25,
    "13 methods": 2.0,
    "lrp": 4.0,
    "transatt": 4.0,
    "IG, 8 steps": 8.0,
}
MEMORY_GOAL = 1.15
COLOUR_RANGE = 0.25, 4.0
INTRODUCTION = """\
# Cost over shapes

Time and memory of whole `explain()` calls over those of the bare model's forward and backward pass, for many
shapes, dtypes and methods in one process: cells come in random order, those of all dtypes mixed, beside
4 GiB that the process holds for other work. Models have random weights. Time is the median after the first
calls of a shape; memory is the peak of its first call above what was allocated before. *tf32* is float32 with
`torch.set_float32_matmul_precision("high")`. *IG* is integrated_gradients; its steps share a batch where
memory allows it, so that its memory is a choice and has no goal. A cell is *replayed* where its pass is
[one CUDA graph](../../adr/0016-replay-repeated-shapes-with-cuda-graphs.md), else *eager*.

    python benchmarks/shape_sweep.py --device cuda --minutes 6 --json docs/results/cost/shape_sweep.json
    python benchmarks/shape_sweep_page.py \\
      docs/results/cost/shape_sweep_before.json docs/results/cost/shape_sweep.json

Goals: at most 1.25 bare passes for attcat, attnlrp and gae, 2 for the thirteen one-pass methods together, 4
for lrp and transatt, 8 for eight steps; at most 1.15 times the memory. [What is met, what is not and
why](README.md#over-all-shapes).

The newer run explains a logit of a language model, like the bare pass; the older one contrasted the token
with its alternatives. Both runs also call a cell *eager* if its graph took the place of all others,
because the script counted graphs before and after; it now compares them.
"""


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw heat maps of time and memory of the encoder, dtypes down and methods across."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    cells = [cell for cell in report["cells"] if cell["model"] == "BERT-base"]
    for field, label in (("time_ratio", "time"), ("memory_ratio", "memory")):
        figure, all_axes = pyplot.subplots(
            len(DTYPES), len(METHODS), figsize=(2.5 * len(METHODS), 2.2 * len(DTYPES)),
            squeeze=False, layout="constrained",
        )  # fmt: skip
        for axes_row, dtype_name in zip(all_axes, DTYPES, strict=True):
            for axes, method in zip(axes_row, METHODS, strict=True):
                chosen = []
                for cell in cells:
                    if cell["dtype"] == dtype_name and cell["method"] == method:
                        chosen.append(cell)
                draw_map(axes, chosen, field)
                axes.set_title(f"{method}, {dtype_name}", fontsize=9)
        for axes in all_axes[:, 0]:
            axes.set_ylabel("texts", fontsize=8)
        for axes in all_axes[-1]:
            axes.set_xlabel("tokens", fontsize=8)
        machine = report["machine"]
        figure.suptitle(
            f"{label} of explain() over the bare pass, BERT-base, {machine['device']}, commit "
            f"{machine['commit']} (empty: not measured)",
            fontsize=11,
        )
        figure.savefig(path.with_name(f"{path.stem}_{label}.png"), dpi=100)
        pyplot.close(figure)


def draw_map(axes: Any, cells: list[dict[str, Any]], field: str) -> None:
    """Draw one heat map, texts down and tokens across, each cell with its number."""
    from matplotlib.colors import LogNorm

    grid = [[float("nan")] * len(LENGTHS) for _ in BATCH_SIZES]
    for cell in cells:
        value = cell[field]
        if value is None:
            continue
        row = BATCH_SIZES.index(cell["num_texts"])
        column = LENGTHS.index(cell["num_tokens"])
        grid[row][column] = value
        text = f"{value:.2f}" if value < 10 else f"{value:.0f}"
        is_dark = not 0.3 < value < 3
        colour = "white" if is_dark else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
    axes.imshow(grid, cmap="RdYlGn_r", norm=LogNorm(*COLOUR_RANGE), aspect="auto")
    axes.set_xticks(range(len(LENGTHS)), map(str, LENGTHS), fontsize=6)
    axes.set_yticks(range(len(BATCH_SIZES)), map(str, BATCH_SIZES), fontsize=6)


def has_memory_goal(cell: dict[str, Any]) -> bool:
    """Return whether the memory of a cell is held against the goal."""
    return not cell["method"].startswith("IG")


def is_slow(cell: dict[str, Any]) -> bool:
    """Return whether a cell takes longer than its goal."""
    return (cell["time_ratio"] or 0) > TIME_GOALS[cell["method"]]


def is_large(cell: dict[str, Any]) -> bool:
    """Return whether a cell takes more memory than the goal."""
    return has_memory_goal(cell) and (cell["memory_ratio"] or 0) > MEMORY_GOAL


def write_summary(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Write one row per kind of model and method."""
    columns = (
        "model", "method", "cells", "median time", "largest time", "above the goal",
        "largest memory", "above 1.15",
    )  # fmt: skip
    yield f"| {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|"
    kinds = dict.fromkeys((cell["model"], cell["method"]) for cell in cells)
    for model, method in sorted(kinds, key=lambda kind: (kind[0], METHODS.index(kind[1]))):
        chosen = []
        for cell in cells:
            is_measured = cell["time_ratio"] is not None
            if (cell["model"], cell["method"]) == (model, method) and is_measured:
                chosen.append(cell)
        if not chosen:
            continue
        times = [cell["time_ratio"] for cell in chosen]
        memory = max(cell["memory_ratio"] or 0 for cell in chosen)
        num_large = str(sum(map(is_large, chosen))) if has_memory_goal(chosen[0]) else ""
        yield (
            f"| {model} | {method} | {len(chosen)} | {statistics.median(times):.2f} | {max(times):.2f} | "
            f"{sum(map(is_slow, chosen))} | {memory:.2f} | {num_large} |"
        )


def write_misses(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Write the cells above a goal, the slowest of each method first."""
    misses = [cell for cell in cells if is_slow(cell) or is_large(cell)]
    misses.sort(key=lambda cell: (METHODS.index(cell["method"]), -(cell["time_ratio"] or 0)))
    if not misses:
        yield "No cell is above its goal."
        return
    yield f"{len(misses)} of {len(cells)} cells are above a goal (bold)."
    yield ""
    yield "| method | model | dtype | texts × tokens | time | memory | pass |"
    yield "|---|---|---|---|---|---|---|"
    for cell in misses:
        time_text = f"{cell['time_ratio'] or 0:.2f}"
        memory_text = f"{cell['memory_ratio'] or 0:.2f}"
        if is_slow(cell):
            time_text = f"**{time_text}**"
        if is_large(cell):
            memory_text = f"**{memory_text}**"
        kind = "replayed" if cell["is_replayed"] else "eager"
        yield (
            f"| {cell['method']} | {cell['model']} | {cell['dtype']} | {cell['num_texts']}×"
            f"{cell['num_tokens']} | {time_text} | {memory_text} | {kind} |"
        )


def write_section(report: dict[str, Any], path: Path) -> Iterator[str]:
    """Write the section of one sweep."""
    machine = report["machine"]
    yield f"## Commit {machine['commit']}"
    yield ""
    yield (
        f"{machine['device']}, torch {machine['torch']}, transformers {machine['transformers']}; "
        f"{len(report['cells'])} cells ([all of them]({path.name}); its `tf32` is the setting of the process "
        "before the first cell)."
    )
    yield ""
    for label in ("time", "memory"):
        yield f"![Heat maps of {label} over the bare pass]({path.stem}_{label}.png)"
        yield ""
    yield from write_summary(report["cells"])
    yield ""
    yield from write_misses(report["cells"])


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="files of shape_sweep.py, oldest first")
    parser.add_argument("--notes", type=Path, help="text for the end of the page")
    options = parser.parse_args()
    lines = [INTRODUCTION]
    # The newest measurement comes first.
    for path in reversed(options.files):
        report = json.loads(path.read_text("utf-8"))
        draw(report, path)
        lines += write_section(report, path)
        lines.append("")
    if options.notes:
        lines.append(options.notes.read_text("utf-8").rstrip())
        lines.append("")
    write_text(PAGE, "\n".join(lines))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
