"""Byte-level tokenizers as RoBERTa and GPT-2 have them: no segment ids, blanks inside the pieces."""

from __future__ import annotations

from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.processors import RobertaProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MERGES = ["t h", "th e", "Ġ th", "i n", "o n", "Ġ a", "e r", "a t", "Ġ s", "r e", "an d", "c at"]


def tiny_byte_tokenizer(style: Literal["roberta", "gpt2"], limit: int = 64) -> Any:
    """``<s> A </s></s> B </s>`` (roberta), or the parts one behind the other (gpt2)."""
    pieces = [*SPECIAL, *sorted(ByteLevel.alphabet())]
    merges = []
    for merge in MERGES:
        first, second = merge.split()
        if first in pieces and second in pieces:
            merges.append((first, second))
            pieces.append(first + second)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    inner = Tokenizer(BPE(vocabulary, merges))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.decoder = ByteDecoder()
    if style == "roberta":
        inner.post_processor = RobertaProcessing(
            ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
        )
    names = {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", bos_token="<s>",
        eos_token="</s>", model_max_length=limit, model_input_names=["input_ids", "attention_mask"],
        **(names if style == "roberta" else {}),
    )  # fmt: skip


def byte_tokenizer() -> Any:
    """Return a byte-level tokenizer without merges."""
    pieces = sorted(ByteLevel.alphabet())
    inner = Tokenizer(BPE({piece: i for i, piece in enumerate(pieces)}, []))
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    inner.decoder = ByteDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def metaspace_tokenizer() -> Any:
    """Return a tokenizer like SentencePiece: words are marked only by the ▁ of their first piece."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁good", -1.0), ("▁film", -1.0), ("s", -2.0)]
    inner = Tokenizer(Unigram(pieces, unk_id=0))
    inner.pre_tokenizer = Metaspace(split=False)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
