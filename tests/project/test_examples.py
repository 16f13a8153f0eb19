"""The examples run as they stand, are short, and say something."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import transformers

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))
LONGEST = 40  # lines
WRITES = {
    "02_compare_methods": "compare.html",
    "08_stream_many_texts": "scores.csv",
    "09_save_and_load": "explanations.json",
    "13_long_document": "document.html",
}


@pytest.fixture(autouse=True)
def _an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    was_shown = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()
    yield
    if was_shown:
        transformers.logging.enable_progress_bar()


def test_examples_are_numbered_without_a_gap():
    numbers = [int(path.stem.partition("_")[0]) for path in EXAMPLES]
    assert numbers == list(range(1, len(EXAMPLES) + 1))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(path, tmp_path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
    file_names = {path.name for path in tmp_path.iterdir()}
    assert file_names == ({WRITES[path.stem]} if path.stem in WRITES else set())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_a_docstring_and_at_most_forty_lines(path):
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= LONGEST
    assert source.startswith('"""')
