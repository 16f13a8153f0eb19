"""refine() gives the first answer at once, and then those of higher efforts."""

import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer
from tokenlight.errors import BadInput

TEXT = "Charming film , but slower"
EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())


@pytest.mark.parametrize(
    ("effort", "steps"),
    [
        ("thorough", ["instant", "normal", "thorough"]),
        ("normal", ["instant", "normal"]),
        ("instant", ["instant"]),
        (20, ["instant", "normal", 20]),
        (4, ["instant", 4]),
        (1, ["instant"]),
    ],
)
def test_a_text_is_explained_at_each_effort_up_to_the_one_asked_for(effort, steps):
    refined = list(EXPLAINER.refine(TEXT, effort=effort))
    assert len(refined) == len(steps)
    for attribution, step in zip(refined, steps, strict=True):
        expected = EXPLAINER.explain(TEXT, effort=step)
        assert attribution.method == expected.method
        assert attribution.options == expected.options
        assert attribution.scores.tolist() == expected.scores.tolist()
        assert attribution.notes == expected.notes


def test_the_first_answer_comes_before_any_sample_is_drawn():
    stream = EXPLAINER.refine(TEXT, target=1)
    first = next(stream)
    assert first.standard_errors is None
    assert first.target.index == 1
    assert next(stream).standard_errors is not None


def test_a_pair_is_explained_once():
    (attribution,) = EXPLAINER.refine(("good film", "bad film"))
    assert attribution.method == EXPLAINER.get_default_method(("good film", "bad film"))


def test_several_texts_and_several_targets_are_refused():
    with expect_error(BadInput, "refine-needs-one-text", mentions="2 are given"):
        EXPLAINER.refine([TEXT, TEXT])
    with expect_error(BadInput, "refine-needs-one-target", mentions="all"):
        EXPLAINER.refine(TEXT, "all")
    with expect_error(BadInput, "effort-value"):
        EXPLAINER.refine(TEXT, effort="much")
