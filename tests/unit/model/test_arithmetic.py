"""Tolerances follow the arithmetic that is in force, not the dtype of the weights alone."""

import pytest
import torch

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.model.arithmetic import arithmetic_eps, float32_product_precision

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
    assert float32_product_precision(CUDA) == "tf32"
    assert arithmetic_eps(CUDA, torch.float32) == torch.finfo(torch.float16).eps
    assert arithmetic_eps(CUDA, torch.float64) == torch.finfo(torch.float64).eps
    assert arithmetic_eps(CUDA, torch.bfloat16) == torch.finfo(torch.bfloat16).eps


def test_plain_arithmetic_is_as_coarse_as_the_dtype():
    for device in (CPU, CUDA):
        assert float32_product_precision(device) == "ieee"
        for dtype in (torch.float32, torch.float64, torch.float16):
            assert arithmetic_eps(device, dtype) == torch.finfo(dtype).eps


def test_autocast_is_as_coarse_as_its_dtype():
    with torch.autocast("cpu", torch.bfloat16):
        assert arithmetic_eps(CPU, torch.float32) == torch.finfo(torch.bfloat16).eps
        assert arithmetic_eps(CUDA, torch.float32) == torch.finfo(torch.float32).eps
        assert arithmetic_eps(CPU, torch.float64) == torch.finfo(torch.float64).eps


@pytest.mark.parametrize("method", ["attcat", "gae", "attnlrp"])
def test_a_model_under_autocast_is_explained(method):
    model = tiny_bert(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        attribution = Explainer(model).explain(Tokens.from_ids([[5, 9, 12, 7]]), method, 1)
    assert len(attribution.scores) == 4
