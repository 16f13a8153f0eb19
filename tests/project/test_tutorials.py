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


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial_runner", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell printed, without its numbers: their last digits differ from processor to processor."""
    outputs_shown = [output.get("text") or output["data"]["text/plain"] for output in outputs]
    return [" ".join(NUMBER.sub("#", text).split()) for text in outputs_shown]


@pytest.mark.parametrize("notebook_path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(notebook_path: Path) -> None:
    notebook = json.loads(notebook_path.read_text(encoding="utf-8"))
    run = runner()
    for cell, fresh in zip(run.code_cells(notebook), run.outputs(notebook), strict=True):
        assert words(fresh) == words(cell["outputs"]), "run: python docs/tutorials/run.py"


def test_there_is_a_tutorial_for_each_job() -> None:
    assert len(NOTEBOOKS) >= 6
    for path in NOTEBOOKS:
        assert path.stat().st_size < 100_000
