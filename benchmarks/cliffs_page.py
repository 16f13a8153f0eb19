"""Write docs/results/cost/cliffs.md: work that was slow, large or refused on a GPU, and what it costs now.

    python benchmarks/cliffs_page.py

Rows, what was found at first, and values that were printed and kept in no file come from ``cliffs.json``;
all others from the files of benchmarks/shape_sweep.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenlight.files.write import write_text

FOLDER = Path("docs/results/cost")
SWEEPS = {"earlier sweep": "shape_sweep_before.json", "newest sweep": "shape_sweep.json"}
INTRODUCTION = """\
# Work that was slow, large or refused

Each row was found once on an NVIDIA H200; the other columns are measurements of the same work since.
Figures without a unit are shares of the bare model's forward and backward pass. The sweeps draw their
shapes at random, so that most of these rows are not among their cells. *Printed* values come from
`benchmarks/gpu_rows.py` at the commit beside them: no file of that run was kept.

    python benchmarks/cliffs_page.py
"""
NOTES = """\
The rows *found* are of 512 and 2,048 tokens of Llamas whose size was not noted for transatt and lrp, of 50
steps for integrated_gradients (the sweeps: 8), and of shapes that were measured by other scripts. Of data
sets there are only seconds for 4,000 texts (printed at commit 8ba9350, first and second call: attcat as a
stream 5.1 and 1.0 s, as a list 0.8 and 0.7 s, thirteen methods 3.8 and 1.0 s, transatt 3.1 and 2.5 s), with
no bare loop beside them.

Changes since these measurements were tested on a CPU only, and none of the figures above shows them:

- Tolerances follow the precision of products, up to four eager passes measure the noise, and a pass is
  replayed only under the autocast of its capture.
- The passes of integrated_gradients and its like may take a quarter of the free memory of a GPU where that is
  more than 4 GiB: for the 8B model and 512 tokens, eight passes share a batch where 130 GB are free, and four
  where 80 GB are (counted with a stand-in for the device). One at a time they took 12.49 × the bare pass.
- In half precision, relevance by rules (lrp, mask_lrp, transatt) reads and writes 14 to 17 % fewer bytes with
  10 to 14 % fewer operations ([counted](README.md#counted-without-a-gpu)), which will not suffice for 4.
- Python calls 27 to 33 % fewer functions before a replayed pass is launched ([counted](gpu/README.md)).
"""


def load_cells(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the commit of a sweep and its cells."""
    report = json.loads((FOLDER / name).read_text("utf-8"))
    return report["machine"]["commit"], report["cells"]


def find_ratio(cells: list[dict[str, Any]], wanted: dict[str, Any] | None) -> str:
    """Return time and memory of a cell of a sweep; a dash if it was not measured."""
    for cell in cells:
        if wanted is not None and wanted.items() <= cell.items() and cell["time_ratio"]:
            kind = ", replayed" if cell["is_replayed"] else ""
            return f"{cell['time_ratio']:.2f}, memory {cell['memory_ratio']:.2f}{kind}"
    return "–"


def write_table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Write one row per work, with every value there is."""
    sweeps = {label: load_cells(name) for label, name in SWEEPS.items()}
    heads = [f"{label} ({commit})" for label, (commit, _) in sweeps.items()]
    yield f"| work | found | {' | '.join(heads)} | printed | goal |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        ratios = [find_ratio(cells, row.get("cell")) for _, cells in sweeps.values()]
        printed = f"{row['printed']} ({row['commit']})" if "printed" in row else "–"
        newest = ratios[-1]
        if newest == "–" and printed == "–":
            printed = "**not measured**"
        yield f"| {row['work']} | {row['found']} | {' | '.join(ratios)} | {printed} | {row['goal']} |"


def write_page() -> str:
    """Return the page."""
    rows = json.loads((FOLDER / "cliffs.json").read_text("utf-8"))["rows"]
    files = ", ".join(f"[{label}]({name})" for label, name in SWEEPS.items())
    sources = f"Sources: {files}, [rows and printed values](cliffs.json)."
    return "\n".join([INTRODUCTION, *write_table(rows), "", sources, "", NOTES])


def main() -> None:
    """Write the page."""
    write_text(FOLDER / "cliffs.md", write_page())


if __name__ == "__main__":
    main()
