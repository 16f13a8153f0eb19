"""The result: frozen, complete, and the same after a journey through a file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, load
from tokenlight.errors import BadInput, NotFinite

EXPLAINER = Explainer(tiny_bert(), tiny_tokenizer())
ATTRIBUTION = EXPLAINER.explain("Charming film , but slower", "attcat")
PAIR = EXPLAINER.explain(("good film", "bad film"), "attcat")


def test_scores_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="read-only"):
        ATTRIBUTION.scores[0] = 1.0
    with pytest.raises(AttributeError):
        ATTRIBUTION.method = "other"


@pytest.mark.parametrize("attribution", [ATTRIBUTION, PAIR], ids=["text", "pair"])
def test_an_explanation_equals_what_is_loaded_from_its_file(attribution, tmp_path):
    attribution.save(tmp_path / "saved.json")
    (loaded,) = load(tmp_path / "saved.json")
    assert loaded == attribution
    assert hash(loaded) == hash(attribution)


def test_explanations_that_differ_in_one_field_are_not_equal():
    from dataclasses import replace

    assert replace(ATTRIBUTION) == ATTRIBUTION
    assert replace(ATTRIBUTION, scores=ATTRIBUTION.scores + 1) != ATTRIBUTION
    assert replace(ATTRIBUTION, notes=("another",)) != ATTRIBUTION
    assert ATTRIBUTION != PAIR
    assert ATTRIBUTION != "an explanation"


def test_top_leaves_special_tokens_out_and_keeps_signs():
    best = ATTRIBUTION.top(3)
    assert len(best) == 3
    assert not {token for token, _ in best} & {"[CLS]", "[SEP]"}
    sizes = [abs(score) for _, score in best]
    assert sizes == sorted(sizes, reverse=True)


def test_words_are_sums_of_their_tokens():
    words = dict(ATTRIBUTION.words())
    tokens = dict(zip(ATTRIBUTION.tokens, ATTRIBUTION.scores, strict=True))
    assert words["Charming"] == pytest.approx(tokens["Charm"] + tokens["ing"])
    assert words["slower"] == pytest.approx(tokens["slow"] + tokens["er"])
    assert list(words) == ["Charming", "film", ",", "but", "slower"]


def test_shares_of_segments_sum_to_one():
    shares = PAIR.segment_shares()
    assert [(part.name, part.segment) for part in shares] == [
        ("first", 0), ("second", 1), ("special", None)
    ]  # fmt: skip
    assert sum(part.share for part in shares) == pytest.approx(1.0)
    assert sum(part.total for part in shares) == pytest.approx(PAIR.scores.sum())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_are_always_finite(bad):
    from dataclasses import replace

    with expect_error(NotFinite, "array-not-finite", mentions="index 2"):
        replace(ATTRIBUTION, scores=np.array([0, 1, bad, *[0.0] * (len(ATTRIBUTION) - 3)]))
    with expect_error(BadInput, "scores-shape"):
        replace(ATTRIBUTION, scores=np.zeros(2))
