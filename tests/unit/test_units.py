"""Whole units taken away: documents, sentences and words in occlusion, lime, shapley, context_cite."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso, LinearRegression

from tests.copying import case, copier
from tests.planted import VOCABULARY, planted, row_of
from tests.tiny import tiny_bert, tiny_tokenizer
from tests.tolerance import close
from tests.writers import small_llama, writer, writing_tokenizer
from tokenlight import Context, Continuation, Explainer, Tokens
from tokenlight.data.target import Head, ResolvedTarget, log_chance, log_odds
from tokenlight.errors import BadInput
from tokenlight.methods.context_cite import lasso

ASKED = Context(["the cat sat! a dog ran.", "a red mat", "the dog"], "on a mat")
WHOLE = Continuation(" the red dog", together=True)
PLANTED = {10: 2.0, 11: 1.0, 12: 0.5, 13: -1.0}  # what each word adds to class 1


@pytest.fixture(scope="module")
def llama() -> Explainer:
    return Explainer(small_llama(), writing_tokenizer(ends=False))


def bag() -> tuple[Explainer, Tokens]:
    """A model whose logits are sums over words, and a text of two documents of two words each."""
    weights = np.zeros((VOCABULARY, 2))
    for word, weight in PLANTED.items():
        weights[word, 1] = weight
    row = replace(row_of([10, 11, 12, 13]), texts=("ten eleven", "twelve thirteen"))
    segments = (None, 0, 0, 1, 1, None)
    spans = (None, (0, 3), (4, 10), (0, 6), (7, 15), None)
    return planted(weights), Tokens((replace(row, segments=segments, spans=spans),))


class TestUnitsOfABag:
    """Where words simply add, every way to take documents away gives their sums."""

    @pytest.mark.parametrize(
        "method",
        [
            ("occlusion", {"units": "document"}),
            ("shapley", {"units": "document", "samples": 3}),
            ("lime", {"units": "document", "alpha": 0.0, "mask_probability": 0.5}),
        ],
    )
    def test_a_document_scores_the_sum_of_its_words(self, method: Any) -> None:
        explainer, text = bag()
        found = explainer.explain(text, method, 1)
        close(found.scores[1:-1], [1.5, 1.5, -0.25, -0.25])
        assert [part.total for part in found.by("document")] == pytest.approx([3.0, -0.5])

    def test_context_cite_without_shrinking_gives_the_log_odds_of_each_document(self) -> None:
        explainer, text = bag()
        found = explainer.explain(text, ("context_cite", {"units": "document", "alpha": 0.0}), 1)
        # Of two classes the log-odds are the difference of the logits, which adds up by word.
        parts = found.by("document")
        assert [part.total for part in parts] == pytest.approx([3.0, -0.5], abs=1e-8)
        assert [(part.low, part.high) for part in parts] == [
            (pytest.approx(3.0, abs=1e-8), pytest.approx(3.0, abs=1e-8)),
            (pytest.approx(-0.5, abs=1e-8), pytest.approx(-0.5, abs=1e-8)),
        ]

    def test_top_k_drop_is_the_fall_in_log_probability(self) -> None:
        explainer, text = bag()
        found = explainer.explain(text, ("occlusion", {"units": "document"}), 1)
        metric = ("top_k_drop", {"k": 1, "units": "document"})
        (row,) = explainer.evaluate([found], [metric]).rows
        whole, left = (math.log(1 / (1 + math.exp(-z))) for z in (2.5, -0.5))
        assert row["top_k_drop"] == pytest.approx(whole - left)

    def test_true_sums_foretell_every_subset_and_reversed_ones_none(self) -> None:
        explainer, text = bag()
        found = explainer.explain(text, ("occlusion", {"units": "word"}), 1)
        metric = ("linear_datamodelling", {"units": "word"})
        key = "linear_datamodelling"
        for scores, expected in ((found.scores, 1.0), (-found.scores, -1.0), (0 * found.scores, 0)):
            (row,) = explainer.evaluate([replace(found, scores=scores)], [metric]).rows
            assert row[key] == pytest.approx(expected)


def test_a_lasso_is_the_one_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    table = (generator.random((40, 6)) < 0.5).astype(float)
    table[:, 4] = 1.0  # a source that was never taken away
    values = table @ [3.0, 0.0, -1.0, 0.2, 5.0, 0.0] + 0.1 * generator.normal(size=40)
    counts = generator.multinomial(40, np.full(40, 1 / 40), 3)
    found = lasso(table, values, np.concatenate((np.ones((1, 40)), counts)) / 40, 0.05)
    for own, count in zip(found, (np.ones(40, dtype=int), *counts), strict=True):
        rows, targets = np.repeat(table, count, axis=0), np.repeat(values, count)
        spread = np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1.0)
        theirs = Lasso(alpha=0.05, tol=1e-13, max_iter=100_000)
        theirs.fit((rows - rows.mean(axis=0)) / spread, targets)
        np.testing.assert_allclose(own, theirs.coef_ / spread, atol=1e-7)
    assert not found[:, 4].any()


def test_log_odds_stay_finite_where_a_model_is_sure() -> None:
    head = Head("classification", ("a", "b", "c"))
    one = ResolvedTarget("class", "a", (((0,), 1.0),))
    assert log_odds(head, one, np.array([1.0, 2.0, 3.0])) == pytest.approx(
        1 - math.log(math.exp(2) + math.exp(3))
    )
    answer = ResolvedTarget("answer", "‘x y’", (((0, 0), 1.0), ((1, 0), 1.0)))
    said = np.array([[1.0, 0.0], [0.0, 2.0]])
    chance = 1 / (1 + math.exp(-1)) / (1 + math.exp(2))
    assert log_chance(head, answer, said) == pytest.approx(math.log(chance))
    assert log_odds(head, answer, said) == pytest.approx(math.log(chance / (1 - chance)))
    sure = np.array([[60.0, 0.0], [70.0, 0.0]])
    assert log_odds(head, answer, sure) == pytest.approx(60 - math.log1p(math.exp(-10)))


class TestALanguageModel:
    def test_context_cite_takes_documents_away_and_nothing_else(self, llama: Explainer) -> None:
        (found,) = llama.explain(ASKED, "context_cite", WHOLE)
        parts = found.by("sentence")
        assert [part.low is not None for part in parts] == [True] * 4 + [False] * 2
        assert all(part.low <= part.high for part in parts[:4])
        by_name = {part.name: part.total for part in found.by("document")}
        assert by_name["question"] == by_name["written"] == 0.0

    @pytest.mark.parametrize(
        ("span", "tokens", "alpha"), [(None, 3, 0), (None, 3, 0.003), ("dog", 1, 0.003)]
    )
    def test_it_fits_the_text_with_documents_deleted_as_the_authors_code_does(
        self, llama: Explainer, span: str | None, tokens: int, alpha: float
    ) -> None:
        short = Context(["the cat sat", "a red mat"], "on a mat", template="{documents} {question}")
        answer = replace(WHOLE, span=span)
        (found,) = llama.explain(
            short, ("context_cite", {"units": "document", "alpha": alpha}), answer
        )

        def odds(documents: list[str]) -> float:
            prompt = " ".join([*documents, "on a mat"])
            (own,) = llama.explain(prompt, "random", answer)
            return log_odds(llama.live.head, own.target, own.logits.reshape(2, -1).T)

        both, first, second, none = (
            odds(own) for own in (["the cat sat", "a red mat"], ["the cat sat"], ["a red mat"], [])
        )
        there = found.row.generator(0).random((64, 2)) < 0.5
        outcomes = np.select(
            [there.all(axis=1), there[:, 0], there[:, 1]], [both, first, second], none
        )
        spread = there.std(axis=0)
        theirs = Lasso(alpha=alpha, tol=1e-13) if alpha else LinearRegression()
        theirs.fit((there - there.mean(axis=0)) / spread, outcomes / tokens)
        expected = theirs.coef_ / spread * tokens
        assert np.abs(expected).max() > 0
        totals = [part.total for part in found.by("document")][:2]
        np.testing.assert_allclose(totals, expected, rtol=1e-6)  # rotary angles are float32

    @pytest.mark.parametrize("name", ["occlusion", "shapley", "lime"])
    @pytest.mark.parametrize("unit", ["document", "sentence", "word"])
    def test_a_units_tokens_share_its_score(self, llama: Explainer, name: str, unit: str) -> None:
        (found,) = llama.explain(ASKED, (name, {"units": unit}), WHOLE)
        for part in found.by(unit):  # type: ignore[arg-type]
            assert np.ptp(found.scores[list(part.positions)]) == 0.0
        assert found.scores.any()

    def test_documents_cost_shapley_one_pass_for_each_set_of_them_at_most(
        self, llama: Explainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tokenlight.capture import rerun

        asked = []
        stream = rerun.stream_logits

        def counted(live: Any, sequences: Any, **how: Any) -> Any:
            given = list(sequences)
            asked.append(len({variant.ids.tobytes() for variant in given}))
            return stream(live, given, **how)

        monkeypatch.setattr(rerun, "stream_logits", counted)
        documents = Context([f"the {w} sat" for w in ("cat", "dog", "mat", "die", "red")], "a mat")
        llama.explain(documents, ("shapley", {"units": "document", "samples": 25}))
        assert asked[0] <= 2**5

    def test_a_model_that_writes_after_a_source_takes_units_too(self) -> None:
        bart = Explainer(writer("bart"), writing_tokenizer())
        for method in ("context_cite", ("shapley", {"units": "document"})):
            (found,) = bart.explain(ASKED, method, WHOLE)
            assert found.scores.any()


def test_premise_and_hypothesis_are_documents_of_a_classifier() -> None:
    bert = Explainer(tiny_bert(), tiny_tokenizer())
    found = bert.explain(("the film is good", "we love it"), ("shapley", {"units": "document"}))
    both = sum(part.total for part in found.by("document"))
    assert both == pytest.approx(found.scores.sum())
    assert len(found.extras["units"]["positions"]) == 2


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (("occlusion", {"units": "word", "window": 2}), "occlusion's window is of tokens"),
        (("lime", {"units": "word", "features": "ids"}), "lime's features is of tokens"),
        (("shapley", {"units": "word", "orders": "captum"}), "shapley's orders is of tokens"),
        (("occlusion", {"units": "page"}), "units"),
        (("shapley", {"units": "sentence"}), "has no sentences"),
    ],
)
def test_what_units_cannot_be_is_refused(llama: Explainer, method: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        llama.explain(Tokens.from_ids([[3, 4, 5, 6]]), method)


@pytest.mark.parametrize("method", ["context_cite", "occlusion"])
def test_the_document_an_answer_was_copied_from_comes_first(method: str) -> None:
    explainer = copier()
    for seed in range(10):
        asked, answer, right = case(seed)
        target = Continuation(answer, together=True)
        (found,) = explainer.explain(asked, (method, {"units": "document"}), target)
        totals = [part.total for part in found.by("document")]
        assert found.prediction.probability is not None
        assert found.prediction.probability > 0.5
        assert int(np.argmax(totals)) == right
