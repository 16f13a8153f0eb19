"""The page of work that was slow, large or refused on a GPU says what its files say."""

from pathlib import Path

import cliffs_page
import pytest


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])


def test_the_page_is_generated_from_its_files():
    page = (cliffs_page.FOLDER / "cliffs.md").read_text("utf-8")
    assert page == cliffs_page.write_page(), "run benchmarks/cliffs_page.py"


def test_a_row_without_a_value_says_that_it_was_not_measured():
    rows = [{"work": "a", "found": "2", "goal": "1"}]
    *_, line = cliffs_page.write_table(rows)
    assert line == "| a | 2 | – | – | **not measured** | 1 |"


def test_a_cell_of_a_sweep_is_found_by_all_that_names_it():
    wanted = {"model": "BERT-base", "num_tokens": 8}
    other = {
        **wanted,
        "num_tokens": 16,
        "time_ratio": 9.0,
        "memory_ratio": 9.0,
        "is_replayed": True,
    }
    cell = {**wanted, "time_ratio": 0.5, "memory_ratio": 1.25, "is_replayed": True}
    assert cliffs_page.find_ratio([other, cell], wanted) == "0.50, memory 1.25, replayed"
    assert cliffs_page.find_ratio([other], wanted) == "–"
