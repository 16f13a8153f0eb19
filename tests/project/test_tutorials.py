"""The tutorials run, and print what they show."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
# Not %reset, which takes attributes of __main__ that processes need to start.
FORGET_NAMES = """
for name in [name for name in globals() if not name.startswith("_")]:
    if name not in ("In", "Out", "exit", "quit", "get_ipython", "open"):
        del globals()[name]
"""
MAX_CODE_WIDTH = 80  # what a code block of the guide shows at once on a laptop


def load_runner() -> Any:
    return load_script(FOLDER / "run.py")


def load_script(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_words(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell printed, without its numbers: their last digits differ from processor to processor."""
    outputs_shown = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    return [" ".join(NUMBER.sub("#", text).split()) for text in outputs_shown]


def read_notebook(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(path: Path) -> None:
    notebook = read_notebook(path)
    run = load_runner()
    package = run.missing_package(path.stem)
    if package:
        pytest.skip(f"{package} is not installed: see tests/QUARANTINES.md")
    for cell, fresh in zip(run.code_cells(notebook), run.outputs(notebook), strict=True):
        assert read_words(fresh) == read_words(cell["outputs"]), "run: python docs/tutorials/run.py"


@pytest.mark.extras
def test_jupyter_runs_every_tutorial_in_one_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel starts once, for all of them; each begins without the names of the last."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    run = load_runner()
    # The runner asks for figures without a screen, and the kernel would inherit that.
    monkeypatch.delenv("MPLBACKEND")
    paths = [path for path in NOTEBOOKS if not run.missing_package(path.stem)]
    combined = nbformat.v4.new_notebook()
    for path in paths:
        combined.cells.append(nbformat.v4.new_code_cell(FORGET_NAMES))
        combined.cells += [
            nbformat.v4.new_code_cell("".join(cell["source"]))
            for cell in run.code_cells(read_notebook(path))
        ]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(combined, timeout=600, resources=resources).execute()
    figures = [
        output
        for cell in combined.cells
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(figures) >= len(paths) - 1, "Jupyter draws the figures too"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_goal_a_picture_a_mistake_and_exercises(path: Path) -> None:
    """Each says what it takes and gives, draws something, shows a mistake, and ends in exercises."""
    notebook = read_notebook(path)
    prose = "\n".join(
        "".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"
    )
    assert prose.startswith("# ")
    for part in ("**Ten minutes. You bring**", "**You leave with**", "## Exercises", "<summary>"):
        assert part in prose, part
    assert re.search(r"[Mm]istakes? (people make|\d)", prose)
    outputs = [output for cell in load_runner().code_cells(notebook) for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_guide_shows_a_tutorial_without_cutting_its_code(path: Path) -> None:
    for cell in load_runner().code_cells(read_notebook(path)):
        longest = max(map(len, "".join(cell["source"]).splitlines()))
        assert longest <= MAX_CODE_WIDTH
        assert cell["source"], "a cell without code"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_guide_breaks_long_lines_that_a_tutorial_prints(path: Path) -> None:
    notebooks = load_script(FOLDER.parent / "notebooks.py")
    printed_blocks = re.findall(
        r"^```text\n(.*?)^```", notebooks.build_page(path), flags=re.S | re.M
    )
    assert printed_blocks
    for line in "".join(printed_blocks).splitlines():
        assert len(line) <= notebooks.MAX_COLUMNS
    stored = [read_words(cell["outputs"]) for cell in load_runner().code_cells(read_notebook(path))]
    shown = " ".join(NUMBER.sub("#", "".join(printed_blocks)).split())
    for outputs in stored:
        for output in outputs:
            assert output in shown or "<" in output  # a figure has no text


def test_there_is_a_tutorial_for_each_job() -> None:
    assert len(NOTEBOOKS) >= 8
    for path in NOTEBOOKS:
        assert path.stat().st_size < 200_000
