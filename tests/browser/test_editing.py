"""Edit and compare: the edited text's prediction and scores stand beside those of the text as it was."""

from __future__ import annotations

import pytest

TEXT = "The plot is thin, but never dull."
EDITED = "The plot is thin, but often dull."


def test_a_replaced_word_shows_prediction_and_scores_side_by_side(visit, explainer):
    page = visit.open(text=TEXT, tab="edit").page
    page.locator("#comparison .token", has_text="never").click()
    page.keyboard.type("often")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.locator(".edit-table").wait_for()
    assert page.locator("#edit-text").input_value() == EDITED
    assert page.locator(".edit-side .changed").all_text_contents() == ["never", "often"]

    attribution = explainer.explain(EDITED, "attcat", target="positive")
    row = page.locator(".edit-table tbody tr", has_text="positive").locator("td")
    shown_percent = float(row.nth(1).text_content().strip("<> %"))
    assert shown_percent == pytest.approx(100 * attribution.prediction.probabilities[1], abs=0.06)
    label = page.locator(".edit-side .token", has_text="often").get_attribute("aria-label")
    word_scores = dict(attribution.words())
    shown_score = float(label.split(", ")[1].replace("−", "-"))
    assert shown_score == pytest.approx(word_scores["often"], rel=0.006)


def test_a_button_removes_a_word_and_another_restores_the_text(visit):
    page = visit.open(text=TEXT, tab="edit").page
    page.get_by_role("button", name="without “never”").click()
    page.locator(".edit-table").wait_for()
    assert page.locator("#edit-text").input_value() == "The plot is thin, but dull."
    page.get_by_role("button", name="as it was").click()
    page.locator(".edit-table").wait_for(state="detached")
    assert page.locator("#edit-text").input_value() == TEXT
