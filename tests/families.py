"""Tiny random sequence classifiers of many families: the architecture matrix."""

from __future__ import annotations

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

# name: (class prefix, config arguments, what becomes of it)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", SMALL, "seam"),
    "roberta": ("Roberta", {**SMALL, "max_position_embeddings": 66}, "seam"),
    "xlm-roberta": ("XLMRoberta", {**SMALL, "max_position_embeddings": 66}, "seam"),
    "camembert": ("Camembert", {**SMALL, "max_position_embeddings": 66}, "seam"),
    "distilbert": (
        "DistilBert",
        {"vocab_size": 120, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48,
         "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0},
        "seam",
    ),
    "electra": ("Electra", {**SMALL, "embedding_size": 32}, "seam"),
    "albert": ("Albert", {**SMALL, "embedding_size": 16}, "seam"),
    "ernie": ("Ernie", SMALL, "seam"),
    "convbert": ("ConvBert", {**SMALL, "embedding_size": 32}, "eager"),
    "deberta": ("Deberta", SMALL, "eager"),
    "deberta-v2": ("DebertaV2", SMALL, "eager"),
    "mpnet": ("MPNet", SMALL, "eager"),
    "layoutlm": ("LayoutLM", SMALL, "seam"),
    "squeezebert": ("SqueezeBert", {**SMALL, "embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1}, "refused"),
    "mobilebert": ("MobileBert", {**SMALL, "embedding_size": 32, "intra_bottleneck_size": 32}, "seam"),
    "roformer": ("RoFormer", {**SMALL, "embedding_size": 32}, "eager"),
    "megatron-bert": ("MegatronBert", SMALL, "eager"),
    "nystromformer": ("Nystromformer", SMALL, "eager"),
    "rembert": ("RemBert", {**SMALL, "input_embedding_size": 16}, "eager"),
    "xmod": ("Xmod", {**SMALL, "max_position_embeddings": 66, "languages": ["en_XX"], "default_language": "en_XX"}, "seam"),
    "data2vec-text": ("Data2VecText", {**SMALL, "max_position_embeddings": 66}, "seam"),
    "modernbert": ("ModernBert", {**SMALL, "local_attention": 8, "global_attn_every_n_layers": 2, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}, "seam"),
    "funnel": ("Funnel", {"vocab_size": 120, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "num_labels": 3, "pad_token_id": 0}, "refused"),
    "longformer": ("Longformer", {**SMALL, "attention_window": [8, 8]}, "refused"),
    "big_bird": ("BigBird", {**SMALL, "attention_type": "original_full"}, "eager"),
    "xlnet": ("XLNet", {"vocab_size": 120, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "num_labels": 3, "pad_token_id": 0}, "refused"),
    "xlm": ("XLM", {"vocab_size": 120, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "num_labels": 3, "pad_index": 0, "pad_token_id": 0}, "eager"),
    "flaubert": ("Flaubert", {"vocab_size": 120, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64, "num_labels": 3, "pad_index": 0, "pad_token_id": 0}, "eager"),
    "bart": ("Bart", SEQ2SEQ, "seam"),
    "mbart": ("MBart", SEQ2SEQ, "seam"),
    "plbart": ("PLBart", SEQ2SEQ, "seam"),
    "t5": ("T5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "seam"),
    "mt5": ("MT5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "seam"),
    "umt5": ("UMT5", {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "num_labels": 3, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}, "seam"),
    "gpt2": ("GPT2", GPT, "seam"),
    "gpt_bigcode": ("GPTBigCode", GPT, "seam"),
    "gptj": ("GPTJ", {**GPT, "rotary_dim": 4}, "eager"),
    "gpt_neo": ("GPTNeo", {"vocab_size": 120, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8, "intermediate_size": 48, "max_position_embeddings": 64, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "gpt_neox": ("GPTNeoX", DECODER, "seam"),
    "openai-gpt": ("OpenAIGPT", GPT, "eager"),
    "ctrl": ("CTRL", {"vocab_size": 120, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "dff": 48, "num_labels": 3, "pad_token_id": 0}, "seam"),
    "opt": ("OPT", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "bos_token_id": 1, "eos_token_id": 2}, "seam"),
    "bloom": ("Bloom", {"vocab_size": 120, "hidden_size": 32, "n_layer": 2, "n_head": 4, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "falcon": ("Falcon", {**SMALL, "bos_token_id": 1, "eos_token_id": 2}, "eager"),
    "mpt": ("Mpt", {"vocab_size": 120, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "num_labels": 3, "pad_token_id": 0}, "eager"),
    "llama": ("Llama", DECODER, "seam"),
    "mistral": ("Mistral", {**DECODER, "sliding_window": 8}, "seam"),
    "mixtral": ("Mixtral", {**DECODER, "num_local_experts": 2}, "seam"),
    "qwen2": ("Qwen2", DECODER, "seam"),
    "qwen3": ("Qwen3", DECODER, "seam"),
    "gemma": ("Gemma", DECODER, "seam"),
    "gemma2": ("Gemma2", {**DECODER, "query_pre_attn_scalar": 8}, "seam"),
    "gemma3": ("Gemma3Text", {**DECODER, "query_pre_attn_scalar": 8}, "seam"),
    "phi": ("Phi", {**DECODER, "num_key_value_heads": 4}, "seam"),
    "phi3": ("Phi3", {**DECODER}, "seam"),
    "stablelm": ("StableLm", DECODER, "seam"),
    "starcoder2": ("Starcoder2", DECODER, "seam"),
    "persimmon": ("Persimmon", DECODER, "seam"),
    "olmo2": ("Olmo2", DECODER, "seam"),
    "smollm3": ("SmolLM3", DECODER, "seam"),
    "nemotron": ("Nemotron", DECODER, "seam"),
    "glm": ("Glm", DECODER, "seam"),
    "gpt_oss": ("GptOss", {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}, "seam"),
    "jamba": ("Jamba", {**DECODER, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False, "num_experts": 2}, "refused"),
    "esm": ("Esm", {**SMALL, "mask_token_id": 3}, "seam"),
    "perceiver": ("Perceiver", {**SMALL, "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4}, "refused"),
    "canine": ("Canine", {**SMALL}, "refused"),
    "fnet": ("FNet", {**SMALL}, "refused"),
    "ibert": ("IBert", {**SMALL, "quant_mode": False}, "eager"),
    "luke": ("Luke", {**SMALL, "max_position_embeddings": 66, "entity_vocab_size": 20, "entity_emb_size": 16}, "eager"),
    "reformer": ("Reformer", {}, "refused"),
    "yoso": ("Yoso", SMALL, "refused"),
    "mra": ("Mra", SMALL, "refused"),
    "biogpt": ("BioGpt", {**SMALL, "bos_token_id": 1, "eos_token_id": 2}, "seam"),
    "mvp": ("Mvp", SEQ2SEQ, "eager"),
}  # fmt: skip

if version.parse(transformers.__version__) < version.parse("5.22"):
    # T5's attention joined transformers' interface later; before, it gave no maps either.
    FAMILIES |= {name: (*FAMILIES[name][:2], "refused") for name in ("t5", "mt5", "umt5")}


def build(name: str) -> Any:
    """A random model of the family: small, seeded, its weights large enough to matter."""
    prefix, arguments, _ = FAMILIES[name]
    config = getattr(transformers, f"{prefix}Config")(**arguments)
    # No fused kernel knows Gemma 2's soft cap; older transformers left it out without a word.
    config._attn_implementation = "eager" if name == "gemma2" else "sdpa"
    torch.manual_seed(0)
    try:
        model = getattr(transformers, f"{prefix}ForSequenceClassification")(config)
    except (ValueError, ImportError):
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{prefix}ForSequenceClassification")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()
