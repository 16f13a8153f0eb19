"""A language model whose answers are copied: which document each came from is known.

One head looks for the last token among earlier ones and copies what followed it there,

``logits_t = γ Σ_j a_tj e_j,   a_tj = softmax_{j≤t}(β e_t · e_(j−1))``

with one vector a word, drawn once; so "… Paris blue … Paris" goes on with "blue".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from tokenlight import Context, Explainer

SPECIAL = ["<pad>", "<unk>", "</s>"]
NAMES = [f"name{i}" for i in range(60)]
VALUES = [f"value{i}" for i in range(60)]
FILLER_WORDS = [f"word{i}" for i in range(60)]
WORDS = [*SPECIAL, *NAMES, *VALUES, *FILLER_WORDS]
WIDTH = 64
SHARPNESS = 12.0
GAIN = 8.0


class CopyConfig(PretrainedConfig):
    model_type = "planted_copy"


class CopyForCausalLM(PreTrainedModel):
    config_class = CopyConfig
    base_model_prefix = "copy"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, WIDTH)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table that the copied tokens are looked up in."""
        return self.words

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        return_dict: bool = True,  # noqa: ARG002 - as callers call it
        output_hidden_states: bool = False,  # noqa: ARG002
    ) -> Any:
        """Return the logits of the token that followed the last occurrence of the same token."""
        vectors = self.words(input_ids)
        before = torch.cat((torch.zeros_like(vectors[:, :1]), vectors[:, :-1]), dim=1)
        scores = SHARPNESS * vectors @ before.transpose(1, 2)
        is_masked = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)[None]
        if attention_mask is not None:
            is_masked = is_masked | (attention_mask[:, None, :] == 0)
        attention = scores.masked_fill(is_masked, -1e9).softmax(dim=-1)
        return SimpleNamespace(logits=GAIN * attention @ vectors @ self.words.weight.T)


def make_copy_explainer() -> Explainer:
    """Return an explainer of a model that copies the token after the last occurrence of the same token."""
    config = CopyConfig(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=2)
    config.architectures = ["CopyForCausalLM"]
    config.num_hidden_layers = 1
    model = CopyForCausalLM(config).double().eval()
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[0] = 0.0  # padding says nothing
    with torch.no_grad():
        model.words.weight.copy_(torch.as_tensor(vectors))
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )
    return Explainer(model, tokenizer, name="planted copy")


def draw_case(seed: int, documents: int = 6) -> tuple[Context, str, int]:
    """Return a question about documents, its answer, and the index of the document that holds it.

    Each document holds a name, its value and filler words that other documents hold too.
    """
    rng = np.random.default_rng([19, seed])
    names = rng.choice(NAMES, documents, replace=False)
    values = rng.choice(VALUES, documents, replace=False)
    texts = []
    for name, value in zip(names, values, strict=True):
        filling = list(rng.choice(FILLER_WORDS, 8))
        position = int(rng.integers(0, 9))
        texts.append(" ".join([*filling[:position], name, value, *filling[position:]]))
    answer_index = int(rng.integers(documents))
    question = Context(texts, str(names[answer_index]), template="{documents} {question}")
    return question, f" {values[answer_index]}", answer_index
