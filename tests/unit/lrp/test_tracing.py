"""Relevance of traced operations: each case against another computation of the same relevance."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import nn
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from tests.helpers.expect import expect_error
from tests.helpers.families import SMALL, build_model
from tests.helpers.tiny import randomize_weights
from tests.helpers.tolerance import assert_close
from tokenlight import Explainer, Tokens
from tokenlight.errors import BadInput

ROWS = Tokens.from_ids([[7, 31, 90, 18, 55, 64, 23, 101, 2]])
METHODS_BY_RULES = ["lrp", "transatt", "partial_lrp", ("attnlrp", {"propagation": "rules"})]


@pytest.mark.parametrize("method", METHODS_BY_RULES, ids=str)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_hook_that_requests_input_gradients_changes_no_relevance(family, method):
    model = build_model(family).double()
    expected = Explainer(model).explain(ROWS, method, target=1)
    model.enable_input_require_grads()
    attribution = Explainer(model).explain(ROWS, method, target=1)
    assert_close(attribution.scores, expected.scores)


@pytest.mark.parametrize("method", ["cp_lrp", "attnlrp", *METHODS_BY_RULES], ids=str)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_methods_that_read_the_decoders_embeddings_change_no_relevance(family, method):
    explainer = Explainer(build_model(family).double())
    alone = explainer.explain(ROWS, method, target=1)
    together = explainer.explain(ROWS, [method, "grad_x_input", "simple"], target=1)[0]
    assert_close(together.scores, alone.scores)


def test_half_precision_is_noted_where_rules_divide():
    model = build_model("bert").to(torch.bfloat16)
    for method in METHODS_BY_RULES:
        assert "computed in bfloat16" in Explainer(model).explain(ROWS, method).notes[0]
    assert Explainer(model).explain(ROWS, "attnlrp").notes == ()
    assert Explainer(build_model("bert")).explain(ROWS, "lrp").notes == ()


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_a_rewritten_gradient_in_bfloat16_equals_float64_up_to_rounding(family, method):
    model = build_model(family).to(torch.bfloat16)
    exact = Explainer(copy.deepcopy(model).double()).explain(ROWS, method, target=1)
    # Eight bits: each of the few dozen roundings on a path moves a score by up to 1 in 256.
    assert_close(Explainer(model).explain(ROWS, method, target=1).scores, exact.scores, 16 / 256)


@pytest.mark.parametrize("family", ["Cohere", "Gemma", "Llama"])
def test_a_wide_model_in_bfloat16_has_the_float64_scores_up_to_rounding(family):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model = randomize_weights(model, torch.bfloat16)
    exact = Explainer(copy.deepcopy(model).double()).explain(ROWS, "attnlrp", target=1)
    assert_close(Explainer(model).explain(ROWS, "attnlrp", target=1).scores, exact.scores, 16 / 256)


def test_relevance_inside_autocast_is_computed_and_noted():
    explainer = Explainer(build_model("bert"))
    expected = explainer.explain(ROWS, ["attnlrp", *METHODS_BY_RULES], target=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attributions = explainer.explain(ROWS, ["attnlrp", *METHODS_BY_RULES], target=1)
    for attribution in attributions:
        assert np.isfinite(attribution.scores).all()
        assert np.abs(attribution.scores).max() > 0
        assert bool(attribution.notes) is (
            attribution.method != "attnlrp" or bool(attribution.options)
        )
    assert_close(attributions[0].scores, expected[0].scores, 16 / 256)


class PackedProduct(torch.autograd.Function):
    """A product with eight-bit weights, as libraries for quantized models write it."""

    @staticmethod
    def forward(ctx, features, codes, scale):
        ctx.save_for_backward(codes, scale)
        return features @ (codes * scale).T

    @staticmethod
    def backward(ctx, gradient):
        codes, scale = ctx.saved_tensors
        return gradient @ (codes * scale), None, None


class PackedLinear(nn.Linear):
    def forward(self, features):
        scale = self.weight.detach().abs().amax() / 127
        codes = (self.weight.detach() / scale).round().to(torch.int8)
        output = PackedProduct.apply(features, codes, scale)
        return output if self.bias is None else output + self.bias


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
def test_quantized_layers_need_no_separate_rule(method):
    packed = build_model("llama").double()
    plain = build_model("llama").double()
    for model, layer_class in ((packed, PackedLinear), (plain, nn.Linear)):
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = layer_class
                scale = module.weight.detach().abs().amax() / 127
                module.weight.data = (module.weight / scale).round().detach() * scale
    expected = Explainer(plain).explain(ROWS, method, target=1)
    assert_close(Explainer(packed).explain(ROWS, method, target=1).scores, expected.scores)


@pytest.mark.parametrize("dora", [False, True])
def test_an_unmerged_adapter_is_noted_by_rules_and_changes_no_gradient_method(dora):
    config = peft.LoraConfig(
        r=4, target_modules=["query", "value"], init_lora_weights=False, use_dora=dora
    )
    torch.manual_seed(0)
    adapted = peft.get_peft_model(build_model("bert").double(), config).double()
    unmerged = Explainer(adapted).explain(ROWS, ["lrp", "attnlrp"], target=1)
    merged = Explainer(adapted.merge_and_unload()).explain(ROWS, ["lrp", "attnlrp"], target=1)
    assert "not merged" in unmerged[0].notes[0]
    assert [attribution.notes for attribution in (unmerged[1], *merged)] == [(), (), ()]
    assert_close(unmerged[1].scores, merged[1].scores)
    assert np.abs(unmerged[0].scores - merged[0].scores).max() > 1e-3  # why it is said


def build_deberta_v3():
    """DeBERTa-v2 as version 3 is published: no positions are added to the token table."""
    settings = {"position_biased_input": False, "relative_attention": True}
    torch.manual_seed(0)
    return DebertaV2ForSequenceClassification(DebertaV2Config(**SMALL, **settings)).eval()


@pytest.mark.parametrize("family", ["modernbert", "deberta-v3", "bloom"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_simple_is_refused_where_a_norm_follows_the_token_table(family, dtype):
    model = build_deberta_v3() if family == "deberta-v3" else build_model(family)
    with expect_error(
        BadInput, "rounding-noise", mentions="this model normalizes its token embeddings"
    ):
        Explainer(model.to(dtype)).explain(ROWS, "simple")


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "opt"])
def test_simple_explains_models_without_a_norm_after_the_token_table(family):
    assert np.abs(
        Explainer(build_model(family)).explain(ROWS, "simple").scores
    ).sum() == pytest.approx(1)
