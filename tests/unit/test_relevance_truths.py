"""Relevance that was once wrong without a word: each case against another computation of the same."""

from __future__ import annotations

import copy

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import nn
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification
from transformers.activations import ACT2FN
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mobilebert.modeling_mobilebert import NoNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.squeezebert.modeling_squeezebert import SqueezeBertLayerNorm
from transformers.pytorch_utils import Conv1D

from tests.families import SMALL, build
from tests.tiny import randomised
from tests.tolerance import FLOAT32, close
from tokenlight import Explainer, Tokens
from tokenlight.errors import BadInput
from tokenlight.relevance.rules import Operation
from tokenlight.relevance.units import norm_of, unit_of

ROWS = Tokens.from_ids([[7, 31, 90, 18, 55, 64, 23, 101, 2]])
RULED = ["lrp", "transatt", "partial_lrp", ("attnlrp", {"way": "rules"})]


class Half(nn.Module):
    """A norm by its name alone: it halves."""

    def forward(self, features):
        return features / 2


class Turned(nn.Module):
    """An activation by its name alone: it looks at the neighbour."""

    def forward(self, features):
        return features.roll(1, dims=-1).relu()


def filled(module):
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            drawn = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.copy_(drawn + 0.5)
    return module.double()


# A module, the operation it is, and of a norm whether it subtracts the mean.
UNITS = {
    "LlamaRMSNorm": (LlamaRMSNorm(16), Operation.NORM, False),
    "GemmaRMSNorm": (GemmaRMSNorm(16), Operation.NORM, False),
    "CohereLayerNorm": (CohereLayerNorm(16), Operation.NORM, True),
    "OlmoLayerNorm": (OlmoLayerNorm(16), Operation.NORM, True),
    "NoNorm": (NoNorm(16), Operation.MAP, None),
    "Half": (Half(), Operation.MAP, None),
    "Conv1D": (Conv1D(16, 16), Operation.MAP, None),
    "Turned": (Turned(), None, None),
    "SqueezeBertLayerNorm": (SqueezeBertLayerNorm(16), None, None),
    **{name: (ACT2FN[name], Operation.ACTIVATION, None) for name in ("gelu_new", "quick_gelu", "relu2")},
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("shape", [(2, 16, 16), (2, 5, 3, 16)])
def test_a_module_is_what_it_computes(name, shape):
    module, operation, centres = UNITS[name]
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if name == "SqueezeBertLayerNorm" and len(shape) > 3:
        return
    unit = unit_of(filled(module), features)
    assert (None if unit is None else unit.operation) is operation
    if centres is None or unit is None:
        return
    assert unit.centres is centres
    with torch.no_grad():
        answered, answer = norm_of(module, unit, features)(features), module(features)
    close(answered, answer.numpy(), FLOAT32)  # Llama's norm computes in float32


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm, CohereLayerNorm])
@pytest.mark.parametrize("width", [256, 1024, 8192])
def test_a_wide_norm_in_half_precision_is_known_as_the_norm_it_is(kind, width):
    for dtype in (torch.bfloat16, torch.float16):
        module = filled(kind(width)).to(dtype)
        features = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(0)).to(dtype)
        unit = unit_of(module, features)
        assert unit[:2] == (Operation.NORM, kind is CohereLayerNorm)
        assert unit.written is not None


def test_weights_that_change_after_a_norm_was_known_are_seen():
    module = filled(LlamaRMSNorm(16))
    features = torch.randn(2, 3, 16, dtype=torch.float64)
    before = norm_of(module, unit_of(module, features), features).weight.clone()
    module.weight.data *= 2
    after = norm_of(module, unit_of(module, features), features).weight
    torch.testing.assert_close(after, 2 * before)


@pytest.mark.parametrize("method", RULED, ids=str)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_hook_that_asks_for_input_gradients_changes_no_relevance(family, method):
    model = build(family).double()
    expected = Explainer(model).explain(ROWS, method, target=1)
    model.enable_input_require_grads()
    found = Explainer(model).explain(ROWS, method, target=1)
    close(found.scores, expected.scores)


@pytest.mark.parametrize("method", ["cp_lrp", "attnlrp", *RULED], ids=str)
@pytest.mark.parametrize("family", ["bart", "t5"])
def test_methods_that_read_the_decoders_embeddings_change_no_relevance(family, method):
    explainer = Explainer(build(family).double())
    alone = explainer.explain(ROWS, method, target=1)
    beside = explainer.explain(ROWS, [method, "grad_x_input", "simple"], target=1)[0]
    close(beside.scores, alone.scores)


def test_half_precision_is_said_where_rules_divide():
    model = build("bert").to(torch.bfloat16)
    for method in RULED:
        assert "computed in bfloat16" in Explainer(model).explain(ROWS, method).notes[0]
    assert Explainer(model).explain(ROWS, "attnlrp").notes == ()
    assert Explainer(build("bert")).explain(ROWS, "lrp").notes == ()


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_a_rewritten_gradient_in_bfloat16_is_that_of_float64_but_for_rounding(family, method):
    model = build(family).to(torch.bfloat16)
    exact = Explainer(copy.deepcopy(model).double()).explain(ROWS, method, target=1)
    # Eight bits: each of the few dozen roundings on a path moves a score by up to 1 in 256.
    close(Explainer(model).explain(ROWS, method, target=1).scores, exact.scores, 16 / 256)


@pytest.mark.parametrize("family", ["Cohere", "Gemma", "Llama"])
def test_a_wide_model_in_bfloat16_is_explained_as_in_float64_but_for_rounding(family):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model = randomised(model, torch.bfloat16)
    exact = Explainer(copy.deepcopy(model).double()).explain(ROWS, "attnlrp", target=1)
    close(Explainer(model).explain(ROWS, "attnlrp", target=1).scores, exact.scores, 16 / 256)


def test_relevance_inside_autocast_is_computed_and_said():
    explainer = Explainer(build("bert"))
    expected = explainer.explain(ROWS, ["attnlrp", *RULED], target=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = explainer.explain(ROWS, ["attnlrp", *RULED], target=1)
    for ours in found:
        assert np.isfinite(ours.scores).all()
        assert np.abs(ours.scores).max() > 0
        assert bool(ours.notes) is (ours.method != "attnlrp" or bool(ours.options))
    close(found[0].scores, expected[0].scores, 16 / 256)


class Packed(torch.autograd.Function):
    """A product with eight-bit weights, as libraries for quantised models write it."""

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
        made = Packed.apply(features, codes, scale)
        return made if self.bias is None else made + self.bias


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
def test_quantised_layers_need_no_rule_of_their_own(method):
    packed, plain = build("llama").double(), build("llama").double()
    for model, kind in ((packed, PackedLinear), (plain, nn.Linear)):
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = kind
                scale = module.weight.detach().abs().amax() / 127
                module.weight.data = (module.weight / scale).round().detach() * scale
    theirs = Explainer(plain).explain(ROWS, method, target=1)
    close(Explainer(packed).explain(ROWS, method, target=1).scores, theirs.scores)


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapter_that_is_not_merged_is_said_by_rules_and_nothing_to_a_gradient(dora):
    how = peft.LoraConfig(
        r=4, target_modules=["query", "value"], init_lora_weights=False, use_dora=dora
    )
    torch.manual_seed(0)
    beside = peft.get_peft_model(build("bert").double(), how).double()
    apart = Explainer(beside).explain(ROWS, ["lrp", "attnlrp"], target=1)
    merged = Explainer(beside.merge_and_unload()).explain(ROWS, ["lrp", "attnlrp"], target=1)
    assert "not merged" in apart[0].notes[0]
    assert [found.notes for found in (apart[1], *merged)] == [(), (), ()]
    close(apart[1].scores, merged[1].scores)
    assert np.abs(apart[0].scores - merged[0].scores).max() > 1e-3  # why it is said


def deberta_v3():
    """DeBERTa-v2 as version 3 is published: no positions are added to the token table."""
    settings = {"position_biased_input": False, "relative_attention": True}
    torch.manual_seed(0)
    return DebertaV2ForSequenceClassification(DebertaV2Config(**SMALL, **settings)).eval()


@pytest.mark.parametrize("family", ["modernbert", "deberta-v3", "bloom"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_simple_is_refused_where_a_norm_follows_the_token_table(family, dtype):
    model = deberta_v3() if family == "deberta-v3" else build(family)
    with pytest.raises(BadInput, match="this model norms its token embeddings"):
        Explainer(model.to(dtype)).explain(ROWS, "simple")


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2", "opt"])
def test_simple_is_not_refused_elsewhere(family):
    assert np.abs(Explainer(build(family)).explain(ROWS, "simple").scores).sum() == pytest.approx(1)
