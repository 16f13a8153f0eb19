"""Families that relevance explains, by rewritten gradients and rule by rule, with their models and inputs."""

from __future__ import annotations

from typing import Any

import torch

from tests.helpers.families import FAMILIES, PARTLY_SUPPORTED_FAMILIES, build_model
from tokenlight import Tokens

# Families without a relevance rule for one of their operations, and that operation.
RULE_REFUSALS = {
    "convbert": "conv1d", "nystromformer": "conv2d", "xlm": "masked_fill_",
    "flaubert": "masked_fill_", "axk1": "copy_", "deepseek_v2": "copy_", "deepseek_v3": "copy_",
    "minicpm3": "copy_", "mistral4": "copy_", "doge": "exp", "layoutlmv3": "amax", "jetmoe": "index_add",
    "gpt_oss": "index_add_", "hunyuan_v1_moe": "index_add_", "mixtral": "index_add_",
    "phimoe": "index_add_", "qwen2_moe": "index_add_", "qwen3_moe": "index_add_",
}  # fmt: skip
# Families whose gradient cannot be rewritten, and a part of the message that refuses them.
GRADIENT_REFUSALS = {
    "funnel": "changes the number or width of its tokens",
    "longformer": "No relevance arrives at hidden state 0",
    "xlnet": "No relevance arrives at hidden state 0",
    "perceiver": "no table of token embeddings",
    "canine": "no table of token embeddings",
    "fnet": "'__get__'",
    "reformer": "in evaluation mode is not the derivative of its output",
    "deepseek_v2": "'view_as_real'",
    "doge": "'scaled_dot_product_attention'",
    "layoutlmv3": "'amax'",
    "phimoe": "'scatter'",
    "jamba": "'rsqrt'",
    "qwen3_5_text": "'rsqrt'",
    "qwen3_next": "'rsqrt'",
    "zamba": "'exp'",
    "zamba2": "'rsqrt'",
}
# Families that no twin is compared with. The kernels of MRA and YOSO have no float64, or do not run here at
# all; gpt-oss writes out a gate that the twin and the package take apart in two ways.
WITHOUT_TWIN = {"gpt_oss", "mra", "yoso"}
REFUSED_FAMILIES = {name for name, (_, _, level) in FAMILIES.items() if level == "refused"}
GRADIENT_FAMILIES = [
    name
    for name in (*FAMILIES, *PARTLY_SUPPORTED_FAMILIES)
    if name not in {*GRADIENT_REFUSALS, *WITHOUT_TWIN, *REFUSED_FAMILIES}
]
TEXTS = [[7, 31, 90, 18, 55, 64, 23, 101, 2], [44, 12, 83, 29, 2]]


def build_exact_classifier(name: str) -> Any:
    """Return a family's classifier in float64, with biases and norm weights that matter."""
    model = build_model(name).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.2, 0.2, len(parameter)).double())
    if name == "mixtral":
        model.config._experts_implementation = "eager"
    return model


def make_padded_tokens() -> Tokens:
    """Return ``TEXTS`` as one batch, the second text padded on the right."""
    ids = torch.zeros(2, 9, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return Tokens.from_ids(ids, mask)
