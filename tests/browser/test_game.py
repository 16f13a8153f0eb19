"""The game: a move asks nobody, and every number is what the model says of the changed text."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.page_server import TEXT
from tokenlight.data.ranks import rank_subset
from tokenlight.perturb.logits_stream import stream_logits
from tokenlight.perturb.variants import Perturber, ReplacementIds

STEP_MILLISECONDS = 650  # STEP_MS in game.js


def compute_probability(explainer, attribution, hidden) -> float:
    """P(positive) of the text with these tokens hidden, asked of the model itself."""
    original = Perturber(
        attribution.row, ReplacementIds.from_model(explainer.runner, explainer.tokenizer)
    )
    (logits,) = stream_logits(explainer.runner, [original.hide_tokens(hidden)])
    chances = np.exp(logits - logits.max())
    return float(chances[1] / chances.sum())


def open_game(visit, method="attcat"):
    visit.open(text=TEXT, method=method, tab="game")
    visit.page.locator("#game .keys .band").first.wait_for()
    visit.page.locator("#game .comparing").wait_for(state="detached")  # all random orders are there
    return visit.page


def number(page, method="attcat") -> float:
    text = page.locator(f"#game [data-method={method}] .big-number").text_content()
    return float(text.strip("<> %"))


def list_hidden_tokens(page, method="attcat") -> list[str]:
    return page.locator(f"#game [data-method={method}] .gone").all_text_contents()


def test_arrow_keys_hide_tokens_and_the_page_shows_the_models_probability(visit, explainer):
    page = open_game(visit)
    attribution = explainer.explain(TEXT, "attcat")
    positions = np.flatnonzero(~np.array(attribution.row.special_tokens_mask))
    order = rank_subset(attribution.scores, positions)
    page.locator("#slider").focus()
    requests_before = visit.list_api_requests()
    for step in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        page.locator(f".count:text-is('{step} of {len(order)} tokens hidden')").wait_for()
        assert sorted(list_hidden_tokens(page)) == sorted(
            attribution.tokens[i] for i in order[:step]
        )
        expected = 100 * compute_probability(explainer, attribution, order[:step])
        assert number(page) == pytest.approx(expected, abs=0.11)
    assert visit.list_api_requests() == requests_before, "a move must not ask the server"
    page.wait_for_url("**step=3**")


def test_the_mouse_drags_the_slider_and_the_curve(visit):
    page = open_game(visit)
    box = page.locator("#slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=8)
    page.mouse.up()
    assert page.locator(".count").text_content() == "7 of 14 tokens hidden"
    assert len(list_hidden_tokens(page)) == 7
    chart = page.locator("#game .chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert page.locator(".count").text_content() == "14 of 14 tokens hidden"


def test_the_revealing_game_starts_with_all_tokens_hidden(visit, explainer):
    page = open_game(visit)
    page.locator("#game").get_by_role("button", name="Reveal the strongest first").click()
    attribution = explainer.explain(TEXT, "attcat")
    positions = np.flatnonzero(~np.array(attribution.row.special_tokens_mask))
    assert len(list_hidden_tokens(page)) == len(positions)
    expected = 100 * compute_probability(explainer, attribution, positions)
    assert number(page) == pytest.approx(expected, abs=0.11)


def test_every_method_is_compared_with_the_same_random_orders(visit):
    page = open_game(visit, ["attcat", "gae", "random"])
    assert page.locator("#game .board-row h3").count() == 4  # and you
    notes = page.locator("#game .board-row .meter-note").all_text_contents()
    assert len(set(notes)) == 1
    assert notes[0].startswith("random order:")
    assert page.locator("#game .chart .band").count() == 1
    assert page.locator("#game .chart .curve").count() == 3


def test_the_game_plays_automatically_and_stops(visit):
    page = open_game(visit)
    # The browser's timers follow this clock, so the number of steps does not depend on the machine.
    page.clock.install(time=0)
    page.clock.pause_at(3600)  # seconds; from here on only run_for() moves it
    page.click("#play")
    page.clock.run_for(2 * STEP_MILLISECONDS)
    page.locator(".count:text-is('2 of 14 tokens hidden')").wait_for()
    page.click("#play")
    page.locator("#play:text-is('▶ Play')").wait_for()
    page.clock.run_for(10 * STEP_MILLISECONDS)
    assert page.locator(".count").text_content() == "2 of 14 tokens hidden"


def test_words_that_the_user_hides_are_masked_for_the_model(visit, explainer):
    page = open_game(visit)
    page.locator(".yours .token:text-is('never')").click()
    page.locator(".count:text-is('1 of 14 tokens hidden')").wait_for()
    attribution = explainer.explain(TEXT, "attcat")
    position = attribution.tokens.index("never")
    expected = 100 * compute_probability(explainer, attribution, [position])
    assert number(page, "you") == pytest.approx(expected, abs=0.11)
    assert list_hidden_tokens(page, "you") == ["never"]
    page.locator(".yours .token:text-is('never')").click()
    assert list_hidden_tokens(page, "you") == []


def test_the_comparison_with_random_orders_shows_its_progress(visit):
    visit.page.add_init_script(
        """window.seen = [];
        new MutationObserver(() => {
          const line = document.querySelector("#game .comparing");
          if (line && window.seen.at(-1) !== line.textContent) window.seen.push(line.textContent);
        }).observe(document, { childList: true, subtree: true });"""
    )
    visit.open(text=TEXT, tab="game")
    visit.page.locator("#game .keys .band").first.wait_for()
    visit.page.locator("#game .comparing").wait_for(state="detached")
    counts = [line.split(":")[1].strip() for line in visit.page.evaluate("window.seen")]
    assert counts == ["0 of 16 …", "4 of 16 …"]
