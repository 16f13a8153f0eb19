"""A tiny tokenizer and tiny models with known weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
)

WORD_LIST = """
    [PAD] [UNK] [CLS] [SEP] [MASK] the a film movie is was not very good bad great dull charm ##ing
    ##ly slow ##er fun plot acting and but i it we love hate this never ever , . ! ? ' t do don one
    two three who what where when red blue green cat dog sat on mat in town
"""
WORDS = WORD_LIST.split()


def tiny_tokenizer(limit: int = 48) -> Any:
    """A lower-casing WordPiece tokenizer that also spells every ASCII letter."""
    letters = [c for c in 'abcdefghijklmnopqrstuvwxyz0123456789<>/()"=:;-_&' if c not in WORDS]
    pieces = WORDS + letters + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    inner = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = BertNormalizer(lowercase=True)
    inner.pre_tokenizer = BertPreTokenizer()
    special = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=limit,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def tiny_config(**changes: Any) -> BertConfig:
    """Return the configuration of a tiny BERT with three labels."""
    settings = {
        "vocab_size": 150, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 48, "pad_token_id": 0,
        "id2label": {0: "negative", 1: "neutral", 2: "positive"},
        "label2id": {"negative": 0, "neutral": 1, "positive": 2},
    }  # fmt: skip
    return BertConfig(**(settings | changes))


def randomize_weights(model: Any, dtype: torch.dtype) -> Any:
    """Draw all weights with a fixed seed; return the model in evaluation mode."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.25 if parameter.dim() > 1 else 0.1 * noise + parameter)
    return model.to(dtype).eval()


def tiny_bert(dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Return a tiny BERT classifier."""
    return randomize_weights(BertForSequenceClassification(tiny_config(**changes)), dtype)


def tiny_bert_qa(dtype: torch.dtype = torch.float64) -> Any:
    """Return a tiny BERT for question answering."""
    names = {0: "start", 1: "end"}
    config = tiny_config(id2label=names, label2id={name: i for i, name in names.items()})
    return randomize_weights(BertForQuestionAnswering(config), dtype)


def tiny_bert_lm(dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Return a tiny BERT that fills in masked tokens."""
    return randomize_weights(BertForMaskedLM(tiny_config(**changes)), dtype)


def tiny_gpt(cls: Any = GPT2ForSequenceClassification, **changes: Any) -> Any:
    """Return a tiny GPT-2 without a padding id."""
    config = GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=24, **changes)
    config.pad_token_id = None
    return randomize_weights(cls(config), torch.float64)


def save_model(folder: Path, model: Any) -> Path:
    """Save a model with the tiny tokenizer."""
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
