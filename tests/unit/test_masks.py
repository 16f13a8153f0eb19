"""What transformers asks of a mask is answered without asking the device, and rightly."""

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

from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, Tokens
from tokenlight.capture import masks, recording

VOCABULARY = len(tiny_tokenizer())
TEXTS = ["the film was good , we love it", "a dull plot", "great"]
IDS = [[5, 6, 7, 8], [9, 10, 11, 12]]
GIVEN = {
    "padded": lambda: TEXTS,
    "whole": lambda: Tokens.from_ids(IDS),
    "hidden inside": lambda: Tokens.from_ids(IDS, [[1, 0, 1, 1], [1, 1, 1, 1]]),
}
SMALL = {"num_labels": 3, "pad_token_id": 0, "vocab_size": VOCABULARY}


def tiny_gpt2():
    return GPT2ForSequenceClassification(GPT2Config(n_embd=8, n_layer=2, n_head=2, **SMALL)).eval()


def tiny_llama():
    config = LlamaConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, **SMALL
    )
    return LlamaForSequenceClassification(config).eval()


OWN = {name: getattr(masking_utils, name) for name in masks.QUESTIONS}


def original():
    return all(getattr(masking_utils, name) is ask for name, ask in OWN.items())


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("make", [tiny_bert, tiny_gpt2, tiny_llama])
def test_no_mask_is_looked_at_and_numbers_stay(make, given, monkeypatch):
    explainer, texts = Explainer(make(), tiny_tokenizer()), GIVEN[given]()
    methods = ["attcat", "grad_x_input"]
    explainer.explain(texts, methods)  # what is found out once may ask
    looked_at = []

    def watching(ask):
        def watched(padding_mask, *more, **named):
            looked_at.append(padding_mask is not None)
            return ask(padding_mask, *more, **named)

        return watched

    for name, ask in OWN.items():
        monkeypatch.setattr(masking_utils, name, watching(ask))
    found = explainer.explain(texts, methods)
    assert not any(looked_at)
    monkeypatch.setattr(recording, "mask_known", lambda *_: nullcontext())
    expected = explainer.explain(texts, methods)
    assert any(looked_at)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_transformers_is_as_it_was_when_the_last_of_two_threads_is_done():
    row = Explainer(tiny_bert(), tiny_tokenizer()).explain("a dull plot", "attcat").row
    shape = (1, len(row))
    begun, done = Barrier(2), Barrier(2)

    def other():
        with masks.mask_known([row], shape):
            begun.wait()
            done.wait()

    thread = Thread(target=other)
    thread.start()
    begun.wait()
    with masks.mask_known([row], shape):
        assert not original()
    assert not original()
    done.wait()
    thread.join()
    assert original()
