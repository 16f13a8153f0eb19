"""Texts that are read in one call of the tokenizer are the rows that each gives alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.errors import BadInput, TextTooLong
from tokenlight.inputs.encode import encode, encoded_together

TOKENIZER = tiny_tokenizer()
VOCABULARY = ["the", "film", "is", "not", "very", "good", "é", "日本", "🎬", "unknownword"]
WORDS = st.lists(st.sampled_from(VOCABULARY), min_size=1)
TEXT = WORDS.map(" ".join)


@given(st.lists(TEXT | st.tuples(TEXT, TEXT) | st.builds(Question, TEXT, TEXT), max_size=6))
def test_rows_read_together_are_those_read_alone(texts):
    found = encoded_together(texts, TOKENIZER)
    for text, whole in zip(texts, found, strict=True):
        assert encode(text, TOKENIZER, limit=None, whole=whole) == encode(
            text, TOKENIZER, limit=None
        )


def test_what_is_no_text_is_left_to_be_read_alone():
    row = Tokens.from_ids([[1, 2]]).rows[0]
    found = encoded_together(["a good film", "", 7, row, "a \ud800 film", ("a", 3)], TOKENIZER)
    assert [whole is None for whole in found] == [False, True, True, True, True, True]


def test_a_tokenizer_without_offsets_reads_nothing_together():
    assert encoded_together(["a", "b"], None) == [None, None]


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(), tokenizer)


def test_scores_do_not_depend_on_who_is_read_beside(explainer):
    texts = ["the film is not very good", ("a dull plot", "we love it"), "a dull plot " * 20]
    among = explainer.explain(texts, "grad_x_input", long="truncate")
    for text, found in zip(texts, among, strict=True):
        alone = explainer.explain(text, "grad_x_input", long="truncate")
        assert found.row == alone.row
        assert found.scores == pytest.approx(alone.scores, abs=1e-9)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("  ", BadInput, "empty"),
        ("a \ud800 film", BadInput, "surrogate"),
        ("a dull plot " * 200, TextTooLong, "this model reads at most"),
    ],
)
def test_a_bad_text_among_good_ones_is_named(explainer, bad, error, message):
    with pytest.raises(error, match=message) as refused:
        explainer.explain(["a dull plot", bad, "we love it"], "random")
    assert "1" in str(refused.value)
