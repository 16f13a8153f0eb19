"""Tiny random models that read a picture and a text, of many families, with a tokenizer and processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tests.helpers.tiny import randomize_weights
from tokenlight import Picture

SIDE = 16
PATCH = 4
IMAGE = 3
WORDS = [
    *["<pad>", "</s>", "<s>", "<image>", "<unk>", "<video>", "<begin>", "<end>"],
    *["what", "is", "this", "?", "a", "red", "cat", "on", "the", "mat", "dog"],
]
QUESTION = "what is this ?"
ANSWER = " a red cat"
TEXT = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 96, "head_dim": 8,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip
MERGED = {
    "depth": 2, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4, "patch_size": PATCH,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "intermediate_size": 48, "in_channels": 3,
}  # fmt: skip
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
MARKERS = {"image_token_id": IMAGE, "video_token_id": 5}
CLIP = {"model_type": "clip_vision_model", **VISION}
SIGLIP = {"model_type": "siglip_vision_model", **VISION}
PIXTRAL = {"model_type": "pixtral", "head_dim": 8, **VISION}
LLAMA = {"model_type": "llama", **TEXT}
QWEN = {"model_type": "qwen2", **TEXT}
SLIDING = {**TEXT, "sliding_window": 64}
GEMMA = {"projection_dim": 32, "hidden_size": 32, "image_token_id": IMAGE}
COHERE = {"text_config": {"model_type": "cohere2", **SLIDING}, "image_token_id": IMAGE}
DOWNSAMPLING = {"downsample_factor": 2, "alignment_intermediate_size": 32}
WHOLE = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
TILES = {"image_grid_pinpoints": [[16, 16], [32, 16]], "vision_feature_layer": -1}


def _combine(text: dict[str, Any], vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the arguments of a config with a text and a vision part."""
    return {"text_config": text, "vision_config": vision, "image_token_id": IMAGE, **more}


# name: (class prefix, arguments, what becomes of it: all methods, those that need no gradient at the
# vectors a picture enters by, or none)
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llava": ("Llava", _combine(LLAMA, CLIP, vision_feature_layer=-1), "all"),
    "llava siglip": ("Llava", _combine(QWEN, SIGLIP, **WHOLE), "all"),
    "llava pixtral": ("Llava", _combine(LLAMA, PIXTRAL, **WHOLE), "all"),
    "vipllava": ("VipLlava", _combine(LLAMA, CLIP, vision_feature_layers=[-1, -2]), "all"),
    "paligemma": ("PaliGemma", _combine({"model_type": "gemma", **TEXT}, SIGLIP, **GEMMA), "all"),
    "paligemma2": (
        "PaliGemma", _combine({"model_type": "gemma2", **SLIDING}, SIGLIP, **GEMMA), "all",
    ),
    "gemma3": ("Gemma3", _combine(SLIDING, SIGLIP, mm_tokens_per_image=4), "all"),
    "qwen2-vl": (
        "Qwen2VL",
        _combine(
            {**TEXT, "rope_parameters": ROTARY},
            {**MERGED, "embed_dim": 32, "mlp_ratio": 2},
            **MARKERS,
            vision_start_token_id=6,
            vision_end_token_id=7,
        ),
        "all",
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VL",
        _combine(
            {**TEXT, "rope_parameters": ROTARY},
            {**MERGED, "window_size": 16, "fullatt_block_indexes": [1]},
            **MARKERS,
            vision_start_token_id=6,
            vision_end_token_id=7,
        ),
        "all",
    ),
    "glm4v": (
        "Glm4v",
        _combine(
            {**TEXT, "rope_parameters": ROTARY},
            {**MERGED, "image_size": SIDE},
            **MARKERS,
            image_start_token_id=6,
            image_end_token_id=7,
        ),
        "all",
    ),
    "idefics3": ("Idefics3", _combine(LLAMA, VISION, scale_factor=2), "all"),
    "smolvlm": ("SmolVLM", _combine(LLAMA, VISION, scale_factor=2), "all"),
    "internvl": (
        "InternVL",
        _combine(QWEN, {**VISION, "image_size": [SIDE] * 2, "patch_size": [PATCH] * 2}, downsample_ratio=0.5),
        "all",
    ),
    "mistral3": (
        "Mistral3",
        _combine({"model_type": "mistral", **TEXT}, PIXTRAL, spatial_merge_size=2, vision_feature_layer=-1),
        "all",
    ),
    "aya-vision": (
        "AyaVision", {**COHERE, **DOWNSAMPLING, **WHOLE, "vision_config": SIGLIP}, "all",
    ),
    "cohere2-vision": ("Cohere2Vision", {**COHERE, **DOWNSAMPLING, "vision_config": SIGLIP}, "all"),
    "ovis2": (
        "Ovis2",
        _combine(
            QWEN,
            {**VISION, "hidden_stride": 2, "num_visual_indicator_tokens": 5},
            visual_indicator_token_ids=[20, 21, 22, 23, 24],
            vocab_size=32,
            hidden_size=32,
        ),
        "all",
    ),
    "janus": ("Janus", _combine(LLAMA, {"projection_dim": 32, **VISION}), "all"),
    "deepseek-vl": ("DeepseekVL", _combine(LLAMA, SIGLIP), "all"),
    "lighton-ocr": (
        "LightOnOcr", _combine({"model_type": "qwen3", **TEXT}, PIXTRAL, spatial_merge_size=2), "all",
    ),
    "qwen3-vl": (
        "Qwen3VL",
        _combine(
            {**TEXT, "rope_parameters": ROTARY},
            {**MERGED, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            **MARKERS,
            vision_start_token_id=6,
            vision_end_token_id=7,
        ),
        "some",  # its picture enters at later blocks, too
    ),
    "idefics2": (  # resamples the picture
        "Idefics2",
        _combine(
            {"model_type": "mistral", **TEXT},
            VISION,
            perceiver_config={
                "hidden_size": 32, "resampler_n_latents": 4, "resampler_depth": 1,
                "resampler_n_heads": 4, "resampler_head_dim": 8, "num_key_value_heads": 2,
            },
        ),
        "refused",
    ),
    "llava-next": ("LlavaNext", _combine(LLAMA, CLIP, **TILES), "refused"),  # reads tiles
    "llava-onevision": (
        "LlavaOnevision", _combine(QWEN, SIGLIP, **TILES, video_token_id=5), "refused",
    ),
    "mllama": (  # reads the picture by cross-attention
        "Mllama",
        {
            "text_config": {"cross_attention_layers": [1], **TEXT},
            "vision_config": {
                "hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4,
                "intermediate_size": 48, "image_size": SIDE, "patch_size": PATCH,
                "vision_output_dim": 64, "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]], "max_num_tiles": 1,
            },
            "image_token_index": IMAGE,
        },
        "refused",
    ),
    "blip-2": (
        "Blip2",
        _combine(
            {
                "model_type": "opt", "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2,
                "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32,
                "max_position_embeddings": 64,
            },
            VISION,
            qformer_config={
                "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": 48, "encoder_hidden_size": 32, "vocab_size": 32,
            },
            num_query_tokens=4,
        ),
        "refused",
    ),
}  # fmt: skip
FAMILIES = {n: entry for n, entry in FAMILIES.items() if hasattr(transformers, f"{entry[0]}Config")}
SUPPORTED = [name for name, (_, _, support_level) in FAMILIES.items() if support_level == "all"]
REFUSED = [name for name, (_, _, support_level) in FAMILIES.items() if support_level == "refused"]


def build_model(family: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a random model of a family."""
    prefix, settings, _ = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**settings)
    return randomize_weights(
        getattr(transformers, f"{prefix}ForConditionalGeneration")(config), dtype
    )


def make_image_tokenizer() -> Any:
    """Return a tokenizer of whole words, with a token for a patch."""
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", bos_token="<s>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    return tokenizer


def draw_pixels(seed: int = 0) -> np.ndarray:
    """Return normalized pixel values, ``channel height width``."""
    values = np.random.RandomState(seed).standard_normal((3, SIDE, SIDE))
    return values.astype(np.float32)


def make_picture(seed: int = 0, text: str = QUESTION, **options: Any) -> Picture:
    """Return a picture of noise with a question."""
    return Picture.from_pixels(draw_pixels(seed), text=text, **options)
