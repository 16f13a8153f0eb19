"""The pages of measured results: made by the suite they name, or saying that it has changed since."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tokenlight.bench.suite import load_suite
from tokenlight.explaining.default_method import load_leaderboard, load_measured_results

PAGES = Path(__file__).parents[2] / "docs" / "results"
REPRODUCED = PAGES / "reproduction"
RECORDS = json.loads((REPRODUCED / "made.json").read_text(encoding="utf-8"))
STALE = "> **An earlier reading of its suite**: "


def test_every_page_of_the_reproduction_has_a_record():
    pages = {page.stem for page in REPRODUCED.glob("*.md")} - {"README"}
    assert pages == set(RECORDS)


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_names_its_commit_and_later_changes_of_its_suite(name):
    text = (REPRODUCED / f"{name}.md").read_text(encoding="utf-8")
    assert f"Made at commit `{RECORDS[name]['commit']}`." in text
    changed = load_suite(name).compute_digest() != RECORDS[name]["digest"]
    assert (STALE in text) == changed, (
        f"{name}: measure it again (benchmarks/reproduction.py), or say at its top what has changed"
    )


@pytest.mark.parametrize("name", [name for name in RECORDS if load_suite(name).kind == "table"])
def test_a_table_that_is_up_to_date_has_a_row_for_every_row_of_its_suite(name):
    text = (REPRODUCED / f"{name}.md").read_text(encoding="utf-8")
    rows = {
        method.group or method.label
        for entry in load_suite(name).methods
        for method in entry.expand(0)
    }
    plain = text.replace("\\", "")  # a page escapes signs of Markdown
    assert STALE in text or not {row for row in rows if f"| {row} |" not in plain}


def test_no_page_mentions_an_outdated_measurement():
    for page in PAGES.rglob("*.md"):
        assert "Measured before a reading was mended" not in page.read_text(encoding="utf-8"), page


def test_the_readme_claims_no_more_than_the_pages():
    readme = (PAGES.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "every table and figure" not in readme
    linked = re.findall(r"docs/results/reproduction/README\.md#([\w-]+)", readme)
    index = (REPRODUCED / "README.md").read_text(encoding="utf-8")
    heads = {
        re.sub(r"[^\w -]", "", head).lower().replace(" ", "-")
        for head in re.findall(r"^## (.+)$", index, re.M)
    }
    assert "what-is-missing" in linked
    assert set(linked) <= heads


def test_the_guide_quotes_what_was_measured():
    page = (PAGES.parent / "best.md").read_text(encoding="utf-8")
    text = load_measured_results()["kinds"]["text"]
    ((texts, sentence),) = re.findall(r"On ([\d,]+) texts AOPC is (.+?)\.\n", page, re.DOTALL)
    assert int(texts.replace(",", "")) == text["texts"]
    quoted = re.findall(r"(0\.\d\d) for\s+([a-z_]+(?: gradients)?)", sentence)
    assert len(quoted) >= 6
    for mean, name in quoted:
        assert float(mean) == round(text["means"][name.replace(" ", "_")], 2), name


def test_the_package_shows_the_figures_of_the_leaderboards_page_or_there_is_none():
    path = PAGES / "leaderboard.md"
    leaderboard = load_leaderboard()
    assert path.is_file() == ("ranks" in leaderboard)
    if not path.is_file():
        return
    page = path.read_text(encoding="utf-8")
    assert f"at commit `{leaderboard['commit']}`" in page
    for mean, low, high in leaderboard["ranks"].values():
        assert f" {mean:.1f} [{low:.1f}, {high:.1f}] |" in page


@pytest.fixture
def guide(monkeypatch):
    """The folder of the guide's scripts, for import."""
    monkeypatch.syspath_prepend(str(PAGES.parent))


@pytest.mark.usefixtures("guide")
def test_the_leaderboards_pages_are_drawn_from_its_data():
    import leaderboard_page

    board = leaderboard_page.load_board()
    assert board["commit"] == load_leaderboard()["commit"]
    ranks = {row["method"]: row["rank"] for row in board["methods"] if row["method"]}
    assert ranks == load_leaderboard()["ranks"]
    for name, content in leaderboard_page.render_files(board).items():
        page_content = (PAGES / name).read_text(encoding="utf-8")
        assert page_content == content, "run: python docs/leaderboard_page.py"


@pytest.mark.usefixtures("guide")
def test_the_picture_of_what_to_use_when_is_drawn_from_the_packages_tables():
    import which_method

    page_content = which_method.PATH.read_text(encoding="utf-8")
    assert which_method.draw(which_method.advise()) == page_content, (
        "run: python docs/which_method.py"
    )


def test_the_language_models_page_quotes_its_figures():
    page = (PAGES / "language_model" / "README.md").read_text(encoding="utf-8")
    results = json.loads((PAGES / "language_model" / "figures.json").read_text(encoding="utf-8"))
    lm = results["masked_lm"]
    rows = zip(lm["own_probability"], lm["own_top1"], strict=True)
    for layer, (chance, first) in enumerate(rows):
        assert f"| {layer} | {chance:.3f} | {first:.3f} |" in page
    for name, figures in {**results["tuned"]["figures"], **results["planted"]["figures"]}.items():
        assert f"| {name} | {figures['rows']:,} | {figures['steps']:,} |" in page
