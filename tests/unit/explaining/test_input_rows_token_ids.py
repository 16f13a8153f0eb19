"""Token ids instead of a text: what is padding, what is refused, and how a long row is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    GPT2LMHeadModel,
)

from tests.helpers.expect import expect_error
from tests.helpers.tiny import (
    randomize_weights,
    tiny_bert,
    tiny_bert_qa,
    tiny_config,
    tiny_gpt,
    tiny_tokenizer,
)
from tests.helpers.tiny_byte_tokenizers import tiny_byte_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, TextTooLong

TOKENIZER = tiny_tokenizer()
BERT = Explainer(tiny_bert(), TOKENIZER)
WORDS = "the cat sat on the mat in town and the dog sat on the red mat"


@pytest.mark.parametrize("types", [[0, 1, 7], [0, -1, 0], [0, 2, 0]])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_token_type_that_the_model_does_not_know_is_refused(types, rows):
    ids = [[2, 13, 3]] * rows
    token_types = [[0, 0, 0]] * (rows - 1) + [types]
    with expect_error(BadInput, "unknown-token-type", mentions="knows 0 to 1"):
        BERT.explain(Tokens.from_ids(ids, None, token_types), "random")


@pytest.mark.parametrize("text", ["good zebra film", ("good film", "zebra")])
@pytest.mark.parametrize("method", ["attcat", "occlusion"])
def test_a_text_whose_ids_the_model_has_no_embedding_for_is_refused(text, method):
    tokenizer = tiny_tokenizer()
    model = tiny_bert()
    spare = model.config.vocab_size - len(tokenizer)
    tokenizer.add_tokens([*(f"x{i}" for i in range(spare)), "zebra"])
    explainer = Explainer(model, tokenizer)
    with pytest.raises(
        BadInput, match=r"to 150, but this model knows 0 to 149\. Use the tokenizer"
    ):
        explainer.explain(text, method)
    with pytest.raises(BadInput, match="Text 1 .* this model knows 0 to 149"):
        explainer.explain(["good film", text], method)


def test_a_pair_for_a_model_of_one_token_type_is_refused():
    model = BertForSequenceClassification(tiny_config(type_vocab_size=1))
    explainer = Explainer(model, tiny_tokenizer())
    with expect_error(
        BadInput, "unknown-token-type", mentions="0 to 1, but this model knows 0 to 0"
    ):
        explainer.explain(("good film", "bad film"), "attcat")
    explained = explainer.explain(("good film", "bad film"), "attcat", token_types="zeros")
    assert explained.scores.any()


def test_a_model_that_reads_no_token_types_takes_any():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=150, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    explainer = Explainer(
        randomize_weights(DistilBertForSequenceClassification(config), torch.float64)
    )
    attribution = explainer.explain(Tokens.from_ids([[2, 13, 3]], None, [[0, 1, 7]]), "random")
    assert len(attribution) == 3


class TestLongRows:
    def ids(self, text=WORDS * 4):
        return TOKENIZER(text)["input_ids"]

    @pytest.mark.parametrize("long", ["error", "stride"])
    def test_a_row_that_is_too_long_is_refused_with_what_to_do(self, long):
        with expect_error(TextTooLong, "ids-too-long", mentions="at most 48") as refused:
            BERT.explain(Tokens.from_ids([self.ids()]), "random", long=long)
        for way in ("long='truncate'", "the text itself with long='stride'", "fewer ids"):
            assert way in str(refused.value)

    def test_without_a_tokenizer_a_row_cannot_be_truncated(self):
        with expect_error(TextTooLong, "ids-too-long"):
            Explainer(tiny_bert()).explain(Tokens.from_ids([self.ids()]), long="truncate")

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_a_row_is_truncated_like_its_text(self, side):
        tokenizer = tiny_tokenizer()
        tokenizer.truncation_side = side
        explainer = Explainer(tiny_bert(), tokenizer)
        texts = (WORDS, WORDS * 3)
        read = tokenizer(*texts)
        rows = Tokens.from_ids([read["input_ids"]], None, [read["token_type_ids"]])
        attribution = explainer.explain(rows, "grad_x_input", long="truncate")
        expected = explainer.explain(texts, "grad_x_input", long="truncate")
        assert attribution.row.ids == expected.row.ids
        assert attribution.row.num_truncated == expected.row.num_truncated > 0
        assert "were truncated" in attribution.notes[0]
        np.testing.assert_allclose(attribution.scores, expected.scores, rtol=0, atol=1e-12)

    def test_truncating_a_question_cuts_its_context(self):
        explainer = Explainer(tiny_bert_qa(), TOKENIZER)
        question = Question("who sat on the mat", WORDS * 4)
        read = TOKENIZER(question.question, question.context)
        rows = Tokens.from_ids([read["input_ids"]], None, [read["token_type_ids"]])
        attribution = explainer.explain(rows, "grad_x_input", long="truncate")
        assert attribution.row.ids == explainer.explain(question, "random", long="truncate").row.ids

    def test_truncating_a_prompt_keeps_its_end(self):
        tokenizer = tiny_byte_tokenizer("gpt2")
        ids = tokenizer(WORDS)["input_ids"]
        explainer = Explainer(tiny_gpt(GPT2LMHeadModel), tokenizer)
        attribution = explainer.explain(Tokens.from_ids([ids]), "random", long="truncate")
        assert attribution.row.ids == tuple(ids[-24:])

    def test_a_long_row_in_a_list_is_truncated_too(self):
        short = self.ids("the cat")
        long = self.ids()
        table = np.zeros((2, len(long)), dtype=int)
        table[0, : len(short)] = short
        table[1] = long
        attributions = BERT.explain(Tokens.from_ids(table, table > 0), "random", long="truncate")
        assert [len(attribution) for attribution in attributions] == [len(short), 48]
