"""Tiny random language models of families that have no sequence classifier in transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.helpers.families import DECODER, DELTA, EXPERTS, GPT, LATENT

# Settings that some of them read, so small that the texts of a test go beyond them.
BORDERS = {
    "sliding_window": 8, "index_topk": 16, "index_n_heads": 2, "index_head_dim": 8,
}  # fmt: skip
PLAIN = {**DECODER, **EXPERTS, **BORDERS}
MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4, "mamba_chunk_size": 8,
}  # fmt: skip
SLIDING_AND_FULL = ["sliding_attention", "full_attention"]

# Class prefixes of those that one config suits.
PLAIN_FAMILIES = (
    "Afmoe", "Apertus", "AriaText", "Beam", "BitNet", "Cohere", "Cohere2", "Cohere2Moe",
    "Cwm", "DeepseekV4", "Dots1", "Emu3", "Ernie4_5", "Ernie4_5_Moe", "ExaoneMoe", "FalconMamba",
    "FlexOlmo", "Flint", "GPTNeoXJapanese", "Gemma4Unified", "Glm4Moe", "Granite", "GraniteMoe",
    "GraniteMoeSWA", "GraniteMoeShared", "GraniteSWA", "HYV3", "HrmText", "HyperCLOVAX", "Inkling",
    "Jais2", "Kolibri1", "Laguna", "Lfm2", "Mamba", "Mellum", "MiMoV2Flash", "MiniMaxM2",
    "MiniMaxM3VL", "Mllama", "NanoChat", "OlmoHybrid", "Olmoe", "RecurrentGemma", "SolarOpen",
    "VaultGemma",
)  # fmt: skip
LATENT_FAMILIES = ("DeepseekV32", "Glm4MoeLite", "GlmMoeDsa", "HYV4", "LongcatFlash", "Youtu")
DELTA_FAMILIES = ("Qwen3_5Moe",)

# Class prefix: arguments of the config.
CAUSAL_ONLY_FAMILIES: dict[str, dict[str, Any]] = {
    **{prefix: PLAIN for prefix in PLAIN_FAMILIES},
    **{prefix: {**PLAIN, **LATENT} for prefix in LATENT_FAMILIES},
    **{prefix: {**PLAIN, **DELTA} for prefix in DELTA_FAMILIES},
    "BailingHybrid": {
        **PLAIN, **LATENT, "num_experts_per_token": 2, "num_expert_group": 1, "linear_head_dim": 8,
        "linear_num_heads": 4, "layer_group_size": 2,
    },
    "Bamba": {**PLAIN, **MAMBA, "attn_layer_indices": [1]},
    "CodeGen": {**GPT, "rotary_dim": 4, "n_ctx": 64},
    "FalconH1": {**PLAIN, **MAMBA, "mamba_d_ssm": 64},
    "Gemma3n": {
        **PLAIN, "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8, "num_hidden_layers": 4,
        "layer_types": SLIDING_AND_FULL * 2, "num_kv_shared_layers": 0, "laurel_rank": 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "Gemma4": {
        **PLAIN, "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0, "global_head_dim": 8, "layer_types": SLIDING_AND_FULL,
    },
    "GraniteMoeHybrid": {
        **PLAIN, **MAMBA, "shared_intermediate_size": 16, "layers_block_type": ["mamba", "attention"],
    },
    "KimiLinear": {
        **PLAIN, **LATENT, "num_experts_per_token": 2, "num_expert_group": 1,
        "linear_attn_config": {
            "kda_layers": [1], "full_attn_layers": [2], "head_dim": 8, "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
    "Lfm2Moe": {**PLAIN, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]},
    "Llama4": {
        **DECODER, **EXPERTS, "attention_chunk_size": 8, "intermediate_size_mlp": 48,
        "no_rope_layers": [1, 0], "layer_types": ["chunked_attention", "full_attention"],
    },
    "Mamba2": {**DECODER, "num_heads": 8, "state_size": 4, "n_groups": 1, "chunk_size": 8},
    "NemotronH": {
        **PLAIN, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 4,
        "chunk_size": 8, "layers_block_type": ["mamba", "attention"],
    },
    "Rwkv": {**DECODER, "rescale_every": 0},  # it would write into its weights before its first text
    "Zaya": {**PLAIN, "num_experts_per_tok": 1, "router_hidden_size": 16},
}  # fmt: skip
CAUSAL_ONLY_FAMILIES = {
    prefix: arguments
    for prefix, arguments in CAUSAL_ONLY_FAMILIES.items()
    if hasattr(transformers, f"{prefix}ForCausalLM")
}


def build_causal_only_model(prefix: str, **changes: Any) -> Any:
    """Return a random language model, with weights large enough to matter; ``changes`` are of its config."""
    name = next(
        name for name in (f"{prefix}TextConfig", f"{prefix}Config") if hasattr(transformers, name)
    )
    config = getattr(transformers, name)(**CAUSAL_ONLY_FAMILIES[prefix] | changes)
    config._attn_implementation = "sdpa"
    config._experts_implementation = "eager"  # the fused one has no float64
    model_class = getattr(transformers, f"{prefix}ForCausalLM")
    torch.manual_seed(0)
    try:
        model = model_class(config)
    except (ValueError, ImportError):
        config._attn_implementation = "eager"
        model = model_class(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()
