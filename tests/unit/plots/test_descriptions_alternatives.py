"""A picture of a token says what it is contrasted with, and when much falls on the first token."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.handmade_attributions import make_attribution, make_row
from tests.helpers.terminal import render_terminal
from tokenlight.data.attribution import Attribution
from tokenlight.data.head import Head
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import NextToken
from tokenlight.plots.descriptions import describe_attention_sink, describe_chips, describe_question
from tokenlight.plots.figures import draw_highlighted_text
from tokenlight.plots.html import render_page

VOCABULARY = (" Paris", " the", " London", " ", " Le", " Rome", " a", " Nice")
LOGITS = np.log([0.5, 0.2, 0.1, 0.08, 0.05, 0.04, 0.02, 0.01])
ROW = make_row(
    ["The capital of France is"], [[(0, 3), (4, 11), (12, 14), (15, 21), (22, 24)]], special=False
)
HEAD = Head("text-generation", VOCABULARY)


def explain_token(scores=(0.1, 0.5, 0.1, 2.0, 0.3), against=20, **more) -> Attribution:
    (target,) = HEAD.resolve(NextToken(0, against=against), LOGITS, ROW)
    prediction = HEAD.predict(LOGITS, ROW)
    attribution = make_attribution(ROW, scores, prediction=prediction, logits=LOGITS, **more)
    return replace(attribution, target=target)


def test_alternatives_have_text_id_and_probability():
    alternatives = explain_token().alternatives
    assert [(other.token, other.id) for other in alternatives[:3]] == [
        ("the", 1),
        ("London", 2),
        (" ", 3),
    ]
    np.testing.assert_allclose([other.probability for other in alternatives], np.exp(LOGITS[1:]))


def test_a_saved_file_has_the_same_alternatives_without_its_logits():
    saved = json.loads(json.dumps(explain_token().to_dict()))
    loaded = Attribution.from_dict(saved)
    assert not loaded.logits.size
    assert saved["alternatives"][0] == {"token": "the", "id": 1, "probability": pytest.approx(0.2)}
    for actual, expected in zip(explain_token().alternatives, loaded.alternatives, strict=True):
        assert (actual.token, actual.id) == (expected.token, expected.id)
        assert actual.probability == pytest.approx(expected.probability, rel=1e-12)


def test_where_no_probability_was_saved_none_is_given():
    prediction = Prediction(" Paris", 0, (" Paris",), (0.5,), ids=(0,))
    attribution = replace(explain_token(), prediction=prediction, logits=np.array([]))
    assert {other.probability for other in attribution.alternatives} == {None}
    assert describe_chips(attribution, 2) == "rather than: the · London · 5 more"


def test_a_plain_logit_has_no_alternatives():
    attribution = explain_token(against=None)
    assert attribution.alternatives == ()
    assert describe_chips(attribution) == ""
    assert describe_question(attribution) == "‘Paris’, its logit alone"


def test_the_terminal_has_the_question_and_chips_below_it():
    text = render_terminal(explain_token())
    chips = "rather than: the 20.0 % · London 10.0 % · ‘ ’ 8.0 % · Le 5.0 % · Rome 4.0 % · 2 more"
    assert f"for ‘Paris’ rather than its likely alternatives\n{chips}\n" in text


def test_an_alternative_without_letters_is_quoted():
    prediction = Prediction("two", 0, ("two", "2", "deux"), (0.5, 0.3, 0.1), ids=(0, 1, 2))
    target = replace(explain_token().target, alternatives=("2", "deux"))
    attribution = replace(explain_token(), prediction=prediction, target=target)
    assert describe_chips(attribution, 2).startswith("rather than: ‘2’ 20.0 % · deux 10.0 %")


def test_a_page_has_the_question_and_chips_below_it():
    page = render_page(explain_token())
    assert '<b dir="auto">‘Paris’ rather than its likely alternatives</b></h2>' in page
    chips = re.findall(r'<span dir="auto" title="(.*?)">(.*?) <small>(.*?)</small></span>', page)
    assert [name for _, name, _ in chips] == ["the", "London", "‘ ’", "Le", "Rome"]
    assert chips[1][0] == "token 2; to contrast with it alone: against=[2]"
    assert "rather than:" not in render_page(explain_token(against=None))


def test_a_figure_has_the_question_and_chips_below_it():
    (axes,) = draw_highlighted_text(explain_token()).axes
    lines = [text.get_text() for text in axes.texts]
    assert lines[0] == "attcat → ‘Paris’ rather than its likely alternatives"
    assert lines[1].startswith("rather than: the 20.0 % · London 10.0 %")


def test_the_whole_vocabulary_is_anything_else():
    target = replace(explain_token().target, alternatives=("the", "London"))
    attribution = replace(explain_token(), target=target)
    assert describe_question(attribution) == "‘Paris’ rather than anything else"
    assert describe_chips(attribution, 1) == "rather than: the 20.0 % · 6 more"


@pytest.mark.parametrize(
    ("first", "is_named"), [(2.0, True), (1.5, False), (1.4, False), (-3.0, True)]
)
def test_a_first_token_with_more_than_a_third_is_named(first, is_named):
    attribution = explain_token(scores=(first, 0.5, 0.5, 1.0, 1.0))
    assert bool(describe_attention_sink(attribution)) is is_named


def test_the_sink_is_a_note_of_terminal_and_page():
    attribution = explain_token(scores=(2.0, 0.5, 0.5, 1.0, 1.0))
    sentence = "40 % of the total score falls on the first token, ‘The’, an attention sink"
    assert sentence in " ".join(render_terminal(attribution).split())
    assert sentence in render_page(attribution)


def test_no_sink_is_named_for_random_scores_or_short_prompts():
    scores = (2.0, 0.5, 0.5, 1.0, 1.0)
    assert not describe_attention_sink(explain_token(scores=scores, method="random"))
    short = explain_token(scores=scores)
    short = replace(short, row=ROW.take(range(3)), scores=short.scores[:3])
    assert not describe_attention_sink(short)
