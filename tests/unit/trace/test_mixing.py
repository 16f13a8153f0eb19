"""Blocks are split into projection, residual and norm in every dtype and at any scale."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification, Qwen2Config
from transformers import Qwen2ForSequenceClassification as Qwen2

from tokenlight import Explainer, Tokens

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_labels": 3,
    "pad_token_id": 0,
}
MODELS = {
    "llama": lambda: LlamaForSequenceClassification(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2(Qwen2Config(**SIZES)),
}
ROWS = Tokens.from_ids(torch.randint(3, 60, (2, 9), generator=torch.manual_seed(3)))


def explain(model, dtype):
    explainer = Explainer(model.to(dtype))
    return [attribution.scores for attribution in explainer.explain(ROWS, "alti_logit", 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", MODELS)
def test_a_model_as_transformers_initializes_it_is_split_in_every_dtype(family, dtype):
    # The hidden states are so small (0.02) that the eps of a norm counts.
    torch.manual_seed(0)
    model = MODELS[family]().eval()
    expected = explain(model, torch.float64)
    actual = explain(model, dtype)
    # Weights and states are rounded some tens of times, each time by half an eps.
    tolerance = 32 * torch.finfo(dtype).eps
    for value, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(
            value, reference, rtol=0, atol=tolerance * np.abs(reference).max()
        )
