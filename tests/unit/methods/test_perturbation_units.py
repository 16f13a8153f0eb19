"""Whole units taken away: documents, sentences and words in occlusion, lime, shapley, context_cite."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso, LinearRegression

from tests.helpers.copy_model import draw_case, make_copy_explainer
from tests.helpers.encoder_decoder_models import (
    make_seq2seq_model,
    make_seq2seq_tokenizer,
    make_small_llama,
)
from tests.helpers.planted_model import VOCABULARY, make_planted_explainer, make_row
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import assert_close
from tokenlight import Context, Continuation, Explainer, Tokens
from tokenlight.data.head import Head
from tokenlight.data.odds import compute_target_log_odds, compute_target_log_probability
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import BadInput
from tokenlight.methods.context_cite import fit_lasso

ASKED = Context(["the cat sat! a dog ran.", "a red mat", "the dog"], "on a mat")
WHOLE = Continuation(" the red dog", joint=True)
PLANTED = {10: 2.0, 11: 1.0, 12: 0.5, 13: -1.0}  # what each word adds to class 1


@pytest.fixture(scope="module")
def llama() -> Explainer:
    return Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))


def make_bag_explainer() -> tuple[Explainer, Tokens]:
    """A model whose logits are sums over words, and a text of two documents of two words each."""
    weights = np.zeros((VOCABULARY, 2))
    for word, weight in PLANTED.items():
        weights[word, 1] = weight
    row = replace(make_row([10, 11, 12, 13]), texts=("ten eleven", "twelve thirteen"))
    segments = (None, 0, 0, 1, 1, None)
    spans = (None, (0, 3), (4, 10), (0, 6), (7, 15), None)
    return make_planted_explainer(weights), Tokens((replace(row, segments=segments, spans=spans),))


class TestUnitsOfABag:
    """Where words simply add, every way to take documents away gives their sums."""

    @pytest.mark.parametrize(
        "method",
        [
            ("occlusion", {"units": "document"}),
            ("shapley", {"units": "document", "num_samples": 3}),
            ("lime", {"units": "document", "alpha": 0.0, "mask_probability": 0.5}),
        ],
    )
    def test_a_document_scores_the_sum_of_its_words(self, method: Any) -> None:
        explainer, text = make_bag_explainer()
        attribution = explainer.explain(text, method, 1)
        assert_close(attribution.scores[1:-1], [1.5, 1.5, -0.25, -0.25])
        assert [part.total for part in attribution.group_by("document")] == pytest.approx(
            [3.0, -0.5]
        )

    def test_context_cite_without_shrinking_gives_the_log_odds_of_each_document(self) -> None:
        explainer, text = make_bag_explainer()
        attribution = explainer.explain(
            text, ("context_cite", {"units": "document", "alpha": 0.0}), 1
        )
        # Of two classes the log-odds are the difference of the logits, which adds up by word.
        parts = attribution.group_by("document")
        assert [part.total for part in parts] == pytest.approx([3.0, -0.5], abs=1e-8)
        assert [(part.low, part.high) for part in parts] == [
            (pytest.approx(3.0, abs=1e-8), pytest.approx(3.0, abs=1e-8)),
            (pytest.approx(-0.5, abs=1e-8), pytest.approx(-0.5, abs=1e-8)),
        ]

    def test_top_k_drop_is_the_fall_in_log_probability(self) -> None:
        explainer, text = make_bag_explainer()
        attribution = explainer.explain(text, ("occlusion", {"units": "document"}), 1)
        metric = ("top_k_drop", {"k": 1, "units": "document"})
        (row,) = explainer.evaluate([attribution], [metric]).rows
        complete, without = (math.log(1 / (1 + math.exp(-z))) for z in (2.5, -0.5))
        assert row["top_k_drop"] == pytest.approx(complete - without)

    def test_exact_sums_predict_every_subset_and_reversed_ones_none(self) -> None:
        explainer, text = make_bag_explainer()
        attribution = explainer.explain(text, ("occlusion", {"units": "word"}), 1)
        metric = ("linear_datamodelling", {"units": "word"})
        key = "linear_datamodelling"
        for scores, expected in (
            (attribution.scores, 1.0),
            (-attribution.scores, -1.0),
            (0 * attribution.scores, 0),
        ):
            (row,) = explainer.evaluate([replace(attribution, scores=scores)], [metric]).rows
            assert row[key] == pytest.approx(expected)


def test_the_lasso_equals_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    table = (generator.random((40, 6)) < 0.5).astype(float)
    table[:, 4] = 1.0  # a source that was never taken away
    values = table @ [3.0, 0.0, -1.0, 0.2, 5.0, 0.0] + 0.1 * generator.normal(size=40)
    counts = generator.multinomial(40, np.full(40, 1 / 40), 3)
    fits = fit_lasso(table, values, np.concatenate((np.ones((1, 40)), counts)) / 40, 0.05)
    for fit, count in zip(fits, (np.ones(40, dtype=int), *counts), strict=True):
        rows = np.repeat(table, count, axis=0)
        targets = np.repeat(values, count)
        spread = np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1.0)
        expected = Lasso(alpha=0.05, tol=1e-13, max_iter=100_000)
        expected.fit((rows - rows.mean(axis=0)) / spread, targets)
        np.testing.assert_allclose(fit, expected.coef_ / spread, atol=1e-7)
    assert not fits[:, 4].any()


def test_log_odds_stay_finite_where_a_model_is_sure() -> None:
    head = Head("text-classification", ("a", "b", "c"))
    target = ResolvedTarget("class", "a", (((0,), 1.0),))
    assert compute_target_log_odds(head, target, np.array([1.0, 2.0, 3.0])) == pytest.approx(
        1 - math.log(math.exp(2) + math.exp(3))
    )
    answer = ResolvedTarget("continuation", "‘x y’", (((0, 0), 1.0), ((1, 0), 1.0)))
    logits = np.array([[1.0, 0.0], [0.0, 2.0]])
    chance = 1 / (1 + math.exp(-1)) / (1 + math.exp(2))
    assert compute_target_log_probability(head, answer, logits) == pytest.approx(math.log(chance))
    assert compute_target_log_odds(head, answer, logits) == pytest.approx(
        math.log(chance / (1 - chance))
    )
    sure = np.array([[60.0, 0.0], [70.0, 0.0]])
    assert compute_target_log_odds(head, answer, sure) == pytest.approx(
        60 - math.log1p(math.exp(-10))
    )


class TestALanguageModel:
    def test_context_cite_removes_only_documents(self, llama: Explainer) -> None:
        (attribution,) = llama.explain(ASKED, "context_cite", WHOLE)
        parts = attribution.group_by("sentence")
        assert [part.low is not None for part in parts] == [True] * 4 + [False] * 2
        assert all(part.low <= part.high for part in parts[:4])
        by_name = {part.name: part.total for part in attribution.group_by("document")}
        assert by_name["question"] == by_name["written"] == 0.0

    @pytest.mark.parametrize(
        ("span", "tokens", "alpha"), [(None, 3, 0), (None, 3, 0.003), ("dog", 1, 0.003)]
    )
    def test_context_cite_fits_texts_with_documents_deleted_as_the_authors_code_does(
        self, llama: Explainer, span: str | None, tokens: int, alpha: float
    ) -> None:
        short = Context(["the cat sat", "a red mat"], "on a mat", template="{documents} {question}")
        answer = replace(WHOLE, span=span)
        (attribution,) = llama.explain(
            short, ("context_cite", {"units": "document", "alpha": alpha}), answer
        )

        def compute_log_odds(documents: list[str]) -> float:
            prompt = " ".join([*documents, "on a mat"])
            (explanation,) = llama.explain(prompt, "random", answer)
            logits = explanation.logits.reshape(2, -1).T
            return compute_target_log_odds(llama.runner.head, explanation.target, logits)

        with_both, first, second, none = (
            compute_log_odds(documents)
            for documents in (["the cat sat", "a red mat"], ["the cat sat"], ["a red mat"], [])
        )
        is_present = attribution.row.make_generator(0).random((64, 2)) < 0.5
        outcomes = np.select(
            [is_present.all(axis=1), is_present[:, 0], is_present[:, 1]],
            [with_both, first, second],
            none,
        )
        spread = is_present.std(axis=0)
        reference = Lasso(alpha=alpha, tol=1e-13) if alpha else LinearRegression()
        reference.fit((is_present - is_present.mean(axis=0)) / spread, outcomes / tokens)
        expected = reference.coef_ / spread * tokens
        assert np.abs(expected).max() > 0
        totals = [part.total for part in attribution.group_by("document")][:2]
        np.testing.assert_allclose(totals, expected, rtol=1e-6)  # rotary angles are float32

    @pytest.mark.parametrize("name", ["occlusion", "shapley", "lime"])
    @pytest.mark.parametrize("unit", ["document", "sentence", "word"])
    def test_a_units_tokens_share_its_score(self, llama: Explainer, name: str, unit: str) -> None:
        (attribution,) = llama.explain(ASKED, (name, {"units": unit}), WHOLE)
        for part in attribution.group_by(unit):  # type: ignore[arg-type]
            assert np.ptp(attribution.scores[list(part.positions)]) == 0.0
        assert attribution.scores.any()

    def test_documents_cost_shapley_one_pass_for_each_set_of_them_at_most(
        self, llama: Explainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tokenlight.trace import extra_passes

        num_distinct = []
        stream = extra_passes.stream_logits

        def count_passes(runner: Any, sequences: Any, **options: Any) -> Any:
            variants = list(sequences)
            num_distinct.append(len({variant.ids.tobytes() for variant in variants}))
            return stream(runner, variants, **options)

        monkeypatch.setattr(extra_passes, "stream_logits", count_passes)
        documents = Context([f"the {w} sat" for w in ("cat", "dog", "mat", "die", "red")], "a mat")
        llama.explain(documents, ("shapley", {"units": "document", "num_samples": 25}))
        assert num_distinct[0] <= 2**5

    def test_an_encoder_decoder_model_is_explained_by_units(self) -> None:
        bart = Explainer(make_seq2seq_model("bart"), make_seq2seq_tokenizer())
        for method in ("context_cite", ("shapley", {"units": "document"})):
            (attribution,) = bart.explain(ASKED, method, WHOLE)
            assert attribution.scores.any()


def test_premise_and_hypothesis_are_documents_of_a_classifier() -> None:
    bert = Explainer(tiny_bert(), tiny_tokenizer())
    attribution = bert.explain(
        ("the film is good", "we love it"), ("shapley", {"units": "document"})
    )
    total = sum(part.total for part in attribution.group_by("document"))
    assert total == pytest.approx(attribution.scores.sum())
    assert len(attribution.extras["units"]["positions"]) == 2


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (
            ("occlusion", {"units": "word", "window": 2}),
            "option window of occlusion applies to tokens",
        ),
        (
            ("lime", {"units": "word", "features": "ids"}),
            "option features of lime applies to tokens",
        ),
        (
            ("shapley", {"units": "word", "orders": "captum"}),
            "option orders of shapley applies to tokens",
        ),
        (("occlusion", {"units": "page"}), "units"),
        (("shapley", {"units": "sentence"}), "has no sentences"),
    ],
)
def test_invalid_units_are_refused(llama: Explainer, method: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        llama.explain(Tokens.from_ids([[3, 4, 5, 6]]), method)


@pytest.mark.parametrize("method", ["context_cite", "occlusion"])
def test_the_document_an_answer_was_copied_from_comes_first(method: str) -> None:
    explainer = make_copy_explainer()
    for seed in range(10):
        context, answer, right = draw_case(seed)
        target = Continuation(answer, joint=True)
        (attribution,) = explainer.explain(context, (method, {"units": "document"}), target)
        totals = [part.total for part in attribution.group_by("document")]
        assert attribution.prediction.probability is not None
        assert attribution.prediction.probability > 0.5
        assert int(np.argmax(totals)) == right
