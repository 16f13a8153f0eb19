"""Subset relevance: what a partial text keeps, what its mean equals, and how uncertain it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tests.helpers.image_models import build_model as build_image_model
from tests.helpers.image_models import make_pictures
from tests.helpers.planted_model import VOCABULARY, make_planted_explainer, make_row
from tests.helpers.tiny import tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tokenlight import Context, Continuation, Explainer, Question, Tokens
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput
from tokenlight.methods._sampling import ScoreSamples
from tokenlight.perturb.partial_texts import (
    draw_kept_units,
    find_kept_tokens,
    group_removable_units,
    make_partial_text,
)

TOKENIZER = tiny_tokenizer()
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
TEXT = "the film is not very charming , but we love it !"
TEXTS = [TEXT, "a dull plot", "never ever hate this movie . it was fun and the acting is great"]
CLASS = ResolvedTarget("class", "positive", (((2,), 1.0),))
QUESTION = Question(question="who sat on the mat ?", context="the cat sat on the mat in town .")


def explain(
    text: Any, explainer: Explainer = EXPLAINER, target: Any = "predicted", **options: Any
) -> Any:
    return explainer.explain(text, ("subset_relevance", options), target)


def draw_like_the_method(row: TokenRow, samples: int, seed: int = 0) -> np.ndarray:
    """Return ``sample token``: the tokens that each partial text of the first round keeps."""
    is_kept = find_kept_tokens(row, CLASS, reads_last_token=False)
    units = group_removable_units(row, "token", is_kept)
    draws = draw_kept_units(row.make_generator(seed, 0), len(units), samples, 0.5)
    return np.array([is_kept | units[drawn_units].any(axis=0) for drawn_units in draws])


class TestWhatItEquals:
    @pytest.mark.parametrize(
        "options", [{"num_samples": 0}, {"num_samples": 3, "keep_probability": 1.0}]
    )
    @pytest.mark.parametrize("gradient", ["model", "attnlrp", "attention_constant", "gim"])
    @pytest.mark.parametrize("readout", ["cat", "attcat"])
    def test_subset_relevance_without_removed_tokens_equals_the_read_out(
        self, readout, gradient, options
    ) -> None:
        expected = EXPLAINER.explain(TEXTS, (readout, {"gradient": gradient}))
        actual = explain(TEXTS, readout=readout, gradient=gradient, **options)
        for attribution, other in zip(actual, expected, strict=True):
            assert_close(attribution.scores, other.scores)

    @pytest.mark.parametrize(("gradient", "method"), [("attnlrp", "attnlrp"), ("cp", "cp_lrp")])
    def test_subset_relevance_at_the_embeddings_equals_the_relevance_of_its_gradient(
        self, gradient, method
    ) -> None:
        actual = explain(TEXT, readout="embeddings", gradient=gradient, samples=0)
        assert_close(actual.scores, EXPLAINER.explain(TEXT, method).scores)

    def test_subset_relevance_of_an_additive_model_equals_the_shapley_value(self) -> None:
        weights = np.zeros((VOCABULARY, 2))
        weights[10:14, 1] = [2.0, 1.0, 0.5, -1.0]
        text = Tokens((make_row([10, 11, 12, 13]),))
        explainer = make_planted_explainer(weights)
        options = {"readout": "embeddings", "gradient": "model"}
        actual = explain(text, explainer, 1, **options)
        shapley = explainer.explain(text, "shapley", 1)
        assert_close(actual.scores, shapley.scores)
        assert_close(actual.standard_errors, np.zeros(6))
        assert actual.extras["sampling"]["self_test"]["correlation"] == pytest.approx(1.0)

    @pytest.mark.parametrize("readout", ["cat", "attcat", "embeddings"])
    def test_subset_relevance_is_the_mean_over_partial_texts_explained_one_by_one(
        self, readout
    ) -> None:
        """A slow twin: every partial text is a text of its own."""
        method = {"embeddings": "grad_x_input"}.get(readout, readout)
        spec = (method, {"gradient": "attnlrp"})
        whole = EXPLAINER.explain(TEXT, spec, "positive")
        total = whole.scores.copy()
        count = np.ones(len(total))
        for is_drawn in draw_like_the_method(whole.row, 6):
            ids = [
                token_id for token_id, stays in zip(whole.row.ids, is_drawn, strict=True) if stays
            ]
            part = EXPLAINER.explain(
                Tokens.from_ids([ids], token_type_ids=[[0] * len(ids)]), spec, "positive"
            )
            total[is_drawn] += part.scores
            count += is_drawn
        actual = explain(TEXT, target="positive", readout=readout, gradient="attnlrp", samples=6)
        assert_close(actual.scores, total / count)

    @pytest.mark.parametrize("removal", ["hide", "replace"])
    def test_tokens_that_are_not_deleted_keep_their_positions(self, removal) -> None:
        whole = EXPLAINER.explain(TEXT, ("cat", {"gradient": "attnlrp"}), "positive")
        total = whole.scores.copy()
        count = np.ones(len(total))
        token_id = TOKENIZER.mask_token_id if removal == "hide" else TOKENIZER.pad_token_id
        for is_drawn in draw_like_the_method(whole.row, 4):
            row = make_partial_text(whole.row, ~is_drawn, removal, token_id).row
            assert row.ids == tuple(np.where(is_drawn, whole.row.ids, token_id))
            assert row.is_unmasked == (removal == "replace")
            part = EXPLAINER.explain(row, ("cat", {"gradient": "attnlrp"}), "positive")
            total[is_drawn] += part.scores[is_drawn]
            count += is_drawn
        actual = explain(TEXT, target="positive", gradient="attnlrp", removal=removal, samples=4)
        assert_close(actual.scores, total / count)


class TestPartialTexts:
    @settings(max_examples=40)
    @given(
        num_units=st.integers(1, 30),
        num_samples=st.integers(1, 20),
        share=st.floats(0.05, 1.0),
        seed=st.integers(0, 1000),
    )
    def test_draws_are_balanced(self, num_units, num_samples, share, seed) -> None:
        generator = np.random.default_rng(seed)
        counts = draw_kept_units(generator, num_units, num_samples, share).sum(axis=0)
        assert (counts >= 1).all()
        assert (np.abs(counts - np.maximum(share * num_samples, 1)) < 1).all()

    def test_every_second_unit_is_kept_in_the_mean(self) -> None:
        draws = draw_kept_units(np.random.default_rng(0), 2000, 7, 0.3)
        assert draws.mean() == pytest.approx(0.3, abs=0.005)

    def test_words_and_sentences_stay_whole(self) -> None:
        row = EXPLAINER.explain("it was charming . we love it !", "random").row
        is_kept = find_kept_tokens(row, CLASS, reads_last_token=False)
        words = group_removable_units(row, "word", is_kept)
        charming = [row.pieces.index("charm"), row.pieces.index("##ing")]
        assert charming in [np.flatnonzero(word).tolist() for word in words]
        assert len(group_removable_units(row, "sentence", is_kept)) == 2

    def test_an_answer_and_its_question_are_never_removed(self) -> None:
        explainer = Explainer(tiny_bert_qa(), TOKENIZER)
        attribution = explainer.explain(QUESTION, "cat")
        row = attribution.row
        is_kept = find_kept_tokens(row, attribution.target, reads_last_token=False)
        for position, segment in enumerate(row.segments):
            assert is_kept[position] or segment == 1
        answer = [position for (position, _), _ in attribution.target.terms]
        assert is_kept[min(answer) : max(answer) + 1].all()
        partial_text = make_partial_text(row, ~is_kept, "delete", 0)
        moved = partial_text.move_target(attribution.target)
        for ((old, _), _), ((new, _), _) in zip(attribution.target.terms, moved.terms, strict=True):
            assert partial_text.row.ids[new] == row.ids[old]

    def test_a_text_of_special_tokens_only_is_explained_as_a_whole(self) -> None:
        text = Tokens.from_ids([[TOKENIZER.cls_token_id, TOKENIZER.sep_token_id]])
        attribution = explain(text, gradient="attnlrp")
        assert_close(
            attribution.scores, EXPLAINER.explain(text, ("cat", {"gradient": "attnlrp"})).scores
        )
        assert attribution.extras["sampling"]["samples"] == 0


class TestKindsOfInput:
    def test_pairs_questions_and_masked_words_are_explained(self) -> None:
        for explainer, text in (
            (EXPLAINER, (TEXT, TEXTS[1])),
            (Explainer(tiny_bert_qa(), TOKENIZER), QUESTION),
        ):
            attribution = explain(text, explainer)
            assert np.isfinite(attribution.scores).all()
            assert len(attribution.standard_errors) == len(attribution)

    def test_a_language_model_keeps_its_last_token(self) -> None:
        explainer = Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))
        attribution = explain("the cat sat on a red", explainer)
        is_kept = find_kept_tokens(attribution.row, attribution.target, reads_last_token=True)
        assert is_kept[-1]
        assert np.isfinite(attribution.scores).all()
        context = Context(["the cat sat! a dog ran.", "a red mat"], "on a mat")
        target = Continuation(" the red dog", joint=True)
        (joint,) = explain(context, explainer, target, units="sentence")
        assert np.isfinite(joint.scores).all()

    def test_only_source_tokens_of_an_encoder_decoder_model_are_removed(self) -> None:
        explainer = Explainer(make_seq2seq_model("bart"), make_seq2seq_tokenizer())
        attributions = explain("the cat sat on a red mat", explainer, Continuation(" a dog"))
        for attribution in attributions:
            row = attribution.row
            is_kept = find_kept_tokens(row, attribution.target, reads_last_token=True)
            assert is_kept[row.source_length :].all()
            assert not is_kept[: row.source_length].all()

    def test_patches_are_occluded(self) -> None:
        explainer = Explainer(build_image_model("vit"))
        (attribution,) = explain(make_pictures(1), explainer)
        assert np.isfinite(attribution.scores).all()
        partial_text = make_partial_text(
            attribution.row, np.arange(len(attribution)) == 1, "delete", 0
        )
        assert len(partial_text.row) == len(attribution)
        assert partial_text.row.ids[1] != attribution.row.ids[1]


class TestUncertainty:
    def test_errors_are_the_standard_errors_of_the_mean_over_draws(self) -> None:
        """Against the spread of the score itself over many seeds, which four draws know only roughly."""
        runs = [
            explain(TEXT, target="positive", gradient="attnlrp", seed=seed) for seed in range(40)
        ]
        spread = np.std([run.scores for run in runs], axis=0, ddof=1)[1:-1]
        errors = np.mean([run.standard_errors for run in runs], axis=0)[1:-1]
        assert 0.75 < np.median(errors / spread) < 1.5

    def test_a_single_draw_is_compared_with_the_whole_text(self) -> None:
        samples = ScoreSamples(make_row([10, 11]), seed=0)
        samples.set_whole_scores(np.array([0.0, 3.0, 5.0, 0.0]))
        samples.add(np.array([0, 1, 3]), np.array([0.0, 1.0, 0.0]), 1.0)
        np.testing.assert_allclose(samples.mean, [0.0, 2.0, 5.0, 0.0])
        deviation = np.std([1.0, 3.0], ddof=1)
        # The token that no partial text holds is as uncertain as the most uncertain one.
        np.testing.assert_allclose(
            samples.standard_errors, [0.0, deviation / 2, deviation / 2, 0.0]
        )

    def test_errors_follow_the_formula(self) -> None:
        generator = np.random.default_rng(3)
        draws = generator.normal(size=(5, 4))
        samples = ScoreSamples(make_row([10, 11]), seed=0)
        samples.set_whole_scores(np.zeros(4))
        for values in draws:
            samples.add(np.arange(4), values, 0.0)
        expected = draws.std(axis=0, ddof=1) * 5**0.5 / 6
        np.testing.assert_allclose(samples.standard_errors, expected)
        np.testing.assert_allclose(samples.mean, draws.sum(axis=0) / 6)

    def test_scores_far_apart_are_stable_and_equal_ones_are_not(self) -> None:
        words = list(range(10, 20))
        for whole, noise, is_stable in (
            (np.arange(12) * 9.0, 0.1, True),
            (np.ones(12), 1.0, False),
        ):
            generator = np.random.default_rng(1)
            samples = ScoreSamples(make_row(words), seed=0)
            samples.set_whole_scores(whole)
            for _ in range(8):
                samples.add(np.arange(12), whole + noise * generator.normal(size=12), 0.0)
            assert (samples.compute_stability(3) > 0.95) == is_stable
        assert ScoreSamples(make_row([10, 11]), seed=0).compute_stability(2) == 1.0

    def test_sampling_continues_until_the_top_is_stable(self) -> None:
        strict = explain(TEXTS, samples=4, stable=1.0, max_samples=16)
        num_samples = [attribution.extras["sampling"]["samples"] for attribution in strict]
        # Three words: their top five cannot change. A draw without any of them is left out.
        assert num_samples[1] in (3, 4)
        assert num_samples[::2] == [16, 16]
        lax = explain(TEXT, samples=4, stable=0.0)
        assert lax.extras["sampling"]["samples"] == 4
        alone = explain(TEXT, samples=4, stable=1.0, max_samples=16)
        assert_close(alone.scores, strict[0].scores)


class TestSelfTest:
    def fill(self, num_samples: int, seed: int, *, truth: float, noise: float) -> ScoreSamples:
        """Partial texts of 12 words whose target is ``truth`` × the sum of planted scores, plus noise.

        Their scores hold the noise of their own target, spread over their tokens: relevance conserves.
        """
        generator = np.random.default_rng(seed)
        planted_scores = generator.normal(size=14)
        samples = ScoreSamples(make_row(list(range(10, 22))), seed=seed)
        samples.set_whole_scores(truth * planted_scores)
        for is_drawn in draw_kept_units(generator, 12, num_samples, 0.5):
            positions = np.flatnonzero(is_drawn) + 1
            error = noise * generator.normal()
            scores = truth * planted_scores[positions] + error / len(positions)
            samples.add(positions, scores, truth * planted_scores[positions].sum() + error)
        return samples

    def test_exact_scores_predict_partial_texts(self) -> None:
        prediction_test = self.fill(16, 0, truth=1.0, noise=0.1).test_prediction()
        assert prediction_test["correlation"] > 0.9
        assert prediction_test["samples"] == 16

    def test_random_scores_do_not_predict_partial_texts(self) -> None:
        """The noise of a partial text is in its own scores, and must not help to predict it."""
        prediction_tests = [
            self.fill(16, seed, truth=0.0, noise=1.0).test_prediction() for seed in range(200)
        ]
        mean = np.mean([test["correlation"] for test in prediction_tests])
        error = (
            np.std([test["correlation"] for test in prediction_tests])
            / len(prediction_tests) ** 0.5
        )
        assert abs(mean) < 4 * error

    def test_too_few_partial_texts_give_no_correlation(self) -> None:
        assert self.fill(3, 0, truth=1.0, noise=0.1).test_prediction() is None


class TestRefusals:
    def test_a_baseline_needs_replacement(self) -> None:
        with pytest.raises(BadInput) as refusal:
            explain(TEXT, baseline="unk")
        assert refusal.value.code == "baseline-without-replace"

    def test_stability_needs_samples(self) -> None:
        with pytest.raises(BadInput) as refusal:
            explain(TEXT, samples=0, stable=0.9)
        assert refusal.value.code == "stable-without-samples"

    @pytest.mark.parametrize(
        "options", [{"keep_probability": 0.0}, {"num_samples": -1}, {"gradient": "x"}]
    )
    def test_values_out_of_range_are_refused(self, options) -> None:
        with pytest.raises(BadInput):
            explain(TEXT, **options)


def test_subset_relevance_shares_a_pass_with_methods_that_read_attention_gradients() -> None:
    alone = explain(TEXT, target="positive")
    _, together = EXPLAINER.explain(TEXT, ["gae", "subset_relevance"], "positive")
    assert_close(together.scores, alone.scores)
