"""Why this rather than that, where each is read by a pass of its own: rankings and continuations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from tests.tiny import randomised, tiny_bert, tiny_config, tiny_tokenizer
from tests.writers import small_llama, writer, writing_tokenizer
from tokenlight import Above, Attribution, Continuation, Contrast, Explainer
from tokenlight.errors import BadTarget
from tokenlight.trust import trusted

QUERY, ABOVE, BELOW = "who sat on the mat", "the red cat sat on the mat", "a dog in town"
ONE = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@pytest.fixture(scope="module")
def reranker() -> Explainer:
    return Explainer(tiny_bert(**ONE), tiny_tokenizer())


@pytest.fixture(scope="module")
def embedder() -> Explainer:
    model = randomised(BertModel(tiny_config(), add_pooling_layer=False), torch.float64)
    return Explainer(model, tiny_tokenizer())


def scored(explainer: Explainer, passage: str) -> tuple[float, np.ndarray]:
    """The twin: a cross-encoder's one logit, and gradient × input at its embeddings."""
    encoded = explainer.tokenizer(QUERY, passage, return_tensors="pt")
    model = explainer.live.model
    kinds = encoded["token_type_ids"]
    first = model.bert.embeddings(encoded["input_ids"], kinds).detach().requires_grad_()
    pooled = model.bert.pooler(model.bert.encoder(first).last_hidden_state)
    value = model.classifier(pooled)[0, 0]
    (slope,) = torch.autograd.grad(value, first)
    return float(value.detach()), (slope * first).sum(-1)[0].detach().numpy()


class TestRankings:
    def test_a_cross_encoders_score_is_its_one_logit(self, reranker: Explainer) -> None:
        found = reranker.explain((QUERY, ABOVE), "grad_x_input")
        value, scores = scored(reranker, ABOVE)
        assert found.logits[0] == pytest.approx(value, abs=1e-12)
        np.testing.assert_allclose(found.scores, scores, rtol=0, atol=1e-12)

    def test_above_is_the_difference_of_two_scores_over_query_and_both_passages(
        self, reranker: Explainer
    ) -> None:
        found = reranker.explain((QUERY, ABOVE), "grad_x_input", Above(BELOW))
        (high, plus), (low, minus) = (scored(reranker, one) for one in (ABOVE, BELOW))
        np.testing.assert_allclose(found.logits, [high, low], rtol=0, atol=1e-12)
        border = 1 + 5 + 1  # [CLS], the query, [SEP]
        expected = np.concatenate([plus[:border] - minus[:border], plus[border:], -minus[border:]])
        np.testing.assert_allclose(found.scores, expected, rtol=0, atol=1e-12)
        assert found.row.texts == (QUERY, ABOVE, BELOW)
        assert [one.name for one in found.by("document")] == ["query", "above", "below"]
        assert found.row.surface[border + 8 :] == ("a", "dog", "in", "town", "[SEP]")
        assert " above " in found.target.name

    def test_the_other_way_round_all_signs_turn(self, reranker: Explainer) -> None:
        ways = [((QUERY, ABOVE), Above(BELOW)), ((QUERY, BELOW), Above(ABOVE))]
        one, other = (reranker.explain(pair, "occlusion", target) for pair, target in ways)
        sums = [{part.text: part.total for part in a.by("document")} for a in (one, other)]
        for text in (QUERY, ABOVE, BELOW):
            assert sums[0][text] == pytest.approx(-sums[1][text], abs=1e-9)

    def test_a_bi_encoder_ranks_by_its_cosines(self, embedder: Explainer) -> None:
        found = embedder.explain((QUERY, ABOVE), "integrated_gradients", Above(BELOW))
        each = [embedder.explain((QUERY, one), "integrated_gradients") for one in (ABOVE, BELOW)]
        np.testing.assert_array_equal(found.logits, [one.logits[0] for one in each])
        sums = [[part.total for part in one.by("document")] for one in each]
        expected = [sums[0][0] - sums[1][0], sums[0][1], -sums[1][1]]
        assert [one.total for one in found.by("document")] == pytest.approx(expected, abs=1e-9)

    def test_of_a_classifier_a_label_ranks(self) -> None:
        classifier = Explainer(tiny_bert(), tiny_tokenizer())
        with pytest.raises(BadTarget, match="say which of them ranks"):
            classifier.explain((QUERY, ABOVE), target=Above(BELOW))
        found = classifier.explain((QUERY, ABOVE), "grad_x_input", Above(BELOW, "positive"))
        each = [classifier.explain((QUERY, one), target="positive") for one in (ABOVE, BELOW)]
        np.testing.assert_allclose(found.logits, [one.logits[2] for one in each], atol=1e-12)

    def test_it_survives_a_file_and_its_pictures_name_both(
        self, reranker: Explainer, tmp_path: Any
    ) -> None:
        found = reranker.explain((QUERY, ABOVE), ["attcat", "grad_x_input"], Above(BELOW))
        back = Attribution.load(found[1].save(tmp_path / "why.json"))
        assert (back.row, back.target) == (found[1].row, found[1].target)
        page = found[0].save(tmp_path / "why.html").read_text()
        assert "above" in page
        assert "below" in page

    def test_nothing_asks_a_model_about_two_passes_at_once(self, reranker: Explainer) -> None:
        classifier = Explainer(tiny_bert(), tiny_tokenizer())
        for one, target in ((reranker, Above(BELOW)), (classifier, Above(BELOW, 1))):
            found = one.explain((QUERY, ABOVE), "grad_x_input", target)
            assert trusted(one, found).extras["trust"]["grade"] == "untested"
        (measured,) = classifier.evaluate(found, "aopc").rows
        assert "two passes at once" in measured["aopc.skipped"]

    def test_what_is_no_ranking_is_refused(self, reranker: Explainer) -> None:
        for text in (QUERY, [QUERY]):
            with pytest.raises(BadTarget, match="compares two second texts"):
                reranker.explain(text, target=Above(BELOW))
        with pytest.raises(BadTarget, match="both sides"):
            reranker.explain((QUERY, ABOVE), target=Above(ABOVE))


@pytest.mark.parametrize("name", ["llama", "bart"])
class TestContinuations:
    @pytest.fixture
    def explainer(self, name: str) -> Explainer:
        ends = name == "bart"
        model = writer("bart") if ends else small_llama()
        return Explainer(model, writing_tokenizer(ends=ends))

    def test_one_continuation_rather_than_another_is_the_difference_of_two(
        self, explainer: Explainer
    ) -> None:
        prompt, this, that = "the cat sat on", " a red mat", " the dog"
        found = explainer.explain(
            prompt, "grad_x_input", Contrast(Continuation(this), Continuation(that))
        )
        plus, minus = (
            explainer.explain(prompt, "grad_x_input", Continuation(one, together=True))[0]
            for one in (this, that)
        )
        shared = found.extras["difference"]["border"]
        np.testing.assert_allclose(
            found.scores[:shared], plus.scores[:shared] - minus.scores[:shared], rtol=0, atol=1e-12
        )
        np.testing.assert_array_equal(found.scores[shared : len(plus)], plus.scores[shared:])
        np.testing.assert_array_equal(found.scores[len(plus) :], -minus.scores[shared:])
        chosen = [one.logits[: len(one.row.answer)].sum() for one in (plus, minus)]
        np.testing.assert_allclose(found.logits, chosen, rtol=0, atol=1e-9)
        assert found.target.name == "‘a red mat’ rather than ‘the dog’"
        assert found.row.names[-2:] == ("written", "instead")

    def test_a_continuation_is_not_compared_with_a_token(self, explainer: Explainer) -> None:
        with pytest.raises(BadTarget, match="two continuations"):
            explainer.explain("the cat", target=Contrast(Continuation(" red"), "dog"))
        same = Continuation(" red dog")
        with pytest.raises(BadTarget, match="both sides"):
            explainer.explain("the cat", target=Contrast(same, same))


def test_a_tagger_ranks_nothing() -> None:
    from transformers import BertForTokenClassification

    model = randomised(BertForTokenClassification(tiny_config()), torch.float64)
    with pytest.raises(BadTarget, match="compares two second texts"):
        Explainer(model, tiny_tokenizer()).explain((QUERY, ABOVE), target=Above(BELOW))


def test_of_single_tokens_it_is_the_contrast_of_next_tokens() -> None:
    explainer = Explainer(small_llama(), writing_tokenizer(ends=False))
    both = Contrast(Continuation(" red"), Continuation(" dog"))
    found = explainer.explain("the cat sat on", "attnlrp", both)
    next_ones = explainer.explain("the cat sat on", "attnlrp", Contrast("red", "dog"))
    np.testing.assert_allclose(found.scores, next_ones.scores, rtol=0, atol=1e-9)
