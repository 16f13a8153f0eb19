"""A model whose truth is known: its logits are sums of word weights, so every score can be checked.

``logits[c] = bias[c] + Σ_attended tokens weight[token, c]``; with one planted order the oracle is the
weight itself.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from tokenlight import Explainer, Tokens
from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = 40


class BagConfig(PretrainedConfig):
    model_type = "planted_bag"


class BagForSequenceClassification(PreTrainedModel):
    config_class = BagConfig
    base_model_prefix = "bag"

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(VOCABULARY, config.num_labels)
        # Rows × width of every batch; in what a pass of ours does not put back.
        self.forwards = deque()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask=None, return_dict=True, output_hidden_states=False):  # noqa: ARG002 - as callers call it
        self.forwards.append(tuple(input_ids.shape))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = (self.words(input_ids) * mask[..., None]).sum(dim=1)
        return SimpleNamespace(logits=logits)


class BagTokenizer:
    """Names of the special ids; the planted texts are ids already."""

    pad_token_id = PAD
    unk_token_id = UNK
    mask_token_id = MASK
    eos_token_id = None
    all_special_ids = (PAD, UNK, CLS, SEP, MASK)
    model_max_length = 1 << 31

    def convert_ids_to_tokens(self, ids):
        return [f"w{i}" for i in ids]


def bag(weights=None, *, labels=2) -> BagForSequenceClassification:
    """A planted model; special tokens weigh nothing unless ``weights`` (token label) says so."""
    config = BagConfig(num_labels=labels, pad_token_id=PAD)
    config.architectures = ["BagForSequenceClassification"]
    config.num_hidden_layers = 1
    model = BagForSequenceClassification(config).double().eval()
    if weights is None:
        weights = np.random.default_rng(0).normal(size=(VOCABULARY, labels))
        weights[:5] = 0.0
    with torch.no_grad():
        model.words.weight.copy_(torch.as_tensor(weights))
    return model


def planted(weights=None, **options) -> Explainer:
    return Explainer(bag(weights, **options), BagTokenizer(), name="planted")


def row_of(words, *, special=True):
    """[CLS] words [SEP] as the Explainer reads it."""
    ids = [CLS, *words, SEP] if special else list(words)
    row = Tokens.from_ids([ids]).rows[0]
    flags = tuple(i in (CLS, SEP) for i in ids)
    return dataclasses.replace(row, special_tokens_mask=flags)


def chances_of(explainer, ids):
    """Class probabilities of a list of ids, all attended: the slow way."""
    weights = explainer.model.words.weight.detach().numpy()
    logits = weights[list(ids)].sum(axis=0)
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def scored(explainer, words, scores, *, target=None, method="by hand", special=True) -> Attribution:
    """An attribution with given scores for the words (specials 0), of the predicted class."""
    row = row_of(words, special=special)
    chances = chances_of(explainer, row.ids)
    labels = explainer.labels
    index = int(np.argmax(chances)) if target is None else target
    values = [0.0, *scores, 0.0] if special else list(scores)
    return Attribution(
        row=row,
        scores=np.array(values, dtype=float),
        method=method,
        target=ResolvedTarget("class", labels[index], (((index,), 1.0),)),
        prediction=Prediction(
            labels[int(np.argmax(chances))], int(np.argmax(chances)), labels, tuple(chances)
        ),
        logits=explainer.model.words.weight.detach().numpy()[list(row.ids)].sum(axis=0),
        model="planted",
    )


def oracle(explainer, words, target):
    """What each word adds to the target's logit over the mean of the others."""
    weights = explainer.model.words.weight.detach().numpy()[list(words)]
    others = np.delete(weights, target, axis=1).mean(axis=1)
    return weights[:, target] - others
