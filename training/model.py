"""Standard transformers models around one encoder: what is trained is what is shipped."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
)

TASKS = ("sentiment", "topics", "qa", "masked_lm")
# Trained afterwards, with a layer of its own above the shared ones: see training.nli.
PAIR_TASK = "nli"
NUM_SHARED_LAYERS = 6
LABELS = {
    "sentiment": {0: "negative", 1: "positive"},
    "topics": {0: "World", 1: "Sports", 2: "Business", 3: "Sci/Tech"},
    PAIR_TASK: {0: "entailment", 1: "neutral", 2: "contradiction"},
}


def build_config(vocabulary_size: int, task: str) -> BertConfig:
    """Build the configuration of MiniLM-L6 with a pruned vocabulary and the labels of a task."""
    label_names = {}
    if task in LABELS:
        id_to_label = LABELS[task]
        label_to_id = {label: index for index, label in id_to_label.items()}
        label_names = {"id2label": id_to_label, "label2id": label_to_id}
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=384,
        num_hidden_layers=NUM_SHARED_LAYERS + (task == PAIR_TASK),
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
        pad_token_id=0,
        **label_names,
    )


class FourHeads(nn.Module):
    """Sentiment, topics, question answering and masked LM over one set of encoder weights.

    The modules of the encoder are the same Python objects in all four, so ``parameters()`` yields
    them once. Poolers belong to their heads. Weights are random until ``load_encoder`` is called.

    Args:
        vocabulary_size: Number of word pieces.
    """

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.masked_lm = BertForMaskedLM(build_config(vocabulary_size, "masked_lm"))
        self.sentiment = BertForSequenceClassification(build_config(vocabulary_size, "sentiment"))
        self.topics = BertForSequenceClassification(build_config(vocabulary_size, "topics"))
        self.qa = BertForQuestionAnswering(build_config(vocabulary_size, "qa"))
        shared_encoder = self.masked_lm.bert
        for model in (self.sentiment, self.topics, self.qa):
            model.bert.embeddings = shared_encoder.embeddings
            model.bert.encoder = shared_encoder.encoder
        predictions = self.masked_lm.cls.predictions
        predictions.decoder.weight = shared_encoder.embeddings.word_embeddings.weight
        predictions.decoder.bias = predictions.bias

    def load_encoder(self, path: Path) -> None:
        """Load the pruned public weights into the encoder.

        Raises:
            ValueError: The file does not hold exactly the weights of the encoder.
        """
        weights = {name: tensor.float() for name, tensor in load_file(path).items()}
        missing, unexpected = self.masked_lm.bert.load_state_dict(weights, strict=False)
        if missing or unexpected:
            raise ValueError(
                f"{path} is not a MiniLM-L6 encoder: missing {missing}, unexpected {unexpected}. "
                "Prepare the work folder again."
            )

    def compute_masked_logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Compute vocabulary logits at the chosen positions of the flattened batch, ``chosen vocab``."""
        hidden_states = self.masked_lm.bert(input_ids=ids).last_hidden_state  # batch token hidden
        logits: Tensor = self.masked_lm.cls(hidden_states.flatten(0, 1)[positions])
        return logits

    def get_weights(self) -> dict[str, Tensor]:
        """Return each weight once, under its first name."""
        return dict(self.named_parameters())

    @torch.no_grad()
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy weights under the names of ``get_weights`` into the model."""
        for name, parameter in self.get_weights().items():
            parameter.copy_(weights[name])
