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
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from transformers import PreTrainedTokenizerFast

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Question, Tokens
from tokenlight.data.tokens import explain_masked, trimmed
from tokenlight.errors import BadInput, TextTooLong, UnsupportedTokenizer
from tokenlight.inputs.encode import encode, encode_windows

TOKENIZER = tiny_tokenizer()


def byte_level():
    pieces = sorted(ByteLevel.alphabet())
    inner = Tokenizer(BPE({piece: i for i, piece in enumerate(pieces)}, []))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def metaspace():
    """A sentence-piece-like tokenizer: no pre-tokenizer words, only the ▁ in its pieces."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁good", -1.0), ("▁film", -1.0), ("s", -2.0)]
    inner = Tokenizer(Unigram(pieces, unk_id=0))
    inner.pre_tokenizer = Metaspace(split=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


def test_special_tokens_have_no_span_no_segment_and_no_word():
    row = encode("good film", TOKENIZER, limit=None)
    assert row.pieces[0] == "[CLS]"
    assert row.special == (True, False, False, True)
    assert row.spans == (None, (0, 4), (5, 9), None)
    assert row.segments == (None, 0, 0, None)
    assert row.words == (None, 0, 1, None)


def test_subwords_share_a_word_and_keep_their_own_letters():
    row = encode("Charming film", TOKENIZER, limit=None)
    assert row.surface[1:4] == ("Charm", "ing", "film")
    assert row.words[1:4] == (0, 0, 1)


def test_words_never_join_two_segments():
    row = encode(("good", "good"), TOKENIZER, limit=None)
    kept = [
        (word, segment)
        for word, segment in zip(row.words, row.segments, strict=True)
        if word is not None
    ]
    assert kept == [(0, 0), (1, 1)]


def test_white_space_parts_words_where_the_tokenizer_keeps_none():
    row = encode("good films good", metaspace(), limit=None)
    assert row.words == (0, 1, 1, 2)
    assert row.surface == ("good", "film", "s", "good")


@pytest.mark.parametrize("text", ["🎉 ok", "é́x", "नमस्ते", "שלום עולם", "日本語", "a\u200db"])
def test_byte_level_pieces_point_at_whole_characters(text):
    row = encode(text, byte_level(), limit=None)
    for span in row.spans:
        assert span is not None
        assert 0 <= span[0] <= span[1] <= len(text)
    covered = {i for start, end in row.spans for i in range(start, end)}
    assert {i for i, c in enumerate(text) if not c.isspace()} <= covered


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_any_text_is_placed_or_refused_in_words(text):
    try:
        row = encode(text, TOKENIZER, limit=None)
    except BadInput as refusal:
        assert "word" in str(refusal)
        return
    for span, segment in zip(row.spans, row.segments, strict=True):
        assert (span is None) == (segment is None)
        assert span is None or text[span[0] : span[1]]


@pytest.mark.parametrize("empty", ["", "   ", "\n\t"])
def test_an_empty_text_is_refused(empty):
    with pytest.raises(BadInput, match="is empty; give a text with at least one word"):
        encode(empty, TOKENIZER, limit=None)


def test_a_text_with_no_real_token_is_refused():
    with pytest.raises(BadInput, match="no token besides the model's special tokens"):
        encode("\u200b\u0000", TOKENIZER, limit=None)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(BadInput, match="surrogate"):
        encode("good \ud83d film", TOKENIZER, limit=None)


def test_a_text_that_is_too_long_names_three_ways_out():
    with pytest.raises(TextTooLong, match="7 tokens .* at most 5") as refusal:
        encode("good good good good good", TOKENIZER, limit=5)
    for way in ("truncate", "stride", "shorter"):
        assert way in str(refusal.value)


def test_truncation_is_recorded():
    row = encode("good good good good good", TOKENIZER, limit=5, long="truncate")
    assert len(row) == 5
    assert row.cut == 2


def test_a_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(UnsupportedTokenizer, match="Slow gives no character offsets"):
        encode("good", Slow(), limit=None)


def test_a_question_is_cut_in_its_context_only():
    asked = Question(question="who sat on the mat", context="the cat sat on the mat in town")
    row = encode(asked, TOKENIZER, limit=12, long="truncate")
    assert sum(segment == 0 for segment in row.segments) == 5
    with pytest.raises(TextTooLong, match="fills the window"):
        encode(asked, TOKENIZER, limit=5, long="truncate")


@pytest.mark.parametrize("bad", [3, None, ["a"], ("a", "b", "c"), ("a", 3), b"bytes"])
def test_what_is_no_text_is_refused(bad):
    with pytest.raises(BadInput):
        encode(bad, TOKENIZER, limit=None)


def test_windows_cover_the_text_and_know_their_places():
    text = "the cat sat on the mat in town and the dog sat on the red mat"
    whole = encode(text, TOKENIZER, limit=None)
    windows = encode_windows(text, TOKENIZER, limit=8, overlap=2)
    covered = set()
    for row, places in windows:
        assert len(row) <= 8
        assert tuple(whole.ids[p] for p in places) == row.ids
        covered |= set(places)
    assert covered == set(range(len(whole)))


@given(words=st.integers(1, 60), limit=st.integers(9, 20), overlap=st.integers(0, 3))
def test_windows_are_as_wide_as_may_be_and_share_the_overlap(words, limit, overlap):
    asked = Question(
        question="who sat", context=" ".join((["the", "cat", "sat", "on"] * 15)[:words])
    )
    whole = encode(asked, TOKENIZER, limit=None)
    windows = encode_windows(asked, TOKENIZER, limit=limit, overlap=overlap)
    held = [[p for p in places if whole.segments[p] == 1] for _, places in windows]
    others = [p for p in range(len(whole)) if whole.segments[p] != 1]
    for row, places in windows:
        assert row.ids == tuple(whole.ids[p] for p in places)
        assert set(others) <= set(places)
    for one, following in pairwise(held):
        assert len(one) == limit - len(others)
        assert one[len(one) - overlap :] == following[:overlap]
        assert len(following) > overlap
    assert sorted(set().union(*held)) == [p for p in range(len(whole)) if whole.segments[p] == 1]


def test_a_special_token_that_a_person_wrote_is_cut_like_any_word():
    text = "the cat [SEP] sat on the mat in town and the dog sat"
    whole = encode(text, TOKENIZER, limit=None)
    windows = encode_windows(text, TOKENIZER, limit=6, overlap=1)
    written = whole.ids.index(TOKENIZER.sep_token_id)
    assert [written in places for _, places in windows].count(True) in (1, 2)
    assert set().union(*(places for _, places in windows)) == set(range(len(whole)))


def test_a_question_that_leaves_no_room_for_windows_is_refused():
    asked = Question(question="who sat on the mat", context="the cat sat on the mat in town")
    with pytest.raises(TextTooLong, match="fills the window"):
        encode_windows(asked, TOKENIZER, limit=10, overlap=2)


def test_a_pair_is_cut_though_one_part_has_no_token():
    texts = ("the cat sat on a mat in town", "\N{ZERO WIDTH SPACE}")
    row = encode(texts, TOKENIZER, limit=6, long="truncate")
    theirs = TOKENIZER(*texts, truncation="longest_first", max_length=6)
    assert list(row.ids) == theirs["input_ids"]
    with pytest.raises(TextTooLong, match="fills the window"):
        encode(Question(*texts), TOKENIZER, limit=6, long="truncate")


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
    theirs = tokenizer(*texts, truncation="longest_first", max_length=limit)
    row = encode(texts if second else texts[0], tokenizer, limit=limit, long="truncate")
    assert list(row.ids) == theirs["input_ids"]
    assert list(row.token_types) == theirs["token_type_ids"]
    assert row.cut == len(tokenizer(*texts)["input_ids"]) - len(row)


def test_threads_that_share_a_tokenizer_cut_no_text_of_each_other():
    """A tokenizer that is told to cut cuts for every thread that reads with it meanwhile."""
    tokenizer = tiny_tokenizer()
    text = "the cat sat on the mat in town " * 20
    whole = len(tokenizer(text)["input_ids"])
    wrong = []

    def read(number):
        for _ in range(60):
            if number % 2:
                row = encode(text, tokenizer, limit=16, long="truncate")
                wrong.extend([row] if (len(row), row.cut) != (16, whole - 16) else [])
            else:
                row = encode(text, tokenizer, limit=None)
                wrong.extend([row] if len(row) != whole else [])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class TestRowsFromIds:
    def test_padding_at_either_end_is_dropped(self):
        (row,) = Tokens.from_ids([[0, 0, 2, 7, 3, 0]], [[0, 0, 1, 1, 1, 0]])
        assert trimmed(row, 0).ids == (2, 7, 3)

    def test_a_masked_token_that_is_no_padding_keeps_its_place(self):
        (row,) = Tokens.from_ids([[2, 7, 3, 0]], [[0, 1, 0, 0]])
        assert trimmed(row, 0).ids == (2, 7, 3)
        assert trimmed(row, 0).attention == (0, 1, 0)

    def test_an_attended_pad_id_is_a_token(self):
        (row,) = Tokens.from_ids([[2, 0, 3]], [[1, 1, 1]])
        assert trimmed(row, 0).ids == (2, 0, 3)

    def test_padding_between_tokens_is_refused(self):
        (row,) = Tokens.from_ids([[2, 0, 3]], [[1, 0, 1]])
        with pytest.raises(BadInput, match="position 1 is padding"):
            trimmed(row, 0)

    def test_all_padding_is_refused(self):
        (row,) = Tokens.from_ids([[0, 0]], [[0, 0]])
        with pytest.raises(BadInput, match="all padding"):
            trimmed(row, 0)

    @pytest.mark.parametrize(
        ("ids", "mask", "says"),
        [
            ([1, 2, 3], None, "2-D array"),
            ([[1, 2], [3]], None, "different lengths"),
            ([[1.5, 2.0]], None, "integers"),
            ([[1, 2]], [[1]], "one shape"),
            ([[1, 2]], [[1, 7]], "0/1 mask"),
            ([[]], None, "2-D array"),
        ],
    )
    def test_a_bad_table_is_refused(self, ids, mask, says):
        with pytest.raises(BadInput, match=says):
            Tokens.from_ids(ids, mask)

    def test_tensors_and_booleans_are_taken(self):
        torch = pytest.importorskip("torch")
        (row,) = Tokens.from_ids(torch.tensor([[2, 5]]), np.array([[True, False]]))
        assert row.attention == (1, 0)


def test_explain_mask_hides_the_special_tokens_it_names():
    row = encode(("good", "film"), TOKENIZER, limit=None)
    assert explain_masked(row, "cls_sep", TOKENIZER).attention == (0, 1, 0, 1, 0)
    assert explain_masked(row, "sep", TOKENIZER).attention == (1, 1, 0, 1, 0)
    assert explain_masked(row, "none", TOKENIZER).attention == (1,) * 5
    with pytest.raises(BadInput, match="separator"):
        explain_masked(row, "sep", None)


@pytest.mark.parametrize("wrong", [-100, -1, 10**6, 2**40])
def test_an_id_that_the_model_does_not_know_is_refused(wrong):
    explainer = Explainer(tiny_bert(), TOKENIZER)
    for ids in ([[2, wrong, 3]], [[2, 5, 3], [2, wrong, 3]]):
        with pytest.raises(BadInput, match=r"token ids run from .* but this model knows 0 to"):
            explainer.explain(Tokens.from_ids(ids))


def test_what_is_known_of_a_row_goes_into_no_copy_and_no_comparison():
    row, same = (Tokens.from_ids([[2, 13, 3]], [[1, 1, 0]]).rows[0] for _ in range(2))
    fields = {field.name for field in dataclasses.fields(row)}
    for one in (row, dataclasses.replace(row, cut=0)):
        assert one.array.tolist() == [2, 13, 3]
        assert one.array.dtype == np.int64
        assert not one.array.flags.writeable
        assert not one.all_seen
        assert one == same
        assert hash(one) == hash(same)
        for again in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert {*vars(again)} == fields
            assert again == one
            assert again.array.tolist() == [2, 13, 3]
    changed = dataclasses.replace(row, ids=(2, 5, 3), attention=(1, 1, 1))
    assert changed.array.tolist() == [2, 5, 3]
    assert changed.all_seen
    assert not changed.masked([True, False, False]).all_seen
    assert changed.take([1]).array.tolist() == [5]


def test_rows_of_ids_given_together_are_read_as_when_they_are_given_alone():
    explainer = Explainer(tiny_bert())
    rows = Tokens.from_ids([[2, 13, 5, 3], [2, 7, 7, 3]]).rows
    together = explainer.explain(list(rows), "attcat")
    assert [one.row for one in together] == list(rows)
    for one, row in zip(together, rows, strict=True):
        np.testing.assert_allclose(one.scores, explainer.explain(row, "attcat").scores, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ids": (2, 10**6, 3)}, "token ids run from 2 to 1000000"),
        ({"ids": (2, 2**70, 3)}, f"token ids run from 2 to {2**70}"),
        ({"ids": (2, -5, 3)}, "token ids run from -5 to 3"),
        ({"attention": (0, 0, 0)}, "every token of the text is masked out"),
        ({"token_types": (0, 9, 0)}, "token_type_ids run from 0 to 9"),
    ],
    ids=["large", "huge", "negative", "hidden", "types"],
)
def test_of_rows_given_together_the_one_that_is_wrong_is_named(wrong, says):
    explainer, row = Explainer(tiny_bert()), Tokens.from_ids([[2, 13, 3]]).rows[0]
    with pytest.raises(BadInput, match=rf"text 1 \(counted from 0\): {says}"):
        explainer.explain([row, dataclasses.replace(row, **wrong), row], "attcat")
    long = dataclasses.replace(row.joined(row), ids=(2,) * 600, attention=(1,) * 600)
    with pytest.raises(TextTooLong, match=r"text 2 .* has 600 tokens"):
        explainer.explain([row, row, long], "attcat")


def test_rows_given_together_of_which_the_mask_hides_one_name_it():
    explainer = Explainer(tiny_bert(), TOKENIZER)
    row = encode("a great film", TOKENIZER, limit=None)
    row = dataclasses.replace(row, token_types=None)
    with pytest.raises(BadInput, match=r"text 1 .* every token of the text is masked out"):
        explainer.explain([row, row.take([0, len(row) - 1])], "attcat", explain_mask="cls_sep")
