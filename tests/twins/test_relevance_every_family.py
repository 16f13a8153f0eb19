"""AttnLRP and CP-LRP on every family, in float64: the package's rewritten gradient against the surrogate
of ``tests.twins.surrogate_gradients``, and against the package's own way rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from tests.helpers.causal_models import CAUSAL_MODELS, build_causal_model
from tests.helpers.families import DECODER, FAMILIES, build_model
from tests.helpers.relevance_families import (
    GRADIENT_FAMILIES,
    GRADIENT_REFUSALS,
    RULE_REFUSALS,
    TEXTS,
    build_exact_classifier,
    make_padded_tokens,
)
from tests.helpers.tolerance import EverythingInFloat64, assert_close
from tests.twins.surrogate_gradients import compute_scores
from tokenlight import Explainer, NextToken
from tokenlight.errors import UnsupportedModel
from tokenlight.lrp import attnlrp

METHODS = {"attnlrp": False, "cp_lrp": True}  # whether attention maps are constants
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


def build_exact_causal_model(name: str) -> Any:
    """Return a language model of ``FURTHER`` in float64, with weights that matter."""
    prefix, arguments = FURTHER[name]
    config = getattr(transformers, f"{prefix}Config")(**arguments)
    config._experts_implementation = "eager"  # a grouped matrix product has no float64
    torch.manual_seed(0)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3) if parameter.dim() > 1 else parameter.uniform_(0.5, 1.5)
    return model.double().eval()


def assert_twin_agrees(
    model: Any, pick: Callable[[Any], Tensor], target: Any, by_rules: bool
) -> None:
    """Compare both methods with the surrogate, with a second call and, if ``by_rules``, rule by rule."""
    explainer = Explainer(model)
    with EverythingInFloat64():
        for method, constant_maps in METHODS.items():
            attributions = explainer.explain(make_padded_tokens(), method, target=target)
            for text, actual in zip(TEXTS, attributions, strict=True):
                ids = torch.tensor([text])
                arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                twin = compute_scores(model, arguments, pick, constant_maps=constant_maps)
                assert np.abs(twin).max() > 0
                assert_close(actual.scores, twin, 1e-6)
            # The first pass looked at every operation, the next only where it found something.
            for actual, repeated in zip(
                attributions,
                explainer.explain(make_padded_tokens(), method, target=target),
                strict=True,
            ):
                assert_close(repeated.scores, actual.scores)
            if by_rules:
                slow = explainer.explain(
                    make_padded_tokens(), (method, {"propagation": "rules"}), target=target
                )
                for actual, expected in zip(attributions, slow, strict=True):
                    assert_close(actual.scores, expected.scores, 1e-6)


@pytest.fixture(autouse=True)
def no_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the stabilizer of the rules to nearly nothing: the twin has none."""
    monkeypatch.setattr(attnlrp, "EPSILON", 1e-13)


@pytest.mark.parametrize("family", GRADIENT_FAMILIES)
def test_a_classifier_is_explained_by_the_rewritten_gradient(family):
    by_rules = family in FAMILIES and family not in RULE_REFUSALS
    assert_twin_agrees(build_exact_classifier(family), lambda o: o.logits[0, 1], 1, by_rules)


@pytest.mark.parametrize("family", GRADIENT_REFUSALS)
def test_a_family_that_a_gradient_cannot_be_followed_through_is_refused(family):
    with pytest.raises(UnsupportedModel, match=GRADIENT_REFUSALS[family]):
        Explainer(build_model(family)).explain(make_padded_tokens(), "attnlrp")


@pytest.mark.parametrize("family", CAUSAL_MODELS)
def test_a_language_model_is_explained_by_the_rewritten_gradient(family):
    assert_twin_agrees(
        build_causal_model(family), lambda o: o.logits[0, -1, 9], LOGIT, by_rules=True
    )


@pytest.mark.parametrize("family", FURTHER)
def test_norms_without_bias_and_experts_are_explained_by_the_rewritten_gradient(family):
    experts = "experts" in str(FURTHER[family][1])
    assert_twin_agrees(
        build_exact_causal_model(family), lambda o: o.logits[0, -1, 9], LOGIT, by_rules=not experts
    )
