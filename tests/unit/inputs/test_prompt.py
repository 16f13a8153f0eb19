"""Prompts of documents and a question: their layout, their parts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.encoder_decoder_models import make_seq2seq_tokenizer, make_small_llama
from tests.helpers.expect import expect_error
from tokenlight import Context, Continuation, Explainer, Tokens
from tokenlight.errors import BadInput, BadTarget, UnknownName, UnsupportedModel

DOCUMENTS = ("the cat sat on a mat! the dog ran.", "a red dog sat and ran.")

PROMPT = Context(DOCUMENTS, "the cat on a mat", template="{documents} and {question}")


@pytest.fixture(scope="module")
def llama() -> Explainer:
    return Explainer(make_small_llama(), make_seq2seq_tokenizer(ends=False))


class TestAContext:
    def test_names_of_a_table_name_its_documents(self, llama: Explainer) -> None:
        prompt = Context({"cats.txt": "the cat sat", "dogs.txt": "a dog ran"}, "the mat")
        attribution = llama.explain(prompt, "grad_x_input")
        assert [part.name for part in attribution.group_by("document")] == [
            "cats.txt",
            "dogs.txt",
            "question",
        ]

    def test_the_question_may_precede_the_documents_or_be_omitted(self, llama: Explainer) -> None:
        before = Context(["the cat"], "a dog", template="{question} on {documents}")
        assert llama.explain(before, "grad_x_input").row.segment_names == ("question", "document 1")
        alone = Context(["the cat", "a dog"], template="on {documents} and")
        assert llama.explain(alone, "grad_x_input").row.segment_names == (
            "document 1",
            "document 2",
        )

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((["the cat"], "a dog", "{documents}"), "needs {documents} once, and {question} once"),
            (("the cat",), "There are no documents"),
            (([],), "There are no documents"),
            (({"question": "the cat"},), "cannot be named 'question'"),
        ],
    )
    def test_invalid_prompts_are_refused(self, arguments: Any, message: str) -> None:
        with pytest.raises(BadInput, match=message):
            Context(*arguments)

    def test_a_model_that_does_not_generate_refuses_a_prompt(self) -> None:
        from tests.helpers.planted_model import make_planted_explainer

        with expect_error(UnsupportedModel, "model-reads-no-documents"):
            make_planted_explainer().explain(PROMPT, "occlusion")

    def test_words_that_do_not_occur_exactly_once_in_the_answer_are_refused(
        self, llama: Explainer
    ) -> None:
        with expect_error(BadTarget, "span-not-once", mentions="'mat' occurs 0 times"):
            llama.explain(PROMPT, "grad_x_input", Continuation(" the red dog", span="mat"))

    def test_unknown_units_are_refused_and_ids_have_no_sentences(self, llama: Explainer) -> None:
        attribution = llama.explain(Tokens.from_ids([[3, 4, 5]]), "grad_x_input")
        with pytest.raises(UnknownName, match="unit"):
            attribution.group_by("page")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="has no sentences"):
            attribution.group_by("sentence")
