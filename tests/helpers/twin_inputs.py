"""The two texts, as ids, and the GPT-2 classifier that several twins are computed with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2ForSequenceClassification

from tests.helpers.tiny import randomize_weights
from tokenlight import Tokens

TEXT_IDS = [[2, 17, 9, 30, 12, 44, 21, 8, 3], [2, 40, 33, 3]]


def make_padded_batch() -> Tokens:
    """Return both texts as one batch, the shorter one padded on the right."""
    width = max(map(len, TEXT_IDS))
    padded_ids = []
    masks = []
    for text_ids in TEXT_IDS:
        padding = [0] * (width - len(text_ids))
        padded_ids.append([*text_ids, *padding])
        masks.append([*[1] * len(text_ids), *padding])
    return Tokens.from_ids(padded_ids, masks)


def build_gpt2_classifier() -> Any:
    """Return a tiny GPT-2 with three labels and a padding id, in float64."""
    config = GPT2Config(
        vocab_size=150, n_embd=32, n_layer=3, n_head=4, n_positions=48, num_labels=3, pad_token_id=0
    )
    return randomize_weights(GPT2ForSequenceClassification(config), torch.float64)
