"""Explanations made elsewhere: plain arrays, and the scores of other libraries."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.planted_model import (
    compute_oracle_scores,
    make_attribution,
    make_planted_explainer,
)
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import PASS_CONDITION, assert_close, tolerance_for
from tokenlight import Explainer
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.evaluation.external import from_arrays, import_scores
from tokenlight.evaluation.trust import assess_trust


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def test_plain_arrays_are_measured_like_our_own():
    explainer = make_planted_explainer()
    words = [10, 11, 12, 13]
    actual = make_attribution(
        explainer, words, compute_oracle_scores(explainer, words, 1), target=1
    )
    expected = from_arrays(
        actual.scores,
        actual.row.ids,
        actual.logits,
        target=1,
        labels=explainer.labels,
        special=actual.row.special_tokens_mask,
        method="theirs",
    )
    rows = explainer.evaluate([actual, expected], ["aopc", "lodds", "sufficiency"]).rows
    for name in ("aopc", "lodds", "sufficiency"):
        assert rows[0][name] == rows[1][name]
    assert expected.prediction.index == actual.prediction.index
    assert expected.method == "theirs"


def test_arrays_with_a_hidden_axis_are_summed():
    table = np.arange(12.0).reshape(1, 3, 4)
    attribution = from_arrays(
        torch.from_numpy(table), torch.tensor([2, 10, 3]), torch.tensor([0.5, 1.0])
    )
    assert attribution.scores.tolist() == [6, 22, 38]
    assert attribution.target.name == "LABEL_1"


@pytest.mark.parametrize(
    ("scores", "more", "code", "mentions"),
    [
        ([1, 2], {}, "wrong-number-of-scores", "2 scores were given, but the text has 3"),
        ([1, 2, 3], {"labels": ["a"]}, "wrong-number-of-entries", "labels has 1 entries"),
        ([1, 2, 3], {"special": [True]}, "wrong-number-of-entries", "special has 1 entries"),
        ([1, 2, 3], {"logits": [0.5, np.nan]}, "logits-not-finite", ""),
        (
            [1, 2, 3],
            {"logits": [[0.5, 1], [1, 2]]},
            "several-rows",
            "logits have 2 rows",
        ),
        (
            [1, 2, 3],
            {"ids": [[2, 10, 3], [2, 11, 3]]},
            "several-rows",
            "ids have 2 rows",
        ),
        (
            [1, 2, 3],
            {"target": "all"},
            "scores-for-all-classes",
            "target='all'",
        ),
        ([1, 2, 3], {"attention_mask": [1, 1, 0]}, "padding-in-explanation", "1 of 3 tokens"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(scores, more, code, mentions):
    with expect_error(TokenlightError, code, mentions=mentions):
        from_arrays(scores, **{"ids": [2, 10, 3], "logits": [0.5, 1.0], **more})


def test_arrays_with_nan_are_refused():
    with pytest.raises(TokenlightError, match="scores hold NaN or infinity, first at index 1"):
        from_arrays([1, np.nan, 3], [2, 10, 3], [0.5, 1.0])


def test_special_tokens_masked_on_purpose_are_no_padding():
    attribution = from_arrays(
        [0, 1, 0], [2, 10, 3], [0.5, 1.0], attention_mask=[0, 1, 0], special=[True, False, True]
    )
    assert attribution.row.attention_mask == (0, 1, 0)


def test_an_explanation_is_measured_by_the_model_that_made_it_or_refused(explainer):
    """The sentiment of a review is no topic: the numbers would be another model's."""
    expected = explainer.explain("the film is good", "attcat")
    topics = {0: "world", 1: "sports", 2: "science"}
    other = Explainer(tiny_bert(id2label=topics), tiny_tokenizer(), name="topics")
    for ask in (lambda: other.evaluate(expected, "aopc"), lambda: assess_trust(other, expected)):
        with expect_error(BadInput, "explanation-of-another-model", mentions="topics") as caught:
            ask()
        assert "world, sports, science" in str(caught.value)
    unnamed = from_arrays(
        expected.scores, expected.row.ids, expected.logits, special=expected.row.special_tokens_mask
    )
    assert explainer.evaluate(unnamed, "aopc").rows[0]["aopc"] is not None


def test_scores_of_other_libraries_are_adopted(explainer):
    text = "the film is good"
    actual = explainer.explain(text, "attcat")
    shap = SimpleNamespace(
        values=np.stack([actual.scores, 2 * actual.scores, -actual.scores], 1), base_values=0
    )
    captum = torch.randn(1, len(actual), 8, generator=torch.Generator().manual_seed(3)).double()
    for imported_scores, expected in (
        (actual.scores, actual.scores),
        (actual.scores[1:-1], np.r_[0, actual.scores[1:-1], 0]),
        (shap, shap.values[:, actual.target.index]),
        (captum, captum[0].sum(1).numpy()),
        (SimpleNamespace(source_attributions=actual.scores[:, None]), actual.scores),
    ):
        attribution = import_scores(explainer, text, imported_scores, method="other")
        assert_close(
            attribution.scores, expected, tolerance_for(torch.float64, PASS_CONDITION, terms=8)
        )
        assert attribution.target == actual.target
    assert "other" in explainer.evaluate([actual, attribution], "aopc").by_method
