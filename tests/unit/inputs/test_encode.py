"""Where tokens stand in the text, and what is never cut, merged or guessed."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from packaging import version

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tests.helpers.tiny_byte_tokenizers import byte_tokenizer, metaspace_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.data.tokens import apply_explain_mask, strip_padding
from tokenlight.errors import BadInput, TextTooLong, UnsupportedTokenizer
from tokenlight.inputs.encode import encode_text, encode_windows

TOKENIZER = tiny_tokenizer()


def test_special_tokens_have_no_span_no_segment_and_no_word():
    row = encode_text("good film", TOKENIZER, max_tokens=None)
    assert row.pieces[0] == "[CLS]"
    assert row.special_tokens_mask == (True, False, False, True)
    assert row.spans == (None, (0, 4), (5, 9), None)
    assert row.segments == (None, 0, 0, None)
    assert row.word_ids == (None, 0, 1, None)


def test_subwords_share_a_word_and_keep_their_own_letters():
    row = encode_text("Charming film", TOKENIZER, max_tokens=None)
    assert row.surface_forms[1:4] == ("Charm", "ing", "film")
    assert row.word_ids[1:4] == (0, 0, 1)


def test_words_never_join_two_segments():
    row = encode_text(("good", "good"), TOKENIZER, max_tokens=None)
    remaining = [
        (word, segment)
        for word, segment in zip(row.word_ids, row.segments, strict=True)
        if word is not None
    ]
    assert remaining == [(0, 0), (1, 1)]


def test_white_space_separates_words_if_the_tokenizer_keeps_none():
    row = encode_text("good films good", metaspace_tokenizer(), max_tokens=None)
    assert row.word_ids == (0, 1, 1, 2)
    assert row.surface_forms == ("good", "film", "s", "good")


@pytest.mark.parametrize("text", ["🎉 ok", "é́x", "नमस्ते", "שלום עולם", "日本語", "a\u200db"])
def test_byte_level_pieces_point_at_whole_characters(text):
    row = encode_text(text, byte_tokenizer(), max_tokens=None)
    for span in row.spans:
        assert span is not None
        assert 0 <= span[0] <= span[1] <= len(text)
    covered = {i for start, end in row.spans for i in range(start, end)}
    assert {i for i, c in enumerate(text) if not c.isspace()} <= covered


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_any_text_is_encoded_or_refused(text):
    try:
        row = encode_text(text, TOKENIZER, max_tokens=None)
    except BadInput as refusal:
        assert refusal.code in ("text-empty", "text-without-tokens")
        return
    for span, segment in zip(row.spans, row.segments, strict=True):
        assert (span is None) == (segment is None)
        assert span is None or text[span[0] : span[1]]


@pytest.mark.parametrize("empty", ["", "   ", "\n\t"])
def test_an_empty_text_is_refused(empty):
    with expect_error(BadInput, "text-empty"):
        encode_text(empty, TOKENIZER, max_tokens=None)


def test_a_text_with_no_real_token_is_refused():
    with expect_error(BadInput, "text-without-tokens"):
        encode_text("\u200b\u0000", TOKENIZER, max_tokens=None)


def test_half_a_surrogate_pair_is_refused():
    with expect_error(BadInput, "text-surrogate"):
        encode_text("good \ud83d film", TOKENIZER, max_tokens=None)


def test_a_text_that_is_too_long_is_refused_with_three_remedies():
    with expect_error(TextTooLong, "text-too-long", mentions="at most 5") as refusal:
        encode_text("good good good good good", TOKENIZER, max_tokens=5)
    for way in ("truncate", "stride", "shorter"):
        assert way in str(refusal.value)


def test_truncation_is_recorded():
    row = encode_text("good good good good good", TOKENIZER, max_tokens=5, long="truncate")
    assert len(row) == 5
    assert row.num_truncated == 2


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with expect_error(UnsupportedTokenizer, "tokenizer-not-fast", mentions="Slow"):
        encode_text("good", Slow(), max_tokens=None)


def test_a_question_is_cut_in_its_context_only():
    question = Question(question="who sat on the mat", context="the cat sat on the mat in town")
    row = encode_text(question, TOKENIZER, max_tokens=12, long="truncate")
    assert sum(segment == 0 for segment in row.segments) == 5
    with expect_error(TextTooLong, "truncation-leaves-nothing"):
        encode_text(question, TOKENIZER, max_tokens=5, long="truncate")


@pytest.mark.parametrize("bad", [3, None, ["a"], ("a", "b", "c"), ("a", 3), b"bytes"])
def test_inputs_that_are_not_text_are_refused(bad):
    with pytest.raises(BadInput):
        encode_text(bad, TOKENIZER, max_tokens=None)


def test_windows_cover_the_text_and_have_their_offsets():
    text = "the cat sat on the mat in town and the dog sat on the red mat"
    full = encode_text(text, TOKENIZER, max_tokens=None)
    windows = encode_windows(text, TOKENIZER, max_tokens=8, overlap=2)
    covered = set()
    for row, positions in windows:
        assert len(row) <= 8
        assert tuple(full.ids[p] for p in positions) == row.ids
        covered |= set(positions)
    assert covered == set(range(len(full)))


@given(words=st.integers(1, 60), limit=st.integers(9, 20), overlap=st.integers(0, 3))
def test_windows_have_the_maximum_width_and_share_the_overlap(words, limit, overlap):
    question = Question(
        question="who sat", context=" ".join((["the", "cat", "sat", "on"] * 15)[:words])
    )
    full = encode_text(question, TOKENIZER, max_tokens=None)
    windows = encode_windows(question, TOKENIZER, max_tokens=limit, overlap=overlap)
    held = [[p for p in positions if full.segments[p] == 1] for _, positions in windows]
    others = [p for p in range(len(full)) if full.segments[p] != 1]
    for row, positions in windows:
        assert row.ids == tuple(full.ids[p] for p in positions)
        assert set(others) <= set(positions)
    for window, next_window in pairwise(held):
        assert len(window) == limit - len(others)
        assert window[len(window) - overlap :] == next_window[:overlap]
        assert len(next_window) > overlap
    assert sorted(set().union(*held)) == [p for p in range(len(full)) if full.segments[p] == 1]


def test_a_special_token_that_a_person_wrote_is_cut_like_any_word():
    text = "the cat [SEP] sat on the mat in town and the dog sat"
    full = encode_text(text, TOKENIZER, max_tokens=None)
    windows = encode_windows(text, TOKENIZER, max_tokens=6, overlap=1)
    separator_position = full.ids.index(TOKENIZER.sep_token_id)
    assert [separator_position in positions for _, positions in windows].count(True) in (1, 2)
    assert set().union(*(positions for _, positions in windows)) == set(range(len(full)))


def test_a_question_that_leaves_no_room_for_windows_is_refused():
    question = Question(question="who sat on the mat", context="the cat sat on the mat in town")
    with expect_error(TextTooLong, "window-full"):
        encode_windows(question, TOKENIZER, max_tokens=10, overlap=2)


def test_a_pair_is_cut_though_one_part_has_no_token():
    texts = ("the cat sat on a mat in town", "\N{ZERO WIDTH SPACE}")
    row = encode_text(texts, TOKENIZER, max_tokens=6, long="truncate")
    expected = TOKENIZER(*texts, truncation="longest_first", max_length=6)
    assert list(row.ids) == expected["input_ids"]
    with expect_error(TextTooLong, "truncation-leaves-nothing"):
        encode_text(Question(*texts), TOKENIZER, max_tokens=6, long="truncate")


@pytest.mark.skipif(
    version.parse(tokenizers.__version__) < version.parse("0.23.3"),
    reason="tokenizers before 0.23.3 cut the other text of a pair where both are as long",
)
@pytest.mark.parametrize("side", ["right", "left"])
@given(first=st.integers(1, 20), second=st.integers(0, 20), limit=st.integers(6, 24))
def test_a_long_input_is_cut_as_its_tokenizer_would(side, first, second, limit):
    tokenizer = tiny_tokenizer()
    tokenizer.truncation_side = side
    words = ["the", "cat", "sat", "on", "a", "mat"] * 4
    texts = (" ".join(words[:first]), *([" ".join(words[1 : second + 1])] if second else []))
    expected = tokenizer(*texts, truncation="longest_first", max_length=limit)
    row = encode_text(texts if second else texts[0], tokenizer, max_tokens=limit, long="truncate")
    assert list(row.ids) == expected["input_ids"]
    assert list(row.token_type_ids) == expected["token_type_ids"]
    assert row.num_truncated == len(tokenizer(*texts)["input_ids"]) - len(row)


def test_threads_that_share_a_tokenizer_do_not_truncate_each_others_texts():
    """A tokenizer that is told to cut cuts for every thread that reads with it meanwhile."""
    tokenizer = tiny_tokenizer()
    text = "the cat sat on the mat in town " * 20
    full = len(tokenizer(text)["input_ids"])
    wrong = []

    def read(number):
        for _ in range(60):
            if number % 2:
                row = encode_text(text, tokenizer, max_tokens=16, long="truncate")
                wrong.extend([row] if (len(row), row.num_truncated) != (16, full - 16) else [])
            else:
                row = encode_text(text, tokenizer, max_tokens=None)
                wrong.extend([row] if len(row) != full else [])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TestRowsFromIds:
    def test_padding_at_either_end_is_dropped(self):
        (row,) = Tokens.from_ids([[0, 0, 2, 7, 3, 0]], [[0, 0, 1, 1, 1, 0]])
        assert strip_padding(row, 0).ids == (2, 7, 3)

    def test_a_masked_token_that_is_no_padding_keeps_its_place(self):
        (row,) = Tokens.from_ids([[2, 7, 3, 0]], [[0, 1, 0, 0]])
        assert strip_padding(row, 0).ids == (2, 7, 3)
        assert strip_padding(row, 0).attention_mask == (0, 1, 0)

    def test_an_attended_pad_id_is_a_token(self):
        (row,) = Tokens.from_ids([[2, 0, 3]], [[1, 1, 1]])
        assert strip_padding(row, 0).ids == (2, 0, 3)

    def test_padding_between_tokens_is_refused(self):
        (row,) = Tokens.from_ids([[2, 0, 3]], [[1, 0, 1]])
        with expect_error(BadInput, "padding-inside-row", mentions="Position 1"):
            strip_padding(row, 0)

    def test_all_padding_is_refused(self):
        (row,) = Tokens.from_ids([[0, 0]], [[0, 0]])
        with expect_error(BadInput, "row-all-padding"):
            strip_padding(row, 0)

    @pytest.mark.parametrize(
        ("ids", "mask", "code"),
        [
            ([1, 2, 3], None, "ids-shape"),
            ([[1, 2], [3]], None, "ids-ragged"),
            ([[1.5, 2.0]], None, "ids-shape"),
            ([[1, 2]], [[1]], "ids-shape"),
            ([[1, 2]], [[1, 7]], "attention-mask-values"),
            ([[]], None, "ids-shape"),
        ],
    )
    def test_an_invalid_table_of_ids_is_refused(self, ids, mask, code):
        with expect_error(BadInput, code):
            Tokens.from_ids(ids, mask)

    def test_tensors_and_booleans_are_accepted(self):
        torch = pytest.importorskip("torch")
        (row,) = Tokens.from_ids(torch.tensor([[2, 5]]), np.array([[True, False]]))
        assert row.attention_mask == (1, 0)


def test_explain_mask_hides_the_special_tokens_it_names():
    row = encode_text(("good", "film"), TOKENIZER, max_tokens=None)
    assert apply_explain_mask(row, "cls_sep", TOKENIZER).attention_mask == (0, 1, 0, 1, 0)
    assert apply_explain_mask(row, "sep", TOKENIZER).attention_mask == (1, 1, 0, 1, 0)
    assert apply_explain_mask(row, "none", TOKENIZER).attention_mask == (1,) * 5
    with expect_error(BadInput, "explain-mask-no-separator"):
        apply_explain_mask(row, "sep", None)


@pytest.mark.parametrize("wrong", [-100, -1, 10**6, 2**40])
def test_an_id_that_the_model_does_not_know_is_refused(wrong):
    explainer = Explainer(tiny_bert(), TOKENIZER)
    for ids in ([[2, wrong, 3]], [[2, 5, 3], [2, wrong, 3]]):
        with pytest.raises(BadInput, match=r"token ids run from .* but this model knows 0 to"):
            explainer.explain(Tokens.from_ids(ids))


def make_masked_row():
    return Tokens.from_ids([[2, 13, 3]], [[1, 1, 0]]).rows[0]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_cached_row_properties_are_not_compared(is_replaced):
    row = make_masked_row()
    if is_replaced:
        row = dataclasses.replace(row, num_truncated=0)
    assert row.ids_array.tolist() == [2, 13, 3]
    assert row.ids_array.dtype == np.int64
    assert not row.ids_array.flags.writeable
    assert not row.is_unmasked
    assert row == make_masked_row()
    assert hash(row) == hash(make_masked_row())


@pytest.mark.parametrize(
    "copy_row",
    [copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))],
    ids=["copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("is_replaced", [False, True])
def test_cached_row_properties_are_not_copied(copy_row, is_replaced):
    row = make_masked_row()
    if is_replaced:
        row = dataclasses.replace(row, num_truncated=0)
    assert row.ids_array.tolist() == [2, 13, 3]
    assert not row.is_unmasked
    copied = copy_row(row)
    assert {*vars(copied)} == {field.name for field in dataclasses.fields(row)}
    assert copied == row
    assert copied.ids_array.tolist() == [2, 13, 3]


def test_cached_row_properties_are_recomputed_for_a_changed_row():
    row = make_masked_row()
    assert row.ids_array.tolist() == [2, 13, 3]
    assert not row.is_unmasked
    changed = dataclasses.replace(row, ids=(2, 5, 3), attention_mask=(1, 1, 1))
    assert changed.ids_array.tolist() == [2, 5, 3]
    assert changed.is_unmasked
    assert not changed.mask_positions([True, False, False]).is_unmasked
    assert changed.take([1]).ids_array.tolist() == [5]


def test_rows_of_ids_are_read_the_same_together_and_separately():
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids([[2, 13, 5, 3], [2, 7, 7, 3]]).rows
    together = explainer.explain(list(rows), "attcat")
    assert [attribution.row for attribution in together] == list(rows)
    for attribution, row in zip(together, rows, strict=True):
        np.testing.assert_allclose(
            attribution.scores, explainer.explain(row, "attcat").scores, atol=1e-12
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ids": (2, 10**6, 3)}, "The token ids run from 2 to 1000000"),
        ({"ids": (2, 2**70, 3)}, f"The token ids run from 2 to {2**70}"),
        ({"ids": (2, -5, 3)}, "The token ids run from -5 to 3"),
        ({"attention_mask": (0, 0, 0)}, "Every token of the text is masked"),
        ({"token_type_ids": (0, 9, 0)}, "token_type_ids run from 0 to 9"),
    ],
    ids=["large", "huge", "negative", "hidden", "types"],
)
def test_an_invalid_row_is_named_by_its_index(wrong, message):
    explainer = Explainer(tiny_bert())
    row = Tokens.from_ids([[2, 13, 3]]).rows[0]
    with pytest.raises(BadInput, match=rf"Text 1 \(counted from 0\): {message}"):
        explainer.explain([row, dataclasses.replace(row, **wrong), row], "attcat")
    long = dataclasses.replace(row.concatenate(row), ids=(2,) * 600, attention_mask=(1,) * 600)
    with pytest.raises(TextTooLong, match=r"Text 2 .* has 600 tokens"):
        explainer.explain([row, row, long], "attcat")


def test_rows_given_together_of_which_the_mask_hides_one_name_it():
    explainer = Explainer(tiny_bert(), TOKENIZER)
    row = encode_text("a great film", TOKENIZER, max_tokens=None)
    row = dataclasses.replace(row, token_type_ids=None)
    with pytest.raises(BadInput, match=r"Text 1 .* Every token of the text is masked"):
        explainer.explain([row, row.take([0, len(row) - 1])], "attcat", explain_mask="cls_sep")
