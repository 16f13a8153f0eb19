"""Tiny random causal language models of several families, and a chat template for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.helpers.families import DECODER, GPT

CAUSAL_MODELS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT),
    "llama": ("LlamaConfig", "LlamaForCausalLM", DECODER),
    "mistral": ("MistralConfig", "MistralForCausalLM", DECODER),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", DECODER),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", DECODER),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", DECODER),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", DECODER),
}
CHAT_TEMPLATE = (
    "{% for m in messages %}[SEP] {{ m['role'] }} : {{ m['content'] | trim }} {% endfor %}"
    "{% if add_generation_prompt %}[SEP] it : {% endif %}"
)


def build_causal_model(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a random model of a family, with weights far enough from zero that every token matters."""
    config, cls, arguments = CAUSAL_MODELS[family]
    torch.manual_seed(0)
    sizes = {**arguments, "vocab_size": 150}
    model = getattr(transformers, cls)(getattr(transformers, config)(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.to(dtype).eval()
