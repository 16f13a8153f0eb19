"""Type, explain, switch model, class and method: the page shows the library's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
from markupsafe import escape

from tests.helpers.page_server import TEXT
from tokenlight import Contrast
from tokenlight.plots.descriptions import (
    describe_share,
    describe_special_share,
    format_score,
    round_segment_shares,
)
from tokenlight.plots.html import render_page


def round_scores(attribution):
    """Tokens of the text with their scores as the page writes them; special tokens left out."""
    return [
        (token, float(format_score(score).replace("−", "-")))
        for token, score, special in zip(
            attribution.tokens, attribution.scores, attribution.row.special_tokens_mask, strict=True
        )
        if not special
    ]


def test_a_typed_text_is_explained_with_the_scores_of_the_library(visit, explainer):
    visit.open().explain(TEXT)
    assert visit.get_text() == TEXT
    actual = round_scores(explainer.explain(TEXT, "attcat"))
    expected = visit.scores()
    assert [token for token, _ in expected] == [token for token, _ in actual]
    assert [s for _, s in expected] == pytest.approx([s for _, s in actual], rel=2e-2, abs=1e-5)
    assert "positive" in visit.page.locator("#status").text_content()
    chances = visit.page.locator(".bar .number").all_text_contents()
    assert chances == ["92.0 %", "8.0 %"]


def test_the_page_uses_the_default_method_of_the_library(visit, explainer):
    visit.open(method=None).explain(TEXT)
    attribution = explainer.explain(TEXT)
    assert attribution.method == "attnlrp"
    assert visit.get_text(attribution.method) == TEXT
    expected = visit.scores(attribution.method)
    assert [s for _, s in expected] == pytest.approx(
        [s for _, s in round_scores(attribution)], rel=2e-2, abs=1e-5
    )


def test_colours_follow_sign_and_strength(visit):
    visit.open(text=TEXT)
    looks = dict(
        visit.page.locator("#why .token").evaluate_all(
            "all => all.map(t => [t.textContent, t.className])"
        )
    )
    scores = dict(visit.scores())
    strongest = max(scores, key=lambda token: abs(scores[token]))
    assert looks[strongest] == "token f12"
    for token, score in scores.items():
        step = looks[token].removeprefix("token").strip()
        assert step == "" or (step[0] == "f") == (score > 0), (token, score, step)
    painted = visit.page.locator(f"#why .token:text-is('{strongest}')")
    assert painted.evaluate("t => getComputedStyle(t).backgroundColor") == "rgb(20, 110, 48)"


def test_a_click_on_a_bar_explains_that_class(visit, explainer):
    visit.open(text=TEXT)
    visit.page.click(".bar[data-label=negative]")
    visit.page.locator("#why h2 b:text-is('negative')").wait_for()
    actual = [s for _, s in round_scores(explainer.explain(TEXT, "attcat", target="negative"))]
    assert [s for _, s in visit.scores()] == pytest.approx(actual, rel=2e-2, abs=1e-5)
    assert "for=negative" in visit.page.url


def test_a_contrast_of_two_classes_is_explained(visit, explainer):
    visit.open(text=TEXT)
    visit.page.get_by_label("rather than").select_option("negative")
    visit.page.locator("#why h2 b:text-is('positive rather than negative')").wait_for()
    actual = explainer.explain(TEXT, "attcat", target=Contrast("positive", "negative"))
    expected = [s for _, s in visit.scores()]
    assert expected == pytest.approx([s for _, s in round_scores(actual)], rel=2e-2, abs=1e-5)


def test_methods_are_added_in_the_picker_and_removed_by_their_chips(visit, explainer):
    visit.open(text=TEXT)
    visit.page.click("#picker-open")
    default = visit.page.locator("#picker label", has_text="the default here").locator("b")
    assert default.all_text_contents() == [explainer.get_default_method()]
    visit.page.check("[data-method=gae]")
    visit.page.locator("#why [data-method=gae] .token").first.wait_for()
    actual = [s for _, s in round_scores(explainer.explain(TEXT, "gae"))]
    assert [s for _, s in visit.scores("gae")] == pytest.approx(actual, rel=2e-2, abs=1e-5)
    visit.page.get_by_role("button", name="Remove attcat").click()
    visit.page.locator("#why [data-method=attcat]").wait_for(state="detached")
    assert visit.page.locator("#why .row-label h3").all_text_contents() == ["gae"]


def test_methods_are_compared_by_difference_and_by_agreement(visit, explainer):
    from tokenlight.data.postprocess import difference
    from tokenlight.data.ranks import compute_normalized_ranks

    visit.open(text=TEXT, method=["attcat", "gae"])
    first, second = explainer.explain(TEXT, ["attcat", "gae"])
    correlation = float(np.dot(compute_normalized_ranks(first), compute_normalized_ranks(second)))
    cell = visit.page.locator(".matrix tbody tr").first.locator("td").nth(1)
    assert float(cell.text_content().replace("−", "-")) == pytest.approx(correlation, abs=0.006)
    visit.page.get_by_label("Show the difference from").select_option("attcat")
    visit.page.get_by_text("compared with attcat").wait_for()
    actual = [s for _, s in round_scores(difference(second, first))]
    assert [s for _, s in visit.scores("gae")] == pytest.approx(actual, rel=2e-2, abs=1e-5)


def test_words_join_the_tokens_of_a_word(visit, explainer):
    from tokenlight.data.postprocess import merge_words

    text = "An unremarkably photographed melodrama."
    visit.open(text=text)
    words = visit.scores()  # what a page begins with
    visit.page.keyboard.press("Escape")
    visit.page.locator("#why").get_by_role("button", name="Tokens").click()
    assert len(words) < len(visit.scores())
    actual = round_scores(merge_words(explainer.explain(text, "attcat")))
    assert [w for w, _ in words] == [w for w, _ in actual]
    assert [s for _, s in words] == pytest.approx([s for _, s in actual], rel=2e-2, abs=1e-5)
    assert visit.get_text() == text


def test_hovering_shows_scores_and_a_click_pins_them(visit):
    visit.open(text=TEXT, method=["attcat", "gae"])
    token = visit.page.locator("#why [data-method=attcat] .token:text-is('never')")
    token.hover()
    score = dict(visit.scores())["never"]
    tip = visit.page.locator("#tip").text_content()
    assert f"never  +{score:.3g}" in tip
    assert "by strength" in tip
    token.click()
    assert visit.page.locator("#why .token[aria-pressed=true]").all_text_contents() == ["never"] * 2
    assert visit.page.locator(".pinned tbody th").all_text_contents() == ["attcat", "gae"]
    visit.page.get_by_role("button", name="Unpin").click()
    assert visit.page.locator(".pinned").count() == 0


def test_the_trust_verdict_is_shown_with_its_health_checks(visit):
    visit.open(text=TEXT)
    visit.page.locator(".grade").wait_for()
    trust_text = visit.page.locator(".trust").text_content()
    assert "deleted, the probability of positive falls from" in trust_text
    assert "with the 3 top words" in trust_text
    assert "same alone and in a batch" in trust_text


def test_a_question_is_answered_from_its_context_and_the_answer_is_marked(visit):
    context = "Hamlet was written by William Shakespeare in London."
    visit.open(model="tokenlight/qa", question="Who wrote Hamlet?", context=context)
    assert visit.page.locator(".answer-text").text_content() == "William Shakespeare"
    assert visit.get_text() == f"Who wrote Hamlet?\n{context}"
    marked = visit.page.locator("#why .answer-token").all_text_contents()
    assert "".join(marked) == "WilliamShakespeare"


def test_a_pair_of_texts_is_explained_in_two_parts(visit):
    visit.open().page.get_by_role("button", name="Add a second text").click()
    visit.page.fill("#field-text", "A fine film.")
    visit.page.fill("#field-pair", "The sequel is dreadful.")
    visit.page.click("#explain")
    visit.page.locator("#why .line").nth(1).wait_for()
    assert visit.get_text() == "A fine film.\nThe sequel is dreadful."


def test_choosing_another_model_shows_its_input_fields_with_an_example(visit):
    visit.open().page.locator("#model").select_option("tokenlight/qa")
    visit.page.locator("#field-question").wait_for()
    assert visit.page.locator("#field-text").count() == 0
    assert visit.page.locator("#field-question").input_value() == "Who wrote Hamlet?"
    assert "William Shakespeare" in visit.page.locator("#field-context").input_value()
    visit.page.click("#explain")
    visit.page.locator(".answer-text").wait_for()
    visit.page.locator("#model").select_option("tokenlight/topics")
    visit.page.locator("#examples button").first.click()
    visit.page.locator(".bar[data-label=Business]").wait_for()
    assert visit.page.locator(".bar").count() == 4


def test_choosing_another_model_clears_the_previous_explanation(visit):
    visit.open(text=TEXT).page.locator("#model").select_option("tokenlight/qa")
    assert visit.page.locator("#results").is_hidden()
    assert visit.page.locator("#share").is_hidden()
    assert "Explained" not in visit.page.locator("#status").text_content()
    visit.page.click("#explain")
    visit.page.locator(".answer-text").wait_for()
    visit.page.locator("#model").select_option("tokenlight/sentiment")
    visit.page.locator(".bar[data-label=positive]").wait_for()  # the same text, explained at once
    assert visit.page.locator(".answer-text").count() == 0
    assert visit.get_text() == TEXT


def test_a_refused_text_clears_the_previous_one_and_offers_two_remedies(visit):
    long = ("This film is neither good nor bad but long, and the director knows it. " * 60).strip()
    visit.open().explain(TEXT)
    visit.page.fill("#field-text", long)
    visit.page.click("#explain")
    trouble = visit.page.locator("#trouble:not([hidden])")
    trouble.wait_for()
    assert visit.page.locator("#results").is_hidden()
    assert visit.page.locator("#share").is_hidden()
    message = trouble.locator("span").first.text_content()
    assert message == "This text is too long: the model reads at most 512 tokens at once."
    trouble.get_by_role("button", name="Read it in windows").click()
    visit.page.locator("#why .token").first.wait_for()
    assert visit.get_text() == long
    assert visit.page.get_by_text("overlapping windows").count() == 1
    assert "long=stride" in visit.page.url
    visit.page.fill("#field-text", f"{long} Or not.")
    visit.page.click("#explain")
    trouble.get_by_role("button", name="Explain the part it can read").click()
    visit.page.locator("#why .cut").first.wait_for()
    assert "long=" not in visit.page.locator("#why").text_content()
    visit.expected = ("422",)


def test_the_page_and_the_file_state_the_same_weight_on_special_tokens(visit, explainer):
    visit.open(text=TEXT, method=["attcat", "gae"])
    first, second = explainer.explain(TEXT, ["attcat", "gae"])
    message = describe_special_share(first, round_segment_shares(first)[-1])
    assert message == "66 % of attcat's total score falls on [CLS] and [SEP]"
    lines = visit.page.locator("#why .on-special")
    assert lines.all_text_contents() == [message], "gae puts little on them, which need not be said"
    assert escape(message) in render_page([first])
    visit.page.locator("#why").get_by_label("special tokens").check()
    more = describe_special_share(second, round_segment_shares(second)[-1])
    assert lines.all_text_contents() == [message, more]
    visit.page.get_by_label("Show the difference from").select_option("gae")
    visit.page.get_by_text("compared with gae").wait_for()
    assert " difference" in lines.first.text_content()


def test_the_parts_of_a_pair_have_the_weights_of_the_library(visit):
    from tokenlight import Explainer

    pair = ("The club sold its striker.", "Shares rose by ten percent.")
    visit.open(model="tokenlight/topics", text=pair[0], pair=pair[1])
    attribution = Explainer.from_pretrained("tokenlight/topics").explain(pair, "attcat")
    first, second, special = round_segment_shares(attribution)
    assert visit.page.locator("#why .segment").all_text_contents() == [
        f"first · {describe_share(first)}",
        f"second · {describe_share(second)}",
        describe_special_share(attribution, special),
    ]


def test_no_other_class_is_named_if_only_one_is_explained(visit):
    visit.open(text=TEXT)
    class_select = visit.page.get_by_label("rather than")
    assert class_select.input_value() == ""
    assert class_select.locator("option").all_text_contents() == ["(no other class)", "negative"]
