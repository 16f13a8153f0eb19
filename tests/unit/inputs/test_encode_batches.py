"""Texts that are read in one call of the tokenizer are the rows that each gives alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import encode_batch, encode_text

TOKENIZER = tiny_tokenizer()
VOCABULARY = ["the", "film", "is", "not", "very", "good", "é", "日本", "🎬", "unknownword"]
WORDS = st.lists(st.sampled_from(VOCABULARY), min_size=1)
TEXT = WORDS.map(" ".join)


@given(st.lists(TEXT | st.tuples(TEXT, TEXT) | st.builds(Question, TEXT, TEXT), max_size=6))
def test_rows_encoded_in_a_batch_equal_rows_encoded_one_by_one(texts):
    encodings = encode_batch(texts, TOKENIZER)
    for text, encoding in zip(texts, encodings, strict=True):
        assert encode_text(text, TOKENIZER, max_tokens=None, encoding=encoding) == encode_text(
            text, TOKENIZER, max_tokens=None
        )


def test_inputs_that_are_not_text_are_not_encoded_in_a_batch():
    row = Tokens.from_ids([[1, 2]]).rows[0]
    encodings = encode_batch(["a good film", "", 7, row, "a \ud800 film", ("a", 3)], TOKENIZER)
    assert [encoding is None for encoding in encodings] == [False, True, True, True, True, True]


def test_a_tokenizer_without_offsets_encodes_texts_one_by_one():
    assert encode_batch(["a", "b"], None) == [None, None]


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(), tokenizer)


def test_scores_do_not_depend_on_texts_encoded_in_the_same_batch(explainer):
    texts = ["the film is not very good", ("a dull plot", "we love it"), "a dull plot " * 20]
    attributions = explainer.explain(texts, "grad_x_input", long="truncate")
    for text, attribution in zip(texts, attributions, strict=True):
        alone = explainer.explain(text, "grad_x_input", long="truncate")
        assert attribution.row == alone.row
        assert attribution.scores == pytest.approx(alone.scores, abs=1e-9)


@pytest.mark.parametrize(
    ("bad", "error", "code"),
    [
        ("  ", BadInput, "text-empty"),
        ("a \ud800 film", BadInput, "text-surrogate"),
        ("a dull plot " * 200, TextTooLong, "text-too-long"),
    ],
)
def test_a_bad_text_among_good_ones_is_named(explainer, bad, error, code):
    with expect_error(error, code) as refused:
        explainer.explain(["a dull plot", bad, "we love it"], "random")
    assert "1" in str(refused.value)
