"""A tiny Llama and the GGUF file that holds it, written with the writer of the package gguf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.tiny import randomize_weights

HEADS = 4
KEY_HEADS = 2
HIDDEN = 32
LAYERS = 2
# Tokens of a byte-level vocabulary; "Ġ" stands for the blank before a word.
MERGED = ["th", "the", "Ġthe", "Ġc", "Ġca", "Ġcat", "Ġs", "Ġsa", "Ġsat", "on", "Ġon"]
MERGES = ["t h", "th e", "Ġ the", "Ġ c", "Ġc a", "Ġca t", "Ġ s", "Ġs a", "Ġsa t", "o n", "Ġ on"]
# transformers' name in a layer → the name in a GGUF file.
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def byte_tokens() -> list[str]:
    """The 256 bytes as printable characters, in the order of a byte-level vocabulary, then the merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spellings = {}
    for byte in range(256):
        is_printable = byte in printable
        spellings[byte] = chr(byte) if is_printable else ""
    replacement = 256
    for byte in range(256):
        if not spellings[byte]:
            spellings[byte] = chr(replacement)
            replacement += 1
    return ["<|end|>", *(spellings[byte] for byte in range(256)), *MERGED]


def tiny_llama() -> Any:
    """Return a tiny Llama with the vocabulary of the file."""
    config = LlamaConfig(
        vocab_size=len(byte_tokens()), hidden_size=HIDDEN, intermediate_size=64,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64, tie_word_embeddings=False, rms_norm_eps=1e-5,
        bos_token_id=0, eos_token_id=0, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    )  # fmt: skip
    return randomize_weights(LlamaForCausalLM(config), torch.float32)


def permute_rotary(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp pairs neighboring rows for rotary positions, transformers the two halves of a head."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(model: Any) -> dict[str, np.ndarray]:
    """The weights of a Llama under their names in GGUF files."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for layer in range(LAYERS):
        for name, gguf_name in LAYER_NAMES.items():
            weight = weights[f"model.layers.{layer}.{name}.weight"]
            if gguf_name == "attn_q":
                weight = permute_rotary(weight, HEADS)
            if gguf_name == "attn_k":
                weight = permute_rotary(weight, KEY_HEADS)
            tensors[f"blk.{layer}.{gguf_name}.weight"] = weight
    return tensors


def write_tiny_gguf(
    path: Path,
    *,
    quantized: bool = False,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    **fields: int,
) -> Path:
    """Write a tiny Llama; ``fields`` take the place of numbers of its metadata, or are added to them."""
    numbers = {
        "context_length": 64, "embedding_length": HIDDEN, "block_count": LAYERS,
        "feed_forward_length": 64, "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
        "rope.dimension_count": HIDDEN // HEADS,
    }  # fmt: skip
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (numbers | fields).items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(byte_tokens())
    writer.add_token_types([3] + [1] * (len(byte_tokens()) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in (tensors or gguf_tensors(tiny_llama())).items():
        if quantized and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
