"""Tolerances follow the arithmetic that is in force, not the dtype of the weights alone."""

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.accel.precision import compute_rounding_eps, read_precision_settings
from tokenlight.lrp.module_operations import detect_operation
from tokenlight.lrp.rules import Operation

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture(params=["set_float32_matmul_precision", "fp32_precision"])
def coarse_products(request):
    """TF32 products on a GPU, turned on by the old or by the new name in torch."""
    if request.param == "fp32_precision":
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        yield
        torch.backends.cuda.matmul.fp32_precision = "none"
    else:
        torch.set_float32_matmul_precision("high")
        yield
        torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("coarse_products")
def test_products_in_tf32_are_as_coarse_as_float16():
    assert read_precision_settings(CUDA).product_precision == "tf32"
    assert compute_rounding_eps(CUDA, torch.float32) == torch.finfo(torch.float16).eps
    assert compute_rounding_eps(CUDA, torch.float64) == torch.finfo(torch.float64).eps
    assert compute_rounding_eps(CUDA, torch.bfloat16) == torch.finfo(torch.bfloat16).eps


def test_plain_arithmetic_is_as_coarse_as_the_dtype():
    for device in (CPU, CUDA):
        assert read_precision_settings(device).product_precision == "ieee"
        for dtype in (torch.float32, torch.float64, torch.float16):
            assert compute_rounding_eps(device, dtype) == torch.finfo(dtype).eps


def test_autocast_is_as_coarse_as_its_dtype():
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_rounding_eps(CPU, torch.float32) == torch.finfo(torch.bfloat16).eps
        assert compute_rounding_eps(CUDA, torch.float32) == torch.finfo(torch.float32).eps
        assert compute_rounding_eps(CPU, torch.float64) == torch.finfo(torch.float64).eps


@pytest.mark.parametrize("method", ["attcat", "gae", "attnlrp"])
def test_a_model_under_autocast_is_explained(method):
    model = tiny_bert(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        attribution = Explainer(model).explain(Tokens.from_ids([[5, 9, 12, 7]]), method, 1)
    assert len(attribution.scores) == 4


def test_deterministic_kernels_are_another_arithmetic():
    plain = read_precision_settings(CPU)
    torch.use_deterministic_algorithms(True)
    try:
        assert read_precision_settings(CPU) != plain
    finally:
        torch.use_deterministic_algorithms(False)
    assert read_precision_settings(CPU) == plain


class HandWrittenLinear(torch.nn.Module):
    """A linear layer whose product is written out, so that it is known only by what it computes."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
        )

    def forward(self, inputs):
        return inputs @ self.weight


class NearlyLinear(torch.nn.Module):
    """An activation that bends by less than bfloat16 rounds."""

    def forward(self, inputs):
        return inputs + 0.002 * inputs.square()


def test_a_product_is_known_by_what_it_computes_however_it_is_rounded():
    module = HandWrittenLinear()
    features = torch.ones(1, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        in_autocast = detect_operation(module, features)
    in_float32 = detect_operation(module, features)
    assert in_autocast.operation == in_float32.operation == Operation.LINEAR_MAP


def test_what_looks_linear_in_coarse_arithmetic_is_looked_at_again_in_a_finer_one():
    module = NearlyLinear()
    features = torch.ones(1, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert detect_operation(module, features).operation == Operation.LINEAR_MAP
    assert detect_operation(module, features).operation == Operation.ACTIVATION
