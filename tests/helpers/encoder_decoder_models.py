"""Tiny random encoder-decoder models of many families, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from packaging import version
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from tests.helpers.families import SEQ2SEQ

WORDS = [
    "<pad>",
    "</s>",
    "<unk>",
    *[
        "the",
        "cat",
        "dog",
        "sat",
        "on",
        "a",
        "red",
        "mat",
        "and",
        "ran",
        "die",
        "katze",
        "sass",
        "auf",
    ],
]
T5 = {
    "vocab_size": 24, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3,
    "num_heads": 4, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
BART = SEQ2SEQ | {
    "vocab_size": 24, "d_model": 16, "decoder_layers": 3, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
GEMMA = {
    "vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 24, "pad_token_id": 0,
    "eos_token_id": 1, "bos_token_id": 1,
}  # fmt: skip

SPARSE_T5 = {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
SPARSE_BART = {"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
PROPHET = {
    "vocab_size": 24, "hidden_size": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
    "eos_token_id": 1, "bos_token_id": 1, "decoder_start_token_id": 1,
}  # fmt: skip
LONG = {
    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 4,
}  # fmt: skip

# name: (class prefix, arguments, what becomes of it: by which route its attention is heard, what is not
# to be had of it, or whether it is refused)
SEQ2SEQ_FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "t5": ("T5", T5, "hook"),
    "t5-gated": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "hook"),
    "mt5": ("MT5", T5, "hook"),
    "umt5": ("UMT5", T5, "hook"),
    "longt5": ("LongT5", T5, "own attention"),
    "switch": ("SwitchTransformers", T5 | SPARSE_T5, "float32 router"),
    "bart": ("Bart", BART, "hook"),
    "mbart": ("MBart", BART, "hook"),
    "marian": ("Marian", BART, "hook"),
    "m2m100": ("M2M100", BART, "hook"),
    "nllb-moe": ("NllbMoe", BART | SPARSE_BART, "float32 router"),
    "pegasus": ("Pegasus", BART, "hook"),
    "pegasus-x": ("PegasusX", BART, "embeddings"),
    "bigbird-pegasus": ("BigBirdPegasus", BART | {"attention_type": "original_full"}, "eager"),
    "blenderbot": ("Blenderbot", BART, "hook"),
    "blenderbot-small": ("BlenderbotSmall", BART, "hook"),
    "plbart": ("PLBart", BART, "hook"),
    "mvp": ("Mvp", BART, "eager"),
    "led": ("LED", BART | LONG, "own attention"),
    "prophetnet": ("ProphetNet", PROPHET, "refused"),  # its mask overflows in float64
    "fsmt": ("FSMT", BART | {"langs": ["en", "de"], "src_vocab_size": 24, "tgt_vocab_size": 24}, "refused"),
}  # fmt: skip
if version.parse(transformers.__version__) < version.parse("5.22"):
    # Its decoder attended to later tokens.
    SEQ2SEQ_FAMILIES["umt5"] = ("UMT5", T5, "refused")
SEQ2SEQ_FAMILIES = {
    name: family
    for name, family in SEQ2SEQ_FAMILIES.items()
    if hasattr(transformers, f"{family[0]}Config")
}
SOURCE = "the red cat sat on a mat"
CONTINUATION = "die katze sass"
PROMPT = "the red cat sat"


def make_seq2seq_tokenizer(*, ends: bool = True) -> Any:
    """Return a tokenizer of whole words, which appends ``</s>`` if ``ends``."""
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    if ends:
        inner.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>",
        model_max_length=48,
    )  # fmt: skip


def fill_weights(model: Any, dtype: torch.dtype = torch.float64) -> Any:
    """Fill the weights from numpy, parameter by parameter, so that they are the same on every machine."""
    with torch.no_grad():
        for seed, (_, weight) in enumerate(sorted(model.named_parameters())):
            values = np.random.RandomState(seed).standard_normal(tuple(weight.shape))
            scaled = torch.from_numpy(values) * (0.3 if weight.dim() > 1 else 0.1)
            weight.copy_(scaled if weight.dim() > 1 else weight + scaled)
    return model.to(dtype).eval()


def make_seq2seq_model(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Return a tiny encoder-decoder model of a family."""
    prefix, arguments, _ = SEQ2SEQ_FAMILIES[name]
    config = getattr(transformers, f"{prefix}Config")(**arguments | changes)
    head = "MTModel" if name == "marian" else "ForConditionalGeneration"
    model = getattr(transformers, f"{prefix}{head}")(config)
    return fill_weights(model, dtype)


def make_small_llama(dtype: torch.dtype = torch.float64) -> Any:
    """Return a tiny causal language model with the same vocabulary."""
    config = transformers.LlamaConfig(**GEMMA, max_position_embeddings=48)
    return fill_weights(transformers.LlamaForCausalLM(config), dtype)
