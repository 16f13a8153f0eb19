"""Results grouped by text: the same explanations as the flat list, and an error for each refused text."""

from __future__ import annotations

import pytest

from tests.helpers.encoder_decoder_models import make_seq2seq_tokenizer, make_small_llama
from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Continuation, Explainer
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, UnknownName
from tokenlight.explaining.text_result import TextResult, iter_attributions

TEXTS = ["the film was good", "a dull plot", "great"]
METHODS = ["attcat", "rollout"]


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    return Explainer(tiny_bert(), tiny_tokenizer())


def describe(attribution: Attribution) -> tuple[str, str, str, tuple[float, ...]]:
    scores = tuple(attribution.scores.tolist())
    return attribution.text, attribution.method, attribution.target.name, scores


def test_results_hold_the_attributions_of_the_flat_list_in_its_order(explainer: Explainer) -> None:
    results = explainer.explain_texts(TEXTS, METHODS, "all")
    flat = explainer.explain(TEXTS, METHODS, "all")
    assert [result.text for result in results] == TEXTS
    assert list(map(describe, iter_attributions(results))) == list(map(describe, flat))
    for result in results:
        methods = [
            {attribution.method for attribution in group} for group in result.attributions_by_method
        ]
        assert methods == [{"attcat"}, {"rollout"}]
        assert {len(group) for group in result.attributions_by_method} == {len(explainer.labels)}
        assert result.row is not None
        assert result.row.texts == (result.text,)


def test_texts_may_have_different_numbers_of_attributions() -> None:
    explainer = Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))
    targets = [Continuation(" the red dog"), Continuation(" ran")]
    results = explainer.explain_texts(["the cat sat", "a mat"], ["grad_x_input"], targets)
    sizes = [len(result.attributions) for result in results]
    assert sizes[0] > sizes[1] > 0
    for result in results:
        (row_text,) = {attribution.row.texts[0] for attribution in result.attributions}
        assert row_text == result.text


def test_a_refused_text_has_its_error_and_the_others_are_explained(explainer: Explainer) -> None:
    results = explainer.explain_texts(["good", "", "bad"], "attcat", keep_errors=True)
    assert [result.error is None for result in results] == [True, False, True]
    assert results[1].row is None
    assert results[1].attributions == []
    assert isinstance(results[1].error, BadInput)
    assert "Text 1 (counted from 0)" in str(results[1].error)
    alone = explainer.explain("bad", "attcat")
    assert results[2].attributions[0].scores == pytest.approx(alone.scores, abs=1e-12)


def test_a_refused_text_is_raised_unless_errors_are_kept(explainer: Explainer) -> None:
    with pytest.raises(BadInput):
        explainer.explain_texts(["good", ""], "attcat")
    with pytest.raises(BadInput):
        list(iter_attributions([TextResult("", error=BadInput("The text is empty."))]))


def test_a_wrong_option_is_raised_even_if_errors_are_kept(explainer: Explainer) -> None:
    with pytest.raises(UnknownName):
        explainer.explain_texts(TEXTS, "attcta", keep_errors=True)
    with expect_error(BadInput, "target-count"):
        explainer.explain_texts(TEXTS, "attcat", [0], keep_errors=True)
