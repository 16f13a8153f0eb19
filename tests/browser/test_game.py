"""The game: a move asks nobody, and every number is what the model says of the changed text."""

from __future__ import annotations

import numpy as np
import pytest

from tests.browser.conftest import TEXT
from tokenlight.capture.perturbation import Original, StandIns, stream_logits
from tokenlight.metrics._ranking import ranked_among


def probability(explainer, attribution, hidden) -> float:
    """P(positive) of the text with these tokens hidden, asked of the model itself."""
    original = Original(attribution.row, StandIns.of(explainer.live, explainer.tokenizer))
    (logits,) = stream_logits(explainer.live, [original.hidden(hidden)])
    chances = np.exp(logits - logits.max())
    return float(chances[1] / chances.sum())


def ready(visit, method="attcat"):
    visit.open(text=TEXT, method=method, tab="game")
    visit.page.locator("#game .keys .band").first.wait_for()  # random orders are there too
    return visit.page


def number(page, method="attcat") -> float:
    text = page.locator(f"#game [data-method={method}] .big-number").text_content()
    return float(text.strip("<> %"))


def gone(page, method="attcat") -> list[str]:
    return page.locator(f"#game [data-method={method}] .gone").all_text_contents()


def test_arrow_keys_hide_tokens_and_the_number_is_the_models(visit, explainer):
    page = ready(visit)
    attribution = explainer.explain(TEXT, "attcat")
    places = np.flatnonzero(~np.array(attribution.row.special))
    order = ranked_among(attribution.scores, places)
    page.locator("#slider").focus()
    asked = visit.asked()
    for step in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        page.locator(f".count:text-is('{step} of {len(order)} tokens hidden')").wait_for()
        assert sorted(gone(page)) == sorted(attribution.tokens[i] for i in order[:step])
        expected = 100 * probability(explainer, attribution, order[:step])
        assert number(page) == pytest.approx(expected, abs=0.11)
    assert visit.asked() == asked, "a move must not ask the server"
    page.wait_for_url("**step=3**")


def test_the_mouse_drags_the_slider_and_the_curve(visit):
    page = ready(visit)
    box = page.locator("#slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=8)
    page.mouse.up()
    assert page.locator(".count").text_content() == "7 of 14 tokens hidden"
    assert len(gone(page)) == 7
    chart = page.locator("#game .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert page.locator(".count").text_content() == "14 of 14 tokens hidden"


def test_revealing_starts_from_nothing(visit, explainer):
    page = ready(visit)
    page.locator("#game").get_by_role("button", name="Reveal the strongest first").click()
    attribution = explainer.explain(TEXT, "attcat")
    places = np.flatnonzero(~np.array(attribution.row.special))
    assert len(gone(page)) == len(places)
    expected = 100 * probability(explainer, attribution, places)
    assert number(page) == pytest.approx(expected, abs=0.11)


def test_every_method_plays_against_the_same_chance(visit):
    page = ready(visit, ["attcat", "gae", "random"])
    assert page.locator("#game .board-row h3").count() == 4  # and you
    notes = page.locator("#game .board-row .meter-note").all_text_contents()
    assert len(set(notes)) == 1
    assert notes[0].startswith("random order:")
    assert page.locator("#game .chart .band").count() == 1
    assert page.locator("#game .chart .curve").count() == 3


def test_it_plays_by_itself_and_stops(visit):
    page = ready(visit)
    page.click("#play")
    page.locator(".count:text-is('2 of 14 tokens hidden')").wait_for()
    page.click("#play")
    stopped = page.locator(".count").text_content()
    page.wait_for_timeout(900)
    assert page.locator(".count").text_content() == stopped


def test_your_own_words_are_hidden_and_the_model_is_asked(visit, explainer):
    page = ready(visit)
    page.locator(".yours .token:text-is('never')").click()
    page.locator(".count:text-is('1 of 14 tokens hidden')").wait_for()
    attribution = explainer.explain(TEXT, "attcat")
    place = attribution.tokens.index("never")
    expected = 100 * probability(explainer, attribution, [place])
    assert number(page, "you") == pytest.approx(expected, abs=0.11)
    assert gone(page, "you") == ["never"]
    page.locator(".yours .token:text-is('never')").click()
    assert gone(page, "you") == []
