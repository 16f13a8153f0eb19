"""Models that are compiled in part, or quantized, are explained by the numbers of the plain model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.expect import expect_error
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_tokenizer
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight import Explainer, Tokens
from tokenlight.errors import UnsupportedModel

TOKENIZER = tiny_tokenizer()
TEXT = "the film is not good"
GRADIENT_METHODS = (
    "attcat", "attnlrp", "gae", "integrated_gradients", "occlusion", "alti", "fullgrad_plus",
)  # fmt: skip


def compile_in_place(model):
    model.compile(backend="eager")


def compile_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")


def compile_part(model):
    model.bert = torch.compile(model.bert, backend="eager")


def compile_blocks(model):
    blocks = model.bert.encoder.layer
    for index, block in enumerate(blocks):
        blocks[index] = torch.compile(block, backend="aot_eager")


def compile_blocks_in_place(model):
    for block in model.bert.encoder.layer:
        block.compile(backend="aot_eager")


@pytest.mark.parametrize(
    "compile_model",
    [compile_in_place, compile_forward, compile_part, compile_blocks, compile_blocks_in_place],
)
def test_a_model_compiled_in_part_is_explained_as_the_plain_one(compile_model):
    methods = ["attcat", "attnlrp", "gae", "lrp", "transatt", "alti", "occlusion"]
    expected = Explainer(tiny_bert(), TOKENIZER).explain(TEXT, methods)
    model = tiny_bert()
    compile_model(model)
    before = [dict(vars(module)) for module in model.modules()]
    attributions = Explainer(model, TOKENIZER).explain(TEXT, methods)
    for ours, theirs in zip(attributions, expected, strict=True):
        np.testing.assert_array_equal(ours.scores, theirs.scores)
        np.testing.assert_array_equal(ours.logits, theirs.logits)
    for module, attributes in zip(model.modules(), before, strict=True):
        assert vars(module).get("forward") is attributes.get("forward")
        assert vars(module).get("_compiled_call_impl") is attributes.get("_compiled_call_impl")


def load_quantized(plain, folder, **options):
    """Save a model and load it with weights quantized by bitsandbytes, but for its classifier."""
    from transformers import BitsAndBytesConfig

    plain.save_pretrained(folder)
    config = BitsAndBytesConfig(llm_int8_skip_modules=["classifier", "lm_head"], **options)
    return type(plain).from_pretrained(folder, quantization_config=config, device_map="cpu")


def load_dequantized(quantized, plain):
    """Write the numbers that the layers of a 4-bit model stand for into the plain model."""
    from bitsandbytes.functional import dequantize_4bit

    for name, module in quantized.named_modules():
        if type(module).__name__ == "Linear4bit":
            weight = dequantize_4bit(module.weight.data, module.weight.quant_state)
            plain.get_submodule(name).weight.data.copy_(weight)
    return plain


@pytest.mark.filterwarnings("ignore")  # the library's own words on its processor kernels
class TestBitsAndBytes:
    @pytest.fixture
    def plain(self):
        pytest.importorskip("bitsandbytes")
        return tiny_bert(torch.float32, hidden_size=64, intermediate_size=128)

    @pytest.mark.parametrize("quant_type", ["fp4", "nf4"])
    def test_a_four_bit_model_has_the_scores_of_its_dequantized_weights(
        self, plain, tmp_path, quant_type
    ):
        model = load_quantized(plain, tmp_path, load_in_4bit=True, bnb_4bit_quant_type=quant_type)
        reference = load_dequantized(model, plain)
        for method in GRADIENT_METHODS:
            ours = Explainer(model, TOKENIZER).explain(TEXT, method, target=0)
            theirs = Explainer(reference, TOKENIZER).explain(TEXT, method, target=0)
            assert_close(ours.scores, theirs.scores, FLOAT32)
            assert_close(ours.logits, theirs.logits, FLOAT32)

    def test_a_four_bit_model_is_explained_after_a_pass_of_its_own(self, plain, tmp_path):
        """A pass without gradients lets bitsandbytes pack weights on processors with AVX512-BF16."""
        model = load_quantized(plain, tmp_path, load_in_4bit=True)
        with torch.no_grad():
            model(**TOKENIZER(TEXT, return_tensors="pt"))
        attribution = Explainer(model, TOKENIZER).explain(TEXT, "attcat", target=0)
        reference = load_dequantized(model, plain)
        expected = Explainer(reference, TOKENIZER).explain(TEXT, "attcat", target=0)
        assert_close(attribution.scores, expected.scores, FLOAT32)

    def test_a_four_bit_language_model_without_biases_keeps_its_gradient(self, tmp_path):
        pytest.importorskip("bitsandbytes")
        config = LlamaConfig(
            vocab_size=150, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, pad_token_id=0,
        )  # fmt: skip
        plain = randomize_weights(LlamaForCausalLM(config), torch.float32)
        model = load_quantized(plain, tmp_path, load_in_4bit=True)
        reference = load_dequantized(model, plain)
        ids = Tokens.from_ids([[5, 9, 12, 7, 31]])
        for method in ("attcat", "attnlrp"):
            ours = Explainer(model).explain(ids, method, target=7)
            theirs = Explainer(reference).explain(ids, method, target=7)
            assert_close(ours.scores, theirs.scores, FLOAT32)

    @pytest.mark.parametrize("options", [{"load_in_4bit": True}, {"load_in_8bit": True}])
    def test_relevance_rules_refuse_quantized_layers_by_name(self, plain, tmp_path, options):
        explainer = Explainer(load_quantized(plain, tmp_path, **options), TOKENIZER)
        with expect_error(UnsupportedModel, "hidden-operation-without-rule"):
            explainer.explain(TEXT, "transatt")

    def test_the_codes_of_an_eight_bit_projection_are_not_taken_for_its_weights(
        self, plain, tmp_path
    ):
        model = load_quantized(plain, tmp_path, load_in_8bit=True)
        ours = Explainer(model, TOKENIZER).explain(TEXT, "alti", target=0)
        theirs = Explainer(plain, TOKENIZER).explain(TEXT, "alti", target=0)
        largest = np.abs(theirs.scores).max()
        # Eight bits round weights and activations by up to 1/254 of the largest of their row.
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=0.05 * largest)


class CodedWeight(torch.Tensor):
    """A weight that is stored as codes and, like those of torchao, knows only products and itself."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes, scale):
        self.codes = codes
        self.scale = scale

    def dequantize(self):
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(f"{func} of a coded weight")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            features, weight, *bias = args
            return nn.functional.linear(features, weight.dequantize(), *bias)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("method", ["attcat", "transatt", "lrp", "mask_lrp", "alti"])
def test_weights_in_a_tensor_class_of_a_library_have_the_scores_of_their_numbers(method):
    model = tiny_bert()
    reference = tiny_bert()
    for name, layer in model.bert.encoder.named_modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            scale = weight.abs().amax(dim=1, keepdim=True) / 127
            coded = CodedWeight((weight / scale).round().to(torch.int8), scale)
            layer.weight = nn.Parameter(coded, requires_grad=False)
            plain_layer = reference.bert.encoder.get_submodule(name)
            plain_layer.weight.data.copy_(coded.dequantize())
    ours = Explainer(model, TOKENIZER).explain(TEXT, method, target=0)
    theirs = Explainer(reference, TOKENIZER).explain(TEXT, method, target=0)
    largest = np.abs(theirs.scores).max()
    np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-9 * largest)
