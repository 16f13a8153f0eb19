"""Mask checks of transformers are answered without reading the mask, and rightly."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Barrier, Thread

import numpy as np
import pytest
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    masking_utils,
)

from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.hooks import mask_hook
from tokenlight.hooks.compat import MASK_CHECKS
from tokenlight.trace import record

VOCABULARY = len(tiny_tokenizer())
TEXTS = ["the film was good , we love it", "a dull plot", "great"]
IDS = [[5, 6, 7, 8], [9, 10, 11, 12]]
INPUTS = {
    "padded": lambda: TEXTS,
    "full": lambda: Tokens.from_ids(IDS),
    "masked inside": lambda: Tokens.from_ids(IDS, [[1, 0, 1, 1], [1, 1, 1, 1]]),
}
SMALL = {"num_labels": 3, "pad_token_id": 0, "vocab_size": VOCABULARY}


def tiny_gpt2():
    return GPT2ForSequenceClassification(GPT2Config(n_embd=8, n_layer=2, n_head=2, **SMALL)).eval()


def tiny_llama():
    config = LlamaConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, **SMALL
    )
    return LlamaForSequenceClassification(config).eval()


ORIGINAL_CHECKS = {name: getattr(masking_utils, name) for name in MASK_CHECKS}


def is_original():
    return all(getattr(masking_utils, name) is check for name, check in ORIGINAL_CHECKS.items())


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_masks_are_not_read_and_scores_are_unchanged(make, inputs, monkeypatch):
    explainer = Explainer(make(), tiny_tokenizer())
    texts = INPUTS[inputs]()
    methods = ["attcat", "grad_x_input"]
    explainer.explain(texts, methods)  # what is found out once may read masks
    masks_read = []

    def watch(check):
        def watched(padding_mask, *args, **kwargs):
            masks_read.append(padding_mask is not None)
            return check(padding_mask, *args, **kwargs)

        return watched

    for name, check in ORIGINAL_CHECKS.items():
        monkeypatch.setattr(masking_utils, name, watch(check))
    attributions = explainer.explain(texts, methods)
    assert not any(masks_read)
    monkeypatch.setattr(record, "answered_mask_checks", lambda *_, **__: nullcontext())
    expected = explainer.explain(texts, methods)
    assert any(masks_read)
    for actual, reference in zip(attributions, expected, strict=True):
        np.testing.assert_array_equal(actual.scores, reference.scores)


def test_transformers_is_restored_when_the_last_thread_is_done():
    row = Explainer(tiny_bert(), tiny_tokenizer()).explain("a dull plot", "attcat").row
    shape = (1, len(row))
    other_has_started = Barrier(2)
    other_may_end = Barrier(2)

    def hold_the_mask():
        with mask_hook.answered_mask_checks([row], shape, has_padding=False):
            other_has_started.wait()
            other_may_end.wait()

    thread = Thread(target=hold_the_mask)
    thread.start()
    other_has_started.wait()
    with mask_hook.answered_mask_checks([row], shape, has_padding=False):
        assert not is_original()
    assert not is_original()
    other_may_end.wait()
    thread.join()
    assert is_original()
