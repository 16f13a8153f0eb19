"""AttnLRP and CP-LRP on every family, in float64: the package's rewritten gradient against the surrogate
of ``tests.twins.surrogate_gradients``, and against the package's own way rule by rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from tests.helpers.causal_models import CAUSAL_MODELS, build_causal_model
from tests.helpers.families import DECODER, FAMILIES, PARTLY_SUPPORTED_FAMILIES, build_model
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tests.twins.surrogate_gradients import compute_scores
from tests.unit.lrp.test_backward_whole_models import REFUSED as WITHOUT_RULES
from tokenlight import Explainer, NextToken, Tokens
from tokenlight.errors import UnsupportedModel
from tokenlight.lrp import attnlrp

METHODS = {"attnlrp": False, "cp_lrp": True}  # whether attention maps are constants
# What the gradient cannot be followed through, and why.
UNFOLLOWED = {
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
# Their kernels have no float64, or they do not run here at all; gpt-oss writes out a gate that the twin
# and the package take apart in two ways.
LEFT_OUT = {"gpt_oss", "mra", "yoso"}
REFUSED = {name for name, (_, _, support_level) in FAMILIES.items() if support_level == "refused"}
FOLLOWED = [
    n
    for n in (*FAMILIES, *PARTLY_SUPPORTED_FAMILIES)
    if n not in {*UNFOLLOWED, *LEFT_OUT, *REFUSED}
]
EXPERTS = {**DECODER, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 4}
# Norms that subtract a mean without a bias, and mixtures of experts: class prefix, configuration.
FURTHER = {
    "olmo": ("Olmo", DECODER),
    "cohere": ("Cohere", {**DECODER, "use_qk_norm": True}),
    "cohere2": ("Cohere2", {**DECODER, "sliding_window": 4}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("Qwen3Moe", EXPERTS),
    "olmoe": ("Olmoe", EXPERTS),
    "deepseek_v3": (
        "DeepseekV3",
        {**EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
         "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
         "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 4},
    ),
    "mixtral": ("Mixtral", {**DECODER, "num_local_experts": 4}),
}  # fmt: skip
LOGIT = NextToken(9, against=None)
TEXTS = [[7, 31, 90, 18, 55, 64, 23, 101, 2], [44, 12, 83, 29, 2]]


def causal(name):
    prefix, arguments = FURTHER[name]
    config = getattr(transformers, f"{prefix}Config")(**arguments)
    config._experts_implementation = "eager"  # a grouped matrix product has no float64
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return model.double().eval()


def classifier(name):
    model = build_model(name).double()
    with torch.no_grad():  # biases and weights of norms that matter
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.linspace(-0.2, 0.2, len(parameter)).double())
    if name == "mixtral":
        model.config._experts_implementation = "eager"
    return model


def padded_tokens():
    ids = torch.zeros(2, 9, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return Tokens.from_ids(ids, mask)


def assert_the_twin_agrees(model, pick, target, by_rules):
    explainer = Explainer(model)
    with EverythingInFloat64():
        for method, constant_maps in METHODS.items():
            attributions = explainer.explain(padded_tokens(), method, target=target)
            for text, ours in zip(TEXTS, attributions, strict=True):
                ids = torch.tensor([text])
                arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                twin = compute_scores(model, arguments, pick, constant_maps=constant_maps)
                assert np.abs(twin).max() > 0
                assert_close(ours.scores, twin, 1e-6)
            # The first pass looked at every operation, the next only where it found something.
            for ours, repeated in zip(
                attributions, explainer.explain(padded_tokens(), method, target=target), strict=True
            ):
                assert_close(repeated.scores, ours.scores)
            if by_rules:
                slow = explainer.explain(
                    padded_tokens(), (method, {"propagation": "rules"}), target=target
                )
                for ours, theirs in zip(attributions, slow, strict=True):
                    assert_close(ours.scores, theirs.scores, 1e-6)


@pytest.fixture(autouse=True)
def no_epsilon(monkeypatch):
    monkeypatch.setattr(attnlrp, "EPSILON", 1e-13)


@pytest.mark.parametrize("family", FOLLOWED)
def test_a_classifier_is_explained_by_the_rewritten_gradient(family):
    by_rules = family in FAMILIES and family not in WITHOUT_RULES
    assert_the_twin_agrees(classifier(family), lambda o: o.logits[0, 1], 1, by_rules)


@pytest.mark.parametrize("family", UNFOLLOWED)
def test_a_family_that_a_gradient_cannot_be_followed_through_is_refused(family):
    with pytest.raises(UnsupportedModel, match=UNFOLLOWED[family]):
        Explainer(build_model(family)).explain(padded_tokens(), "attnlrp")


@pytest.mark.parametrize("family", CAUSAL_MODELS)
def test_a_language_model_is_explained_by_the_rewritten_gradient(family):
    assert_the_twin_agrees(
        build_causal_model(family), lambda o: o.logits[0, -1, 9], LOGIT, by_rules=True
    )


@pytest.mark.parametrize("family", FURTHER)
def test_norms_without_bias_and_experts_are_explained_by_the_rewritten_gradient(family):
    experts = "experts" in str(FURTHER[family][1])
    assert_the_twin_agrees(
        causal(family), lambda o: o.logits[0, -1, 9], LOGIT, by_rules=not experts
    )
