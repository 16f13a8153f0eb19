"""Documents behind an answer: contexts, whole answers in one pass, and their parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.tolerance import EverythingInFloat64, close
from tests.writers import small_llama, writer, writing_tokenizer
from tokenlight import Attribution, Context, Continuation, Explainer, Tokens
from tokenlight.capture.objective import Objective
from tokenlight.data.target import Head, ResolvedTarget
from tokenlight.errors import BadInput, BadTarget, UnknownName, UnsupportedModel

DOCUMENTS = ("the cat sat on a mat! the dog ran.", "a red dog sat and ran.")
ASKED = Context(DOCUMENTS, "the cat on a mat", template="{documents} and {question}")
WRITTEN = "the red dog"
WHOLE = Continuation(" the red dog", together=True)


@pytest.fixture(scope="module")
def llama() -> Explainer:
    return Explainer(small_llama(), writing_tokenizer(ends=False))


@pytest.fixture(scope="module")
def bart() -> Explainer:
    return Explainer(writer("bart"), writing_tokenizer())


def forced(explainer: Explainer, a: Attribution) -> torch.Tensor:
    """The model's own log-probabilities of each written token, by a plain pass."""
    ids, given = torch.tensor([a.row.ids]), {}
    if a.row.source is not None:
        given = {"decoder_input_ids": ids[:, a.row.source :]}
        ids = ids[:, : a.row.source]
    logits = explainer.live.model(input_ids=ids, use_cache=False, **given).logits[0]
    written = torch.tensor(a.row.answer)
    return logits[-len(written) :].log_softmax(dim=-1)[range(len(written)), written].detach()


@pytest.mark.parametrize("name", ["llama", "bart"])
class TestAWholeAnswer:
    @pytest.fixture
    def explainer(self, name: str, request: pytest.FixtureRequest) -> Explainer:
        found: Explainer = request.getfixturevalue(name)
        return found

    def test_its_probability_is_the_product_of_the_tokens_own(self, explainer: Explainer) -> None:
        with EverythingInFloat64():
            (found,) = explainer.explain(ASKED, "grad_x_input", WHOLE)
            alone = forced(explainer, found)
        assert found.prediction.probability == pytest.approx(float(alone.sum().exp()), rel=1e-12)
        assert found.prediction.label == found.target.name.strip("‘’") == WRITTEN

    @pytest.mark.parametrize("method", ["grad_x_input", "integrated_gradients", "attnlrp"])
    def test_its_scores_are_the_sum_of_its_tokens_scores(
        self, explainer: Explainer, method: str
    ) -> None:
        with EverythingInFloat64():
            (whole,) = explainer.explain(ASKED, method, WHOLE)
            rows = explainer.explain(ASKED, method, Continuation(" the red dog"))
        total = np.zeros(len(whole))
        for row in rows:
            total[: len(row)] += row.scores
        close(whole.scores, total)

    def test_a_span_of_it_sums_the_tokens_of_these_words_alone(self, explainer: Explainer) -> None:
        asked = Continuation(" the red dog", span="red")
        with EverythingInFloat64():
            (span,) = explainer.explain(ASKED, "grad_x_input", replace(asked, together=True))
            (token,) = explainer.explain(ASKED, "grad_x_input", asked)
        close(span.scores[: len(token)], token.scores)
        assert not span.scores[len(token) :].any()  # what comes after foretells nothing
        assert span.target.name == "‘red’"

    def test_it_is_the_same_beside_answers_of_other_lengths(self, explainer: Explainer) -> None:
        others = [Continuation(" the", together=True), WHOLE, Continuation(" a mat", together=True)]
        with EverythingInFloat64():
            found = explainer.explain([ASKED] * 3, "occlusion", others)
            (alone,) = explainer.explain(ASKED, "occlusion", WHOLE)
        close(found[1].scores, alone.scores)

    def test_it_survives_saving_and_is_measured(self, explainer: Explainer, tmp_path: Any) -> None:
        found = explainer.explain(ASKED, "occlusion", WHOLE)
        again = Attribution.load(found[0].save(tmp_path / "whole.json"))
        assert again.row == found[0].row
        assert again.target == found[0].target
        assert np.isfinite(explainer.evaluate(found, "aopc").summary["aopc"]["mean"])

    def test_documents_and_question_are_parts_with_names(self, explainer: Explainer) -> None:
        (found,) = explainer.explain(ASKED, "grad_x_input", WHOLE)
        parts = found.by("document")
        assert [part.name for part in parts] == ["document 1", "document 2", "question", "written"]
        assert [part.text for part in parts] == [*DOCUMENTS, ASKED.question, "the red"]
        own = [i for i, special in enumerate(found.row.special) if not special]
        for unit in ("document", "sentence", "word", "token"):
            total = sum(part.total for part in found.by(unit))
            assert total == pytest.approx(found.scores[own].sum(), abs=1e-12)
        sentences = [part.text for part in found.by("sentence")][:3]
        assert sentences == ["the cat sat on a mat!", "the dog ran.", "a red dog sat and ran."]


def test_the_cross_entropy_of_an_answer_is_minus_its_log_probability() -> None:
    logits = torch.tensor([[[1.0, 2.0], [-3.0, 0.5], [0.25, 0.0]]], dtype=torch.float64)
    terms = tuple(((place, 0), 1.0) for place in (0, 2))
    target = ResolvedTarget("answer", "‘x’", terms)
    head = Head("classification", ("a", "b"), reads="next")
    loss = Objective.of(head, [target], torch.tensor([5]), torch.float64)
    shares = [math.exp(z) / (math.exp(z) + math.exp(o)) for z, o in ((1.0, 2.0), (0.25, 0.0))]
    found = float(loss(logits, torch.tensor([0]), "loss"))
    assert found == pytest.approx(-math.log(shares[0] * shares[1]), rel=1e-12)


def test_the_written_tokens_of_an_answer_are_never_taken_away(llama: Explainer) -> None:
    (found,) = llama.explain(ASKED, ("shapley", {"samples": 2}), WHOLE)
    assert not found.scores[-2:].any()
    assert found.scores[:-2].any()


def test_a_generated_answer_is_explained_together(llama: Explainer) -> None:
    (found,) = llama.explain(ASKED, "grad_x_input", Continuation(tokens=3, together=True))
    rows = llama.explain(ASKED, "grad_x_input", Continuation(tokens=3))
    assert found.row.answer == tuple(row.prediction.index for row in rows)


class TestAContext:
    def test_names_of_a_table_name_its_documents(self, llama: Explainer) -> None:
        given = Context({"cats.txt": "the cat sat", "dogs.txt": "a dog ran"}, "the mat")
        found = llama.explain(given, "grad_x_input")
        assert [part.name for part in found.by("document")] == ["cats.txt", "dogs.txt", "question"]

    def test_the_question_may_stand_before_the_documents_or_be_left_out(
        self, llama: Explainer
    ) -> None:
        before = Context(["the cat"], "a dog", template="{question} on {documents}")
        assert llama.explain(before, "grad_x_input").row.names == ("question", "document 1")
        alone = Context(["the cat", "a dog"], template="on {documents} and")
        assert llama.explain(alone, "grad_x_input").row.names == ("document 1", "document 2")

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ((["the cat"], "a dog", "{documents}"), "needs {documents} once, and {question} once"),
            (("the cat",), "documents are a list of texts"),
            (([],), "documents are a list of texts"),
            (({"question": "the cat"},), "cannot be named 'question'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, given: Any, said: str) -> None:
        with pytest.raises(BadInput, match=said):
            Context(*given)

    def test_a_model_that_does_not_write_refuses_it(self) -> None:
        from tests.planted import planted

        with pytest.raises(UnsupportedModel, match="writes nothing from documents"):
            planted().explain(ASKED, "occlusion")

    def test_words_that_do_not_stand_once_in_the_answer_are_refused(self, llama: Explainer) -> None:
        with pytest.raises(BadTarget, match="'mat' occurs 0 times in what was written"):
            llama.explain(ASKED, "grad_x_input", Continuation(" the red dog", span="mat"))

    def test_unknown_units_are_refused_and_ids_have_no_sentences(self, llama: Explainer) -> None:
        found = llama.explain(Tokens.from_ids([[3, 4, 5]]), "grad_x_input")
        with pytest.raises(UnknownName, match="unit"):
            found.by("page")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="has no sentences"):
            found.by("sentence")
