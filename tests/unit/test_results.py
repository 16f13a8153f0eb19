"""The pages of measured results: made by the suite they name, or saying that it has changed since."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tokenlight.bench.suite import load
from tokenlight.explaining.default import measured, table

PAGES = Path(__file__).parents[2] / "docs" / "results"
REPRODUCED = PAGES / "reproduction"
MADE = json.loads((REPRODUCED / "made.json").read_text(encoding="utf-8"))
STALE = "> **An earlier reading of its suite**: "


def test_every_page_of_the_reproduction_has_a_record():
    pages = {page.stem for page in REPRODUCED.glob("*.md")} - {"README"}
    assert pages == set(MADE)


@pytest.mark.parametrize("name", MADE)
def test_a_page_names_its_commit_and_says_where_its_suite_has_changed_since(name):
    text = (REPRODUCED / f"{name}.md").read_text(encoding="utf-8")
    assert f"Made at commit `{MADE[name]['commit']}`." in text
    changed = load(name).digest() != MADE[name]["digest"]
    assert (STALE in text) == changed, (
        f"{name}: measure it again (benchmarks/reproduction.py), or say at its top what has changed"
    )


@pytest.mark.parametrize("name", [name for name in MADE if load(name).kind == "table"])
def test_a_table_that_is_up_to_date_has_a_row_for_every_row_of_its_suite(name):
    text = (REPRODUCED / f"{name}.md").read_text(encoding="utf-8")
    rows = {one.group or one.label for entry in load(name).methods for one in entry.expanded(0)}
    plain = text.replace("\\", "")  # a page escapes signs of Markdown
    assert STALE in text or not {row for row in rows if f"| {row} |" not in plain}


def test_no_page_speaks_of_an_older_measurement_in_passing():
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


def test_the_readme_quotes_what_was_measured():
    readme = (PAGES.parents[1] / "README.md").read_text(encoding="utf-8")
    text = table()["kinds"]["text"]
    ((texts, said),) = re.findall(r"On ([\d,]+) texts AOPC is (.+?)\.\n", readme, re.DOTALL)
    assert int(texts.replace(",", "")) == text["texts"]
    quoted = re.findall(r"(0\.\d\d) for\s+([a-z_]+(?: gradients)?)", said)
    assert len(quoted) >= 6
    for mean, name in quoted:
        assert float(mean) == round(text["means"][name.replace(" ", "_")], 2), name


def test_the_package_shows_the_figures_of_the_leaderboards_page_or_there_is_none():
    place, told = PAGES / "leaderboard.md", measured()
    assert place.is_file() == ("ranks" in told)
    if not place.is_file():
        return
    page = place.read_text(encoding="utf-8")
    assert f"at commit `{told['commit']}`" in page
    for mean, low, high in told["ranks"].values():
        assert f" {mean:.1f} [{low:.1f}, {high:.1f}] |" in page


def test_the_language_models_page_quotes_its_figures():
    page = (PAGES / "language_model" / "README.md").read_text(encoding="utf-8")
    told = json.loads((PAGES / "language_model" / "figures.json").read_text(encoding="utf-8"))
    lm = told["masked_lm"]
    rows = zip(lm["own_probability"], lm["own_top1"], strict=True)
    for layer, (chance, first) in enumerate(rows):
        assert f"| {layer} | {chance:.3f} | {first:.3f} |" in page
    for name, found in {**told["tuned"]["figures"], **told["planted"]["figures"]}.items():
        assert f"| {name} | {found['rows']:,} | {found['steps']:,} |" in page
