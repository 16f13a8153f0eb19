"""Why this rather than that, where each is read by a pass of its own: rankings and continuations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tests.helpers.expect import expect_error
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_config, tiny_tokenizer
from tokenlight import Attribution, Continuation, Contrast, Explainer, RankedAbove
from tokenlight.errors import BadTarget
from tokenlight.trust import assess_trust

COVERED_MODULES = ("explaining/differences",)
QUERY = "who sat on the mat"
ABOVE = "the red cat sat on the mat"
BELOW = "a dog in town"
ONE_LABEL = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@pytest.fixture(scope="module")
def reranker() -> Explainer:
    return Explainer(tiny_bert(**ONE_LABEL), tiny_tokenizer())


@pytest.fixture(scope="module")
def embedder() -> Explainer:
    model = randomize_weights(BertModel(tiny_config(), add_pooling_layer=False), torch.float64)
    return Explainer(model, tiny_tokenizer())


def score_passage(explainer: Explainer, passage: str) -> tuple[float, np.ndarray]:
    """The twin: a cross-encoder's one logit, and gradient × input at its embeddings."""
    encoded = explainer.tokenizer(QUERY, passage, return_tensors="pt")
    model = explainer.runner.model
    kinds = encoded["token_type_ids"]
    first = model.bert.embeddings(encoded["input_ids"], kinds).detach().requires_grad_()
    pooled = model.bert.pooler(model.bert.encoder(first).last_hidden_state)
    value = model.classifier(pooled)[0, 0]
    (slope,) = torch.autograd.grad(value, first)
    return float(value.detach()), (slope * first).sum(-1)[0].detach().numpy()


class TestRankings:
    def test_a_cross_encoders_score_is_its_one_logit(self, reranker: Explainer) -> None:
        attribution = reranker.explain((QUERY, ABOVE), "grad_x_input")
        value, scores = score_passage(reranker, ABOVE)
        assert attribution.logits[0] == pytest.approx(value, abs=1e-12)
        np.testing.assert_allclose(attribution.scores, scores, rtol=0, atol=1e-12)

    def test_a_ranking_is_the_difference_of_two_scores_over_query_and_both_passages(
        self, reranker: Explainer
    ) -> None:
        attribution = reranker.explain((QUERY, ABOVE), "grad_x_input", RankedAbove(BELOW))
        (high, plus), (low, minus) = (
            score_passage(reranker, passage) for passage in (ABOVE, BELOW)
        )
        np.testing.assert_allclose(attribution.logits, [high, low], rtol=0, atol=1e-12)
        border = 1 + 5 + 1  # [CLS], the query, [SEP]
        expected = np.concatenate([plus[:border] - minus[:border], plus[border:], -minus[border:]])
        np.testing.assert_allclose(attribution.scores, expected, rtol=0, atol=1e-12)
        assert attribution.row.texts == (QUERY, ABOVE, BELOW)
        assert [part.name for part in attribution.group_by("document")] == [
            "query",
            "above",
            "below",
        ]
        assert attribution.row.surface_forms[border + 8 :] == ("a", "dog", "in", "town", "[SEP]")
        assert " above " in attribution.target.name

    def test_swapping_the_texts_flips_all_signs(self, reranker: Explainer) -> None:
        ways = [((QUERY, ABOVE), RankedAbove(BELOW)), ((QUERY, BELOW), RankedAbove(ABOVE))]
        forwards, backwards = (reranker.explain(pair, "occlusion", target) for pair, target in ways)
        sums = [
            {part.text: part.total for part in attribution.group_by("document")}
            for attribution in (forwards, backwards)
        ]
        for text in (QUERY, ABOVE, BELOW):
            assert sums[0][text] == pytest.approx(-sums[1][text], abs=1e-9)

    def test_a_bi_encoder_ranks_by_its_cosines(self, embedder: Explainer) -> None:
        attribution = embedder.explain((QUERY, ABOVE), "integrated_gradients", RankedAbove(BELOW))
        each = [
            embedder.explain((QUERY, explained), "integrated_gradients")
            for explained in (ABOVE, BELOW)
        ]
        np.testing.assert_array_equal(
            attribution.logits, [explained.logits[0] for explained in each]
        )
        sums = [[part.total for part in explained.group_by("document")] for explained in each]
        expected = [sums[0][0] - sums[1][0], sums[0][1], -sums[1][1]]
        assert [explained.total for explained in attribution.group_by("document")] == pytest.approx(
            expected, abs=1e-9
        )

    def test_a_label_of_a_classifier_can_rank(self) -> None:
        classifier = Explainer(tiny_bert(), tiny_tokenizer())
        with expect_error(BadTarget, "ranking-needs-label"):
            classifier.explain((QUERY, ABOVE), target=RankedAbove(BELOW))
        attribution = classifier.explain(
            (QUERY, ABOVE), "grad_x_input", RankedAbove(BELOW, "positive")
        )
        each = [
            classifier.explain((QUERY, explained), target="positive")
            for explained in (ABOVE, BELOW)
        ]
        np.testing.assert_allclose(
            attribution.logits, [explained.logits[2] for explained in each], atol=1e-12
        )

    def test_a_ranking_survives_saving_and_its_output_names_both_texts(
        self, reranker: Explainer, tmp_path: Any
    ) -> None:
        attributions = reranker.explain(
            (QUERY, ABOVE), ["attcat", "grad_x_input"], RankedAbove(BELOW)
        )
        back = Attribution.load(attributions[1].save(tmp_path / "why.json"))
        assert (back.row, back.target) == (attributions[1].row, attributions[1].target)
        page = attributions[0].save(tmp_path / "why.html").read_text()
        assert "above" in page
        assert "below" in page

    def test_metrics_and_trust_refuse_contrasts_of_two_passes(self, reranker: Explainer) -> None:
        classifier = Explainer(tiny_bert(), tiny_tokenizer())
        for explainer, target in (
            (reranker, RankedAbove(BELOW)),
            (classifier, RankedAbove(BELOW, 1)),
        ):
            attribution = explainer.explain((QUERY, ABOVE), "grad_x_input", target)
            assert assess_trust(explainer, attribution).extras["trust"]["grade"] == "untested"
        (measured,) = classifier.evaluate(attribution, "aopc").rows
        assert "combines two passes" in measured["aopc.skipped"]

    def test_invalid_rankings_are_refused(self, reranker: Explainer) -> None:
        for text in (QUERY, [QUERY]):
            with expect_error(BadTarget, "ranking-needs-pair"):
                reranker.explain(text, target=RankedAbove(BELOW))
        with expect_error(BadTarget, "contrast-of-equal-texts"):
            reranker.explain((QUERY, ABOVE), target=RankedAbove(ABOVE))


@pytest.mark.parametrize("name", ["llama", "bart"])
class TestContinuations:
    @pytest.fixture
    def explainer(self, name: str) -> Explainer:
        ends = name == "bart"
        model = make_seq2seq_model("bart") if ends else make_small_llama()
        return Explainer(model, make_seq2seq_tokenizer(ends=ends))

    def test_one_continuation_rather_than_another_is_the_difference_of_two(
        self, explainer: Explainer
    ) -> None:
        prompt = "the cat sat on"
        this = " a red mat"
        that = " the dog"
        attribution = explainer.explain(
            prompt, "grad_x_input", Contrast(Continuation(this), Continuation(that))
        )
        plus, minus = (
            explainer.explain(
                prompt, "grad_x_input", Continuation(explained, joint=True, against=None)
            )[0]
            for explained in (this, that)
        )
        shared = attribution.extras["difference"]["num_shared_tokens"]
        np.testing.assert_allclose(
            attribution.scores[:shared],
            plus.scores[:shared] - minus.scores[:shared],
            rtol=0,
            atol=1e-12,
        )
        np.testing.assert_array_equal(attribution.scores[shared : len(plus)], plus.scores[shared:])
        np.testing.assert_array_equal(attribution.scores[len(plus) :], -minus.scores[shared:])
        expected_logits = [
            explained.logits[: len(explained.row.continuation_ids)].sum()
            for explained in (plus, minus)
        ]
        np.testing.assert_allclose(attribution.logits, expected_logits, rtol=0, atol=1e-9)
        assert attribution.target.name == "‘a red mat’ rather than ‘the dog’"
        assert attribution.row.segment_names[-2:] == ("written", "instead")

    def test_a_continuation_is_not_compared_with_a_token(self, explainer: Explainer) -> None:
        with expect_error(BadTarget, "contrast-of-one-continuation"):
            explainer.explain("the cat", target=Contrast(Continuation(" red"), "dog"))
        same = Continuation(" red dog")
        with expect_error(BadTarget, "contrast-of-equal-texts"):
            explainer.explain("the cat", target=Contrast(same, same))


@pytest.mark.parametrize("method", ["rollout", "raw_att", "saliency"])
def test_methods_without_signs_are_refused(reranker: Explainer, method: str) -> None:
    """Every token of the other text would seem to speak against the target."""
    with expect_error(BadTarget, "difference-needs-signed-method", mentions=method):
        reranker.explain((QUERY, ABOVE), method, RankedAbove(BELOW))
    with expect_error(BadTarget, "difference-needs-signed-method", mentions=method):
        reranker.explain((QUERY, ABOVE), ["attcat", method], RankedAbove(BELOW))
    explainer = Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))
    contrast = Contrast(Continuation(" a red mat"), Continuation(" the dog"))
    with expect_error(BadTarget, "difference-needs-signed-method", mentions=method):
        explainer.explain("the cat sat on", method, contrast)


def test_a_token_classifier_cannot_rank() -> None:
    from transformers import BertForTokenClassification

    model = randomize_weights(BertForTokenClassification(tiny_config()), torch.float64)
    with expect_error(BadTarget, "ranking-needs-pair"):
        Explainer(model, tiny_tokenizer()).explain((QUERY, ABOVE), target=RankedAbove(BELOW))


def test_a_contrast_of_single_token_continuations_equals_the_contrast_of_next_tokens() -> None:
    explainer = Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))
    contrast = Contrast(Continuation(" red"), Continuation(" dog"))
    attribution = explainer.explain("the cat sat on", "attnlrp", contrast)
    next_ones = explainer.explain("the cat sat on", "attnlrp", Contrast("red", "dog"))
    np.testing.assert_allclose(attribution.scores, next_ones.scores, rtol=0, atol=1e-9)
