"""Token ids instead of a text: what is padding, what is refused, and how a long row is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

from tests.tiny import randomised, tiny_bert, tiny_bert_qa, tiny_tokenizer
from tests.tiny_bytes import tiny_bytes
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, BadTarget, TextTooLong

TOKENIZER = tiny_tokenizer()
BERT = Explainer(tiny_bert(), TOKENIZER)
WORDS = "the cat sat on the mat in town and the dog sat on the red mat"


def tiny_gpt(cls=GPT2ForSequenceClassification, **changes):
    config = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=24, **changes)
    config.pad_token_id = None
    return randomised(cls(config), torch.float64)


@pytest.mark.parametrize("types", [[0, 1, 7], [0, -1, 0], [0, 2, 0]])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_token_type_that_the_model_does_not_know_is_refused(types, rows):
    ids, given = [[2, 13, 3]] * rows, [[0, 0, 0]] * (rows - 1) + [types]
    with pytest.raises(BadInput, match=r"token_type_ids run from .* this model knows 0 to 1"):
        BERT.explain(Tokens.from_ids(ids, None, given), "random")


def test_a_model_that_reads_no_token_types_takes_any():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=150, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    explainer = Explainer(randomised(DistilBertForSequenceClassification(config), torch.float64))
    found = explainer.explain(Tokens.from_ids([[2, 13, 3]], None, [[0, 1, 7]]), "random")
    assert len(found) == 3


class TestLongRows:
    def ids(self, text=WORDS * 4):
        return TOKENIZER(text)["input_ids"]

    @pytest.mark.parametrize("long", ["error", "stride"])
    def test_what_is_too_long_names_the_ways_out(self, long):
        with pytest.raises(TextTooLong, match="tokens but this model reads at most 48") as refused:
            BERT.explain(Tokens.from_ids([self.ids()]), "random", long=long)
        for way in ("long='truncate'", "the text itself with long='stride'", "fewer ids"):
            assert way in str(refused.value)

    def test_without_a_tokenizer_nobody_knows_what_may_be_cut(self):
        with pytest.raises(TextTooLong, match="with a tokenizer, long='truncate'"):
            Explainer(tiny_bert()).explain(Tokens.from_ids([self.ids()]), long="truncate")

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_a_row_is_cut_as_its_text_would_be(self, side):
        tokenizer = tiny_tokenizer()
        tokenizer.truncation_side = side
        explainer, texts = Explainer(tiny_bert(), tokenizer), (WORDS, WORDS * 3)
        read = tokenizer(*texts)
        rows = Tokens.from_ids([read["input_ids"]], None, [read["token_type_ids"]])
        found = explainer.explain(rows, "grad_x_input", long="truncate")
        theirs = explainer.explain(texts, "grad_x_input", long="truncate")
        assert found.row.ids == theirs.row.ids
        assert found.row.cut == theirs.row.cut > 0
        assert "were cut off" in found.notes[0]
        np.testing.assert_allclose(found.scores, theirs.scores, rtol=0, atol=1e-12)

    def test_of_a_question_the_context_is_cut(self):
        explainer = Explainer(tiny_bert_qa(), TOKENIZER)
        asked = Question("who sat on the mat", WORDS * 4)
        read = TOKENIZER(asked.question, asked.context)
        rows = Tokens.from_ids([read["input_ids"]], None, [read["token_type_ids"]])
        found = explainer.explain(rows, "grad_x_input", long="truncate")
        assert found.row.ids == explainer.explain(asked, "random", long="truncate").row.ids

    def test_of_a_prompt_the_end_stays(self):
        tokenizer = tiny_bytes("gpt2")
        ids = tokenizer(WORDS)["input_ids"]
        explainer = Explainer(tiny_gpt(GPT2LMHeadModel), tokenizer)
        found = explainer.explain(Tokens.from_ids([ids]), "random", long="truncate")
        assert found.row.ids == tuple(ids[-24:])

    def test_among_others_it_is_cut_too(self):
        short, long = self.ids("the cat"), self.ids()
        table = np.zeros((2, len(long)), dtype=int)
        table[0, : len(short)], table[1] = short, long
        found = BERT.explain(Tokens.from_ids(table, table > 0), "random", long="truncate")
        assert [len(one) for one in found] == [len(short), 48]


class TestWithoutAPadId:
    explainer = Explainer(tiny_gpt())

    @pytest.mark.parametrize(
        ("ids", "mask"),
        [([5, 6, 7, 0, 0], [1, 1, 1, 0, 0]), ([0, 0, 5, 6, 7], [0, 0, 1, 1, 1])],
        ids=["behind", "before"],
    )
    def test_what_the_mask_hides_at_an_end_is_padding(self, ids, mask):
        assert self.explainer.pad_id is None
        padded = self.explainer.explain(Tokens.from_ids([ids], [mask]), "grad_x_input")
        bare = self.explainer.explain(Tokens.from_ids([[5, 6, 7]]), "grad_x_input")
        assert (padded.row.ids, padded.row.attention) == (bare.row.ids, bare.row.attention)
        np.testing.assert_array_equal(padded.scores, bare.scores)
        np.testing.assert_array_equal(padded.logits, bare.logits)

    def test_what_it_hides_in_the_middle_keeps_its_place(self):
        found = self.explainer.explain(Tokens.from_ids([[5, 6, 7, 8]], [[1, 0, 1, 0]]), "random")
        assert found.row.ids == (5, 6, 7)
        assert found.row.attention == (1, 0, 1)

    def test_a_row_that_is_all_hidden_is_refused(self):
        with pytest.raises(BadInput, match="all padding"):
            self.explainer.explain(Tokens.from_ids([[5, 6]], [[0, 0]]))


def test_of_labels_with_one_name_the_number_must_be_given():
    names = {0: "a", 1: "b", 2: "a"}
    explainer = Explainer(tiny_bert(id2label=names, label2id={"a": 0, "b": 1}), TOKENIZER)
    with pytest.raises(BadTarget, match="2 labels of this model are named 'a'.* 0 or 2"):
        explainer.explain("good film", "random", target="a")
    assert explainer.explain("good film", "random", target="b").target.index == 1
    assert explainer.explain("good film", "random", target=2).target.index == 2
