"""Four standard transformers models around one encoder: what is trained is what is shipped."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

TASKS = ("sentiment", "topics", "qa", "masked_lm")
LABELS = {
    "sentiment": {0: "negative", 1: "positive"},
    "topics": {0: "World", 1: "Sports", 2: "Business", 3: "Sci/Tech"},
}


def configuration(vocabulary_size: int, task: str) -> BertConfig:
    """The shape of MiniLM-L6 with a pruned vocabulary."""
    labels = LABELS.get(task)
    names = {"id2label": labels, "label2id": {v: k for k, v in labels.items()}} if labels else {}
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
        pad_token_id=0,
        **names,
    )


class FourHeads(nn.Module):
    """Sentiment, topics, question answering and masked LM over one set of encoder weights.

    The modules of the encoder are the same Python objects in all four, so ``parameters()`` yields
    them once. Poolers belong to their heads.
    """

    def __init__(self, vocabulary_size: int) -> None:
        """Fresh weights; see ``load_encoder``."""
        super().__init__()
        self.masked_lm = BertForMaskedLM(configuration(vocabulary_size, "masked_lm"))
        self.sentiment = BertForSequenceClassification(configuration(vocabulary_size, "sentiment"))
        self.topics = BertForSequenceClassification(configuration(vocabulary_size, "topics"))
        self.qa = BertForQuestionAnswering(configuration(vocabulary_size, "qa"))
        shared = self.masked_lm.bert
        for model in (self.sentiment, self.topics, self.qa):
            model.bert.embeddings = shared.embeddings
            model.bert.encoder = shared.encoder
        predictions = self.masked_lm.cls.predictions
        predictions.decoder.weight = shared.embeddings.word_embeddings.weight
        predictions.decoder.bias = predictions.bias

    def load_encoder(self, path: Path) -> None:
        """Start from the pruned public weights."""
        weights = {name: tensor.float() for name, tensor in load_file(path).items()}
        missing, unexpected = self.masked_lm.bert.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise ValueError(
                f"{path} is not a MiniLM-L6 encoder: missing {missing}, unexpected {unexpected}. "
                "Prepare the work folder again."
            )

    def masked_logits(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits at the masked places alone, ``place vocab``."""
        hidden = self.masked_lm.bert(input_ids=ids).last_hidden_state  # batch token hidden
        logits: torch.Tensor = self.masked_lm.cls(hidden.flatten(0, 1)[places])
        return logits

    def weights(self) -> dict[str, torch.Tensor]:
        """Each weight once, under its first name."""
        return dict(self.named_parameters())
