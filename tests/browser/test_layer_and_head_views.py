"""Layers, heads, saved files and benchmarks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tokenlight
from tests.helpers.page_server import HEADS, TEXT, run_server
from tokenlight.plots.descriptions import describe_special_share, format_score, round_segment_shares


def test_the_layer_map_has_the_terms_of_the_library(visit, explainer):
    visit.open(text=TEXT, tab="layers")
    rows = visit.page.locator(".heat tbody tr").evaluate_all(
        "all => all.map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    attribution = explainer.explain(TEXT, "attcat")
    is_word = ~np.array(attribution.row.special_tokens_mask)
    assert len(rows) == len(attribution.layers) + 1
    for row, terms in zip(rows, attribution.layers, strict=False):
        values = [float(cell.replace("−", "-")) for cell in row]
        expected = [float(format_score(term).replace("−", "-")) for term in terms[is_word]]
        assert values == pytest.approx(expected, rel=2e-2, abs=1e-5)


def test_a_column_of_the_layer_map_pins_its_token(visit):
    visit.open(text=TEXT, tab="layers")
    visit.page.locator(".column:text-is('never')").click()
    visit.page.click("#tab-why")
    assert visit.page.locator("#why .token[aria-pressed=true]").all_text_contents() == ["never"]


def test_a_method_without_layers_offers_those_that_have_them(visit):
    visit.open(text=TEXT, method="gae", tab="layers")
    visit.page.click("#layers button:text-is('+ attcat')")
    visit.wait_for("#layers .column:text-is('never')")


def test_a_number_has_the_same_format_in_every_view(visit):
    """The score of a token, in its tip, in the pinned table and as the sum of its layers."""
    visit.open(text=TEXT, pin=5)
    name = visit.page.locator("#why .token[aria-pressed=true]").text_content()
    pinned = visit.page.locator(".pinned .number").first.text_content()
    visit.page.locator("#why .token[aria-pressed=true]").hover()
    assert f"{name}  {pinned}" in visit.page.locator("#tip").text_content()
    visit.page.click("#tab-layers")
    assert visit.page.locator(".heat .sum .pinned-column").text_content() == pinned


def test_the_head_map_marks_the_heads_of_the_file(visit):
    visit.open(text=TEXT, tab="heads")
    visit.page.locator(".head-grid").wait_for()
    mask = json.loads(HEADS.read_text())["mask"]
    for kind in ("syntactic", "positional"):
        expected = {
            f"{layer}-{head}"
            for layer, row in enumerate(mask[kind])
            for head, v in enumerate(row)
            if v
        }
        marked = visit.page.locator(f".head.{kind}").evaluate_all(
            "all => all.map(h => h.dataset.head)"
        )
        assert set(marked) == expected
    visit.page.locator(".head.syntactic").first.hover()
    assert "threshold" in visit.page.locator("#tip").text_content()


def test_a_head_shows_its_attention_in_this_text(visit, explainer):
    visit.open(text="Never dull.", tab="heads")
    visit.page.locator("[data-head='2-0']").click()
    visit.page.locator(".attention-map").wait_for()
    tokens = len(explainer.explain("Never dull.", "attcat"))
    looks = visit.page.locator(".attention-map .look").evaluate_all(
        "all => all.map(one => (Number(one.getAttribute('fill-opacity')) - 0.05) / 0.95)"
    )
    rows = np.array(looks).reshape(tokens, tokens)
    assert rows.sum(axis=1) == pytest.approx(np.ones(tokens), abs=0.01)
    assert "head=2-0" in visit.page.url


def test_the_heads_tab_is_missing_if_no_heads_were_measured(visit):
    visit.open(model="tokenlight/topics", text="Oil prices fell.", tab="heads")
    visit.page.locator("#tab-heads").wait_for(state="hidden")
    assert visit.page.locator("#tab-why").get_attribute("aria-selected") == "true"
    visit.page.locator("#tab-layers").click()
    visit.page.keyboard.press("ArrowRight")  # past the last tab that is shown
    assert visit.page.locator("#tab-why").get_attribute("aria-selected") == "true"
    visit.page.select_option("#model", "tokenlight/sentiment")
    visit.page.locator("#tab-heads").wait_for(state="visible")


def test_a_wide_table_says_that_it_scrolls_until_its_end_is_seen(visitor):
    visit = visitor(viewport={"width": 420, "height": 800})
    visit.open(text=TEXT, tab="layers")
    visit.page.locator("#layers .scroll.overflows").wait_for()
    visit.page.locator("#layers .scroll").evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    visit.page.locator("#layers .scroll:not(.overflows)").wait_for()
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    table = visit.page.locator("#layers .scroll:not(.overflows)")
    table.wait_for()
    assert table.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_a_pasted_list_becomes_a_report(visit):
    visit.open()
    visit.page.click("#several")
    visit.page.click("#explain")
    visit.page.get_by_text("The list is empty").wait_for()
    visit.page.fill("#field-list", "Never dull.\tpositive\n\nA bore.\tpositive")
    visit.page.click("#explain")
    visit.page.wait_for_url("**/report.html")
    texts = visit.page.locator("td.text-cell button").all_text_contents()
    assert texts == ["Never dull.", "A bore."]
    visit.page.check("[name=wrong]")
    assert visit.page.locator("td.text-cell button:visible").all_text_contents() == ["A bore."]
    visit.page.go_back()
    visit.page.locator("#fields textarea").wait_for()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, explainer):
    """A saved explanation and an evaluation, in a folder."""
    folder = tmp_path_factory.mktemp("shelf")
    attributions = explainer.explain(["Never dull.", "A bore."], ["attcat", "random"])
    attributions[0].save(folder / "never.json")
    explainer.evaluate(attributions, ["aopc"]).save(folder / "run")
    return folder


def test_saved_files_and_benchmarks_open_without_any_model(visitor, shelf):
    arguments = ["--open", str(shelf / "never.json"), "--open", str(shelf / "run")]
    with run_server(*arguments) as server:
        visit = visitor(server.wait())
        visit.page.goto(visit.address)
        visit.page.locator("#why .token").first.wait_for()
        assert visit.get_text() == "Never dull."
        assert visit.page.locator("#ask").is_hidden()
        visit.page.click("#tab-layers")
        visit.page.locator(".heat").wait_for()
        visit.page.click("#tab-game")
        assert "not loaded here" in visit.page.locator("#game").text_content()
        visit.page.get_by_role("button", name="run (benchmark)").click()
        summary = json.loads((shelf / "run" / "summary.json").read_text())
        table_text = visit.page.locator(".benchmark tbody").first.text_content()
        for method in ("attcat", "random"):
            assert (
                f"{summary['methods'][method]['aopc']['mean']:z.3f}".replace("-", "−") in table_text
            )
        assert visit.page.locator(".benchmark .curve").count() >= 2


def test_special_tokens_are_weighed_and_shown_in_the_layer_map(visit, explainer):
    page = visit.open(text=TEXT, tab="layers").page
    attribution = explainer.explain(TEXT, "attcat")
    message = describe_special_share(attribution, round_segment_shares(attribution)[-1])
    assert page.locator("#layers .on-special").text_content() == message
    assert "[SEP]" not in page.locator("#layers .column").all_text_contents()
    page.locator("#layers").get_by_label("special tokens").focus()
    page.keyboard.press("Space")
    columns = page.locator("#layers .column").all_text_contents()
    assert (columns[0], columns[-1]) == ("[CLS]", "[SEP]")
    assert "may exceed the scale" in page.locator("#layers").text_content()
    assert page.locator("#layers input:focus").count() == 1, "drawing anew keeps the focus"


@pytest.mark.parametrize("size", [1e-9, 1.7e-4, 1.0, 3e6])
def test_sums_of_any_size_are_on_one_line(visitor, explainer, tmp_path, size):
    attribution = explainer.explain(TEXT, "attcat")
    small = replace(attribution, scores=attribution.scores * size, layers=attribution.layers * size)
    small.save(tmp_path / "small.json")
    with run_server("--open", str(tmp_path / "small.json")) as server:
        page = visitor(server.wait()).page
        page.goto(f"http://127.0.0.1:{server.port}")
        page.locator("#why .token").first.wait_for()
        page.click("#tab-layers")
        cells = page.locator(".heat .sum > *").evaluate_all(
            """all => all.map(cell => {
              const range = document.createRange();
              range.selectNodeContents(cell);
              const inside = range.getBoundingClientRect();
              const wide = cell.getBoundingClientRect().width - inside.width;
              return [cell.textContent, range.getClientRects().length, wide >= 0];
            })"""
        )
        assert all(lines == 1 and fits for _, lines, fits in cells), cells
        assert all(len(text) < 12 for text, _, _ in cells)
        is_word = ~np.array(attribution.row.special_tokens_mask)
        sums = [float(text.replace("−", "-")) for text, _, _ in cells[1:]]
        assert sums == pytest.approx(small.layers.sum(axis=0)[is_word], rel=0.005)  # three digits


def test_no_page_ties_an_animation_to_scrolling():
    """Chromium 150 crashed in a third of the visits to the layers under a CSS scroll timeline."""
    folder = Path(tokenlight.__file__).parent
    sheets = [*folder.rglob("*.css"), *folder.rglob("*.css.j2")]
    assert sheets
    for sheet in sheets:
        assert "animation-timeline" not in sheet.read_text(), sheet.name
