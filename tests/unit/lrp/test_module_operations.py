"""Which operation a module is, told by what it computes and not by its name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mobilebert.modeling_mobilebert import NoNorm
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.squeezebert.modeling_squeezebert import SqueezeBertLayerNorm
from transformers.pytorch_utils import Conv1D

from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight.lrp.module_operations import detect_operation, read_norm
from tokenlight.lrp.rules import Operation


class Halving(nn.Module):
    """A linear map that halves: neither a norm nor an activation."""

    def forward(self, features):
        return features / 2


class ShiftedRelu(nn.Module):
    """Like an activation, but each feature reads its neighbor: no single operation."""

    def forward(self, features):
        return features.roll(1, dims=-1).relu()


def fill_weights(module):
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            uniform = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.copy_(uniform + 0.5)
    return module.double()


# A module, the operation it is, and of a norm whether it subtracts the mean.
UNITS = {
    "LlamaRMSNorm": (LlamaRMSNorm(16), Operation.NORM, False),
    "GemmaRMSNorm": (GemmaRMSNorm(16), Operation.NORM, False),
    "CohereLayerNorm": (CohereLayerNorm(16), Operation.NORM, True),
    "OlmoLayerNorm": (OlmoLayerNorm(16), Operation.NORM, True),
    "NoNorm": (NoNorm(16), Operation.LINEAR_MAP, None),
    "Halving": (Halving(), Operation.LINEAR_MAP, None),
    "Conv1D": (Conv1D(16, 16), Operation.LINEAR_MAP, None),
    "ShiftedRelu": (ShiftedRelu(), None, None),
    "SqueezeBertLayerNorm": (SqueezeBertLayerNorm(16), None, None),
    **{name: (ACT2FN[name], Operation.ACTIVATION, None) for name in ("gelu_new", "quick_gelu", "relu2")},
}  # fmt: skip


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("shape", [(2, 16, 16), (2, 5, 3, 16)])
def test_the_operation_of_a_module_is_detected_by_what_it_computes(name, shape):
    module, operation, is_centered = UNITS[name]
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if name == "SqueezeBertLayerNorm" and len(shape) > 3:
        return
    detected = detect_operation(fill_weights(module), features)
    assert (None if detected is None else detected.operation) is operation
    if is_centered is None or detected is None:
        return
    assert detected.is_centered is is_centered
    with torch.no_grad():
        measured = read_norm(module, detected, features)(features)
        expected = module(features)
    assert_close(measured, expected.numpy(), FLOAT32)  # Llama's norm computes in float32


@pytest.mark.parametrize("norm_class", [LlamaRMSNorm, GemmaRMSNorm, CohereLayerNorm])
@pytest.mark.parametrize("width", [256, 1024, 8192])
def test_a_wide_norm_in_half_precision_is_recognized(norm_class, width):
    for dtype in (torch.bfloat16, torch.float16):
        module = fill_weights(norm_class(width)).to(dtype)
        features = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(0)).to(dtype)
        detected = detect_operation(module, features)
        assert detected[:2] == (Operation.NORM, norm_class is CohereLayerNorm)
        assert detected.parameters is not None


def test_weights_that_change_after_a_norm_was_recognized_are_noticed():
    module = fill_weights(LlamaRMSNorm(16))
    features = torch.randn(2, 3, 16, dtype=torch.float64)
    before = read_norm(module, detect_operation(module, features), features).weight.clone()
    module.weight.data *= 2
    after = read_norm(module, detect_operation(module, features), features).weight
    torch.testing.assert_close(after, 2 * before)
