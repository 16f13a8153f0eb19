"""Tiny random sequence classifiers of many families: the architecture matrix."""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from packaging import version

SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "num_labels": 3,
    "pad_token_id": 0,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
GPT = {
    "vocab_size": 120, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48,
    "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SEQ2SEQ = {
    "vocab_size": 120, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip

EXPERTS = {  # all of them at work: a choice of some would be a jump that no gradient sees
    "num_local_experts": 2, "num_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "head_dim": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
}  # fmt: skip
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
ROTARY = {"rope_type": "default", "rope_theta": 1e4}

# name: (class prefix, config arguments, what becomes of it)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", SMALL, "hook"),
    "roberta": ("Roberta", {**SMALL, "max_position_embeddings": 66}, "hook"),
    "xlm-roberta": ("XLMRoberta", {**SMALL, "max_position_embeddings": 66}, "hook"),
    "camembert": ("Camembert", {**SMALL, "max_position_embeddings": 66}, "hook"),
    "distilbert": (
        "DistilBert",
        {"vocab_size": 120, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
         "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0},
        "hook",
    ),
    "electra": ("Electra", {**SMALL, "embedding_size": 32}, "hook"),
    "albert": ("Albert", {**SMALL, "embedding_size": 16}, "hook"),
    "ernie": ("Ernie", SMALL, "hook"),
    "convbert": ("ConvBert", {**SMALL, "embedding_size": 32}, "eager"),
    "deberta": ("Deberta", SMALL, "eager"),
    "deberta-v2": ("DebertaV2", SMALL, "eager"),
    "mpnet": ("MPNet", SMALL, "eager"),
    "layoutlm": ("LayoutLM", SMALL, "hook"),
    "mobilebert": ("MobileBert", {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 32}, "hook"),
    "roformer": ("RoFormer", {**SMALL, "embedding_size": 32}, "eager"),
    "megatron-bert": ("MegatronBert", SMALL, "eager"),
    "nystromformer": ("Nystromformer", SMALL, "eager"),
    "rembert": ("RemBert", {**SMALL, "input_embedding_size": 16}, "eager"),
    "xmod": ("Xmod", {**SMALL, "max_position_embeddings": 66, "languages": ["en_XX"], "default_language": "en_XX"}, "hook"),
    "data2vec-text": ("Data2VecText", {**SMALL, "max_position_embeddings": 66}, "hook"),
    "modernbert": ("ModernBert", {**SMALL, "local_attention": 8, "global_attn_every_n_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, "hook"),
    "big_bird": ("BigBird", {**SMALL, "attention_type": "original_full"}, "eager"),
    "xlm": ("XLM", {"vocab_size": 120, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "num_labels": 3, "pad_index": 0, "pad_token_id": 0}, "eager"),
    "flaubert": ("Flaubert", {"vocab_size": 120, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "num_labels": 3, "pad_index": 0, "pad_token_id": 0}, "eager"),
    "bart": ("Bart", SEQ2SEQ, "hook"),
    "mbart": ("MBart", SEQ2SEQ, "hook"),
    "plbart": ("PLBart", SEQ2SEQ, "hook"),
    "t5": ("T5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "hook"),
    "mt5": ("MT5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "hook"),
    "umt5": ("UMT5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "hook"),
    "gpt2": ("GPT2", GPT, "hook"),
    "gpt_bigcode": ("GPTBigCode", GPT, "hook"),
    "gptj": ("GPTJ", {**GPT, "rotary_dim": 4}, "eager"),
    "gpt_neo": ("GPTNeo", {"vocab_size": 120, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8, "intermediate_size": 48, "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "gpt_neox": ("GPTNeoX", DECODER, "hook"),
    "openai-gpt": ("OpenAIGPT", GPT, "eager"),
    "ctrl": ("CTRL", {"vocab_size": 120, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "dff": 48, "num_labels": 3, "pad_token_id": 0}, "hook"),
    "opt": ("OPT", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "bos_token_id": 1, "eos_token_id": 2}, "hook"),
    "bloom": ("Bloom", {"vocab_size": 120, "hidden_size": 32, "n_layer": 2, "n_head": 4, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "falcon": ("Falcon", {**SMALL, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "mpt": ("Mpt", {"vocab_size": 120, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "num_labels": 3, "pad_token_id": 0}, "eager"),
    "llama": ("Llama", DECODER, "hook"),
    "mistral": ("Mistral", {**DECODER, "sliding_window": 8}, "hook"),
    "mixtral": ("Mixtral", {**DECODER, "num_local_experts": 2}, "hook"),
    "qwen2": ("Qwen2", DECODER, "hook"),
    "qwen3": ("Qwen3", DECODER, "hook"),
    "gemma": ("Gemma", DECODER, "hook"),
    "gemma2": ("Gemma2", {**DECODER, "query_pre_attn_scalar": 8}, "hook"),
    "gemma3": ("Gemma3Text", {**DECODER, "query_pre_attn_scalar": 8}, "hook"),
    "phi": ("Phi", {**DECODER, "num_key_value_heads": 4}, "hook"),
    "phi3": ("Phi3", {**DECODER}, "hook"),
    "stablelm": ("StableLm", DECODER, "hook"),
    "starcoder2": ("Starcoder2", DECODER, "hook"),
    "persimmon": ("Persimmon", DECODER, "hook"),
    "olmo2": ("Olmo2", DECODER, "hook"),
    "smollm3": ("SmolLM3", DECODER, "hook"),
    "nemotron": ("Nemotron", DECODER, "hook"),
    "glm": ("Glm", DECODER, "hook"),
    "gpt_oss": ("GptOss", {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}, "hook"),
    "esm": ("Esm", {**SMALL, "mask_token_id": 3}, "hook"),
    "perceiver": ("Perceiver", {**SMALL, "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4}, "refused"),
    "canine": ("Canine", {**SMALL}, "refused"),
    "ibert": ("IBert", {**SMALL, "quant_mode": False}, "eager"),
    "luke": ("Luke", {**SMALL, "max_position_embeddings": 66, "entity_vocab_size": 20, "entity_emb_size": 16}, "eager"),
    "biogpt": ("BioGpt", {**SMALL, "bos_token_id": 1, "eos_token_id": 2}, "hook"),
    "mvp": ("Mvp", SEQ2SEQ, "eager"),
    "arcee": ("Arcee", DECODER, "hook"),
    "axk1": ("AXK1", {**DECODER, **EXPERTS, **LATENT}, "hook"),
    "bigbird_pegasus": ("BigBirdPegasus", {**SEQ2SEQ, "attention_type": "original_full"}, "eager"),
    "cohere_compass_text": ("CohereCompassText", {**DECODER, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "rope_parameters": {"sliding_attention": ROTARY, "full_attention": ROTARY}}, "hook"),
    "deepseek_v2": ("DeepseekV2", {**DECODER, **EXPERTS, **LATENT}, "hook"),
    "deepseek_v3": ("DeepseekV3", {**DECODER, **EXPERTS, **LATENT}, "hook"),
    "doge": ("Doge", DECODER, "hook"),
    "esmc": ("Esmc", SMALL, "hook"),
    "eurobert": ("EuroBert", DECODER, "hook"),
    "exaone4": ("Exaone4", {**DECODER, "sliding_window": 8}, "hook"),
    "glm4": ("Glm4", DECODER, "hook"),
    "gte": ("Gte", SMALL, "hook"),
    "helium": ("Helium", DECODER, "hook"),
    "hunyuan_v1_dense": ("HunYuanDenseV1", DECODER, "hook"),
    "hunyuan_v1_moe": ("HunYuanMoEV1", {**DECODER, "num_experts": 2, "moe_topk": 2}, "hook"),
    "jetmoe": ("JetMoe", {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 2, "kv_channels": 8, "num_key_value_heads": 4}, "hook"),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", SMALL, "hook"),
    "layoutlmv3": ("LayoutLMv3", {**SMALL, "visual_embed": False, "coordinate_size": 5, "shape_size": 6, "max_2d_position_embeddings": 64, "max_position_embeddings": 66}, "eager"),
    "lilt": ("Lilt", {**SMALL, "hidden_size": 48, "max_2d_position_embeddings": 64, "max_position_embeddings": 66}, "eager"),
    "markuplm": ("MarkupLM", {**SMALL, "max_depth": 4, "xpath_unit_hidden_size": 8, "max_position_embeddings": 66}, "hook"),
    "minicpm3": ("MiniCPM3", {**DECODER, **LATENT}, "hook"),
    "ministral": ("Ministral", {**DECODER, "sliding_window": 8}, "hook"),
    "ministral3": ("Ministral3", DECODER, "hook"),
    "mistral4": ("Mistral4", {**DECODER, **EXPERTS, **LATENT}, "hook"),
    "modernbert-decoder": ("ModernBertDecoder", {**DECODER, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2}, "hook"),
    "nomic_bert": ("NomicBert", SMALL, "hook"),
    "olmo": ("Olmo", DECODER, "hook"),
    "olmo3": ("Olmo3", {**DECODER, "sliding_window": 8}, "hook"),
    "phimoe": ("Phimoe", {**DECODER, "num_local_experts": 2}, "hook"),
    "qwen2_moe": ("Qwen2Moe", {**DECODER, **EXPERTS}, "hook"),
    "qwen3_moe": ("Qwen3Moe", {**DECODER, **EXPERTS}, "hook"),
    "roberta-prelayernorm": ("RobertaPreLayerNorm", {**SMALL, "max_position_embeddings": 66}, "hook"),
    "roc_bert": ("RoCBert", {**SMALL, "pronunciation_vocab_size": 120, "shape_vocab_size": 120, "pronunciation_embed_dim": 8, "shape_embed_dim": 8}, "hook"),
    "seed_oss": ("SeedOss", DECODER, "hook"),
    "tapas": ("Tapas", {**SMALL, "type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]}, "eager"),
    "ultrabert": ("Ultrabert", SMALL, "hook"),
    "xlm-roberta-xl": ("XLMRobertaXL", {**SMALL, "max_position_embeddings": 66}, "hook"),
}  # fmt: skip

# Families without one readable attention map per block. "embeddings": methods work that read the gradient at
# the embeddings or perturb tokens; "tokens": only those that perturb tokens.
PARTLY_SUPPORTED_FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "squeezebert": ("SqueezeBert", {**SMALL, "embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1}, "embeddings"),
    "funnel": ("Funnel", {"vocab_size": 120, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "num_labels": 3, "pad_token_id": 0}, "embeddings"),
    "longformer": ("Longformer", {**SMALL, "attention_window": [8, 8]}, "embeddings"),
    "xlnet": ("XLNet", {"vocab_size": 120, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "num_labels": 3, "pad_token_id": 0}, "embeddings"),
    "jamba": ("Jamba", {**DECODER, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "num_experts": 2}, "embeddings"),
    "fnet": ("FNet", {**SMALL}, "embeddings"),
    "yoso": ("Yoso", SMALL, "tokens"),
    "mra": ("Mra", SMALL, "embeddings"),
    "reformer": ("Reformer", {"vocab_size": 120, "hidden_size": 32, "attn_layers": ["local", "lsh"], "num_attention_heads": 4, "attention_head_size": 8, "feed_forward_size": 48, "axial_pos_embds": False, "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 4, "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0, "hash_seed": 0, "is_decoder": False}, "tokens"),
    "axk2": ("AXK2", {**DECODER, **EXPERTS, **LATENT, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 16}, "embeddings"),
    "diffllama": ("DiffLlama", DECODER, "embeddings"),
    "minimax": ("MiniMax", {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 2, "block_size": 8}, "embeddings"),
    "qwen3_5_text": ("Qwen3_5Text", {**DECODER, **DELTA}, "embeddings"),
    "qwen3_next": ("Qwen3Next", {**DECODER, **EXPERTS, **DELTA}, "embeddings"),
    "zamba": ("Zamba", {**DECODER, "num_hidden_layers": 4, "mamba_d_state": 4, "mamba_dt_rank": 4, "n_mamba_heads": 2, "attention_hidden_size": 64, "attention_head_dim": 16, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}, "embeddings"),
    "zamba2": ("Zamba2", {**DECODER, "num_key_value_heads": 4, "mamba_d_state": 4, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "attention_hidden_size": 64, "attention_head_dim": 16, "layers_block_type": ["mamba", "hybrid"], "chunk_size": 8, "num_mem_blocks": 1, "adapter_rank": 4}, "embeddings"),
}  # fmt: skip

if version.parse(transformers.__version__) < version.parse("5.22"):
    # T5 joined the attention interface later, and its kin for other vocabularies later still.
    older = {"t5": "eager", "mt5": "eager", "umt5": "refused"}
    FAMILIES |= {
        name: (*FAMILIES[name][:2], support_level) for name, support_level in older.items()
    }
    FAMILIES.pop("cohere_compass_text")  # its rotary tables came out empty by these settings


def _keep_installed(families: dict[str, tuple[str, dict[str, Any], str]]) -> Any:
    """Return the families that the installed version of transformers has."""
    return {
        name: family
        for name, family in families.items()
        if hasattr(transformers, f"{family[0]}ForSequenceClassification")
    }


FAMILIES = _keep_installed(FAMILIES)
PARTLY_SUPPORTED_FAMILIES = _keep_installed(PARTLY_SUPPORTED_FAMILIES)
SUPPORTED_FAMILIES = [
    name for name, (_, _, support_level) in FAMILIES.items() if support_level != "refused"
] + list(PARTLY_SUPPORTED_FAMILIES)


def find_causal_class(name: str) -> str | None:
    """Return the name of the family's causal language model class, if it has one."""
    prefix = (FAMILIES | PARTLY_SUPPORTED_FAMILIES)[name][0]
    ends = ("LMHeadModel", "ForCausalLM")
    return next((f"{prefix}{end}" for end in ends if hasattr(transformers, f"{prefix}{end}")), None)


def has_growing_rope(name: str) -> bool:
    """Return whether the family's code lets rotary factors follow the longest text of a batch."""
    prefix = (FAMILIES | PARTLY_SUPPORTED_FAMILIES)[name][0]
    return class_has_growing_rope(f"{prefix}ForSequenceClassification")


def class_has_growing_rope(class_name: str) -> bool:
    """Return whether the code of a class of transformers lets rotary factors follow the longest text."""
    model_class = getattr(transformers, class_name)
    return hasattr(sys.modules[model_class.__module__], "dynamic_rope_update")


def is_encoder_decoder(name: str) -> bool:
    """Return whether the family has an encoder and a decoder; no model is built to find out."""
    prefix, arguments, _ = (FAMILIES | PARTLY_SUPPORTED_FAMILIES)[name]
    return bool(getattr(transformers, f"{prefix}Config")(**arguments).is_encoder_decoder)


# These attend to later tokens unless their config makes them decoders.
NOT_CAUSAL_BY_DEFAULT = frozenset(
    [
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "electra",
        "ernie",
        "roformer",
        "megatron-bert",
        "rembert",
        "xmod",
        "data2vec-text",
        "big_bird",
        "roberta-prelayernorm",
        "roc_bert",
        "xlm-roberta-xl",
        "xlnet",
    ]
)
CAUSAL_FAMILIES = [name for name in FAMILIES | PARTLY_SUPPORTED_FAMILIES if find_causal_class(name)]


def build_model(name: str, head: str = "ForSequenceClassification") -> Any:
    """Return a small random model of a family, with weights large enough to matter."""
    prefix, arguments, _ = (FAMILIES | PARTLY_SUPPORTED_FAMILIES)[name]
    return build_model_from_config(prefix, arguments, head, fused=name != "gemma2")


def build_model_from_config(
    prefix: str,
    arguments: dict[str, Any],
    head: str = "ForSequenceClassification",
    *,
    fused: bool = True,
) -> Any:
    """Return a random model of the class ``prefix`` + ``head``, from the arguments of its config."""
    config = getattr(transformers, f"{prefix}Config")(**arguments)
    # No fused kernel knows Gemma 2's soft cap; older transformers left it out without a word.
    config._attn_implementation = "sdpa" if fused else "eager"
    config._experts_implementation = "eager"  # the fused one has no float64
    torch.manual_seed(0)
    cls = getattr(transformers, head if head.startswith(prefix) else f"{prefix}{head}")
    try:
        model = cls(config)
    except (ValueError, ImportError):
        config._attn_implementation = "eager"
        model = cls(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()
