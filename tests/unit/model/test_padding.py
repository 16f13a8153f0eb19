"""Padding: width, side and id of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert
from tokenlight.data.tokens import Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.model.padding import (
    choose_pad_id,
    choose_replayed_width,
    choose_width,
    plan_padding,
)
from tokenlight.model.runner import ModelRunner


def make_rows(*ids):
    return [Tokens.from_ids([row_ids]).rows[0] for row_ids in ids]


def build_gpt2_without_padding_id(vocab_size):
    config = GPT2Config(
        vocab_size=vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=32, num_labels=2,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return ModelRunner(GPT2ForSequenceClassification(config).eval())


def test_rows_are_padded_on_the_right_with_the_padding_id():
    runner = ModelRunner(tiny_bert())
    rows = make_rows([5, 6, 7], [8])
    inputs = runner.build_inputs(rows)
    arguments = inputs.arguments
    pad_id = inputs.pad_id
    assert inputs.has_padding
    assert pad_id == runner.pad_id
    assert arguments["input_ids"].tolist() == [[5, 6, 7], [8, pad_id, pad_id]]
    assert arguments["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert inputs.token_mask.tolist() == [[True, True, True], [True, False, False]]


def test_a_given_width_pads_all_rows():
    batch = plan_padding(ModelRunner(tiny_bert()), make_rows([5, 6], [7, 8]), None, width=4)
    assert batch.has_padding
    assert batch.pad([(1, 2), (3, 4)], fill=9).tolist() == [[1, 2, 9, 9], [3, 4, 9, 9]]


def test_a_model_without_a_padding_id_pads_with_the_lowest_unused_id():
    runner = build_gpt2_without_padding_id(vocab_size=4)
    assert choose_pad_id(runner, make_rows([0, 1, 3])) == 2
    assert choose_pad_id(runner, make_rows([0, 1], [2, 3])) is None


def test_a_batch_without_padding_needs_no_padding_id():
    runner = build_gpt2_without_padding_id(vocab_size=4)
    rows = make_rows([0, 1], [2, 3])
    inputs = runner.build_inputs(rows)
    assert not inputs.has_padding
    assert inputs.pad_id == runner.vocab_size
    with expect_error(UnsupportedModel, "no-padding-id"):
        runner.build_inputs(rows, width=3)


@pytest.mark.parametrize(("multiple", "width"), [(1, 5), (8, 8), (64, 48)])
def test_a_padded_batch_grows_to_a_multiple_within_the_positions(monkeypatch, multiple, width):
    runner = ModelRunner(tiny_bert())
    assert runner.max_tokens == 48
    monkeypatch.setattr(ModelRunner, "padding_multiple", multiple)
    assert choose_width(runner, [5, 3], None) == width
    assert choose_width(runner, [5, 5], None) == 5  # nothing to pad


def test_the_width_of_a_replayed_batch_never_exceeds_what_the_model_reads(monkeypatch):
    runner = ModelRunner(tiny_bert())
    monkeypatch.setattr(ModelRunner, "max_tokens", 30)
    assert choose_replayed_width(runner, 29) == 30
    assert choose_replayed_width(runner, 17) == 20
    assert choose_replayed_width(runner, 31) == 31  # refused elsewhere, not cut


def test_padding_leaves_the_logits_of_a_row_unchanged():
    runner = ModelRunner(tiny_bert())
    (row,) = make_rows([5, 6, 7])
    with torch.no_grad():
        _, alone = runner.run(runner.build_inputs([row]))
        _, padded = runner.run(runner.build_inputs([row], width=9))
    np.testing.assert_allclose(alone.numpy(), padded.numpy(), atol=1e-12)
