"""Perturbed inputs: which tokens are deleted, replaced or masked, and what stands in their place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.expect import expect_error
from tests.helpers.planted_model import MASK, PAD, make_bag_model, make_row
from tests.helpers.tiny import tiny_tokenizer
from tokenlight.errors import BadInput
from tokenlight.inputs.encode import encode_text
from tokenlight.model.runner import ModelRunner
from tokenlight.perturb.variants import Perturber, ReplacementIds, Variant

TOKENIZER = tiny_tokenizer()
REPLACEMENTS = ReplacementIds(PAD, MASK)


def test_deletion_keeps_separators_and_segment_ids_of_a_pair():
    row = encode_text(("good film", "bad plot"), TOKENIZER, max_tokens=None)
    original = Perturber(row, REPLACEMENTS)
    assert [row.pieces[i] for i in original.rankable_positions] == ["good", "film", "bad", "plot"]
    shorter = original.delete_tokens([1, 4, 5])
    assert TOKENIZER.convert_ids_to_tokens(shorter.ids.tolist()) == [
        "[CLS]",
        "film",
        "[SEP]",
        "[SEP]",
    ]
    assert shorter.token_type_ids.tolist() == [0, 0, 0, 1]
    assert shorter.attention_mask.tolist() == [1, 1, 1, 1]
    assert shorter.find_position(2) == 1
    assert shorter.find_position(4) is None


def test_replacing_keeps_attention_and_masking_removes_it():
    original = Perturber(make_row([7, 8, 9]), REPLACEMENTS)
    padded = original.replace_tokens([2])
    masked = original.hide_tokens([2, 3])
    assert padded.ids.tolist() == [2, 7, PAD, 9, 3]
    assert padded.attention_mask.tolist() == [1, 1, 1, 1, 1]
    assert masked.ids.tolist() == [2, 7, MASK, MASK, 3]
    assert masked.attention_mask.tolist() == [1, 1, 0, 0, 1]
    assert original.make_unperturbed().ids.tolist() == [2, 7, 8, 9, 3]


def test_an_emptied_text_becomes_one_padding_token():
    original = Perturber(make_row([7, 8], special=False), REPLACEMENTS)
    empty = original.delete_tokens([0, 1])
    assert empty.ids.tolist() == [PAD]
    assert empty.attention_mask.tolist() == [1]
    assert empty.find_position(0) is None
    assert original.hide_tokens([0, 1]).attention_mask.tolist() == [1, 1]


def test_special_tokens_masked_for_the_explanation_are_seen_by_the_prediction():
    row = make_row([7, 8]).mask_positions([True, False, True, True])
    assert Perturber(row, REPLACEMENTS).make_unperturbed().attention_mask.tolist() == [1, 1, 0, 1]


def test_replacement_ids_fall_back_to_unknown_and_end_tokens():
    class Bare:
        pad_token_id = mask_token_id = None
        unk_token_id = 6
        eos_token_id = 7

    runner = ModelRunner(make_bag_model())
    assert ReplacementIds.from_model(runner, None) == ReplacementIds(PAD, PAD)
    runner.model.config.pad_token_id = None
    assert ReplacementIds.from_model(runner, Bare()) == ReplacementIds(6, 6)
    with expect_error(BadInput, "no-replacement-token"):
        ReplacementIds.from_model(runner, None)


@given(st.lists(st.integers(5, 39), min_size=1, max_size=12), st.data())
def test_deletion_keeps_all_other_tokens_in_their_order(words, data):
    deleted_positions = data.draw(st.sets(st.integers(1, len(words))))
    original = Perturber(make_row(words), REPLACEMENTS)
    shorter = original.delete_tokens(sorted(deleted_positions))
    kept_positions = [i for i in range(len(words) + 2) if i not in deleted_positions]
    assert shorter.ids.tolist() == [original.row.ids[i] for i in kept_positions]
    assert [shorter.find_position(i) for i in kept_positions] == list(range(len(kept_positions)))
    assert isinstance(shorter, Variant)
