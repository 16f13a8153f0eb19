"""A model whose truth is known: its logits are sums of word weights, so every score can be checked.

``logits[c] = bias[c] + Σ_attended tokens weight[token, c]``; with one planted order the oracle is the
weight itself.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from tokenlight import Explainer, Tokens
from tokenlight.data.attribution import Attribution
from tokenlight.data.prediction import Prediction
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = 40


class BagConfig(PretrainedConfig):
    model_type = "planted_bag"


class BagForSequenceClassification(PreTrainedModel):
    config_class = BagConfig
    base_model_prefix = "bag"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.words = nn.Embedding(VOCABULARY, config.num_labels)
        # Shape of every batch, in a container that the state restored after a pass does not cover.
        self.forwards = deque()

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of word weights."""
        return self.words

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,  # noqa: ARG002 - as callers call it
        output_hidden_states: bool = False,  # noqa: ARG002
    ) -> SimpleNamespace:
        """Return the sums of the weights of the attended words."""
        self.forwards.append(tuple(input_ids.shape))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = (self.words(input_ids) * mask[..., None]).sum(dim=1)
        return SimpleNamespace(logits=logits)


class BagTokenizer:
    """A tokenizer for texts that are token ids already."""

    pad_token_id = PAD
    unk_token_id = UNK
    mask_token_id = MASK
    eos_token_id = None
    all_special_ids = (PAD, UNK, CLS, SEP, MASK)
    model_max_length = 1 << 31

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the names of tokens."""
        return [f"w{i}" for i in ids]


def make_bag_model(
    weights: np.ndarray | None = None, *, labels: int = 2
) -> BagForSequenceClassification:
    """Return a bag-of-words classifier; special tokens weigh 0 unless ``weights`` (token × label) differ."""
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


def make_planted_explainer(weights: np.ndarray | None = None, **options: Any) -> Explainer:
    """Return an explainer of a bag-of-words classifier."""
    return Explainer(make_bag_model(weights, **options), BagTokenizer(), name="planted")


def make_row(words: Sequence[int], *, special: bool = True) -> TokenRow:
    """Return the row [CLS] words [SEP], as the explainer encodes it."""
    ids = [CLS, *words, SEP] if special else list(words)
    row = Tokens.from_ids([ids]).rows[0]
    flags = tuple(i in (CLS, SEP) for i in ids)
    return dataclasses.replace(row, special_tokens_mask=flags)


def compute_probabilities(explainer: Explainer, ids: Iterable[int]) -> np.ndarray:
    """Return the class probabilities of token ids, without the model's forward pass."""
    weights = explainer.model.words.weight.detach().numpy()
    logits = weights[list(ids)].sum(axis=0)
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def make_attribution(
    explainer: Explainer,
    words: Sequence[int],
    scores: Sequence[float],
    *,
    target: int | None = None,
    method: str = "by hand",
    special: bool = True,
) -> Attribution:
    """Return an attribution with these scores for the words, and 0 for special tokens."""
    row = make_row(words, special=special)
    probabilities = compute_probabilities(explainer, row.ids)
    labels = explainer.labels
    index = int(np.argmax(probabilities)) if target is None else target
    values = [0.0, *scores, 0.0] if special else list(scores)
    return Attribution(
        row=row,
        scores=np.array(values, dtype=float),
        method=method,
        target=ResolvedTarget("class", labels[index], (((index,), 1.0),)),
        prediction=Prediction(
            labels[int(np.argmax(probabilities))],
            int(np.argmax(probabilities)),
            labels,
            tuple(probabilities),
        ),
        logits=explainer.model.words.weight.detach().numpy()[list(row.ids)].sum(axis=0),
        model="planted",
    )


def compute_oracle_scores(explainer: Explainer, words: Sequence[int], target: int) -> np.ndarray:
    """Return what each word adds to the target's logit, minus the mean over the other labels."""
    weights = explainer.model.words.weight.detach().numpy()[list(words)]
    others = np.delete(weights, target, axis=1).mean(axis=1)
    return weights[:, target] - others
