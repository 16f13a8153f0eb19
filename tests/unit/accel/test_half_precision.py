"""Products of half-precision matrices with float32 sums: how much of a float32 matrix a split keeps."""

from __future__ import annotations

import pytest
import torch

from tokenlight.accel import half_precision
from tokenlight.accel.half_precision import (
    multiply_half_precision,
    multiply_split_matrix,
    split_into_half_precision,
)
from tokenlight.lrp import rules
from tokenlight.lrp.rules import RuleContext, z_plus

# Two roundings to so many bits leave this share of a number; sums in float32 add rounding of their own.
SPLIT_ERRORS = {torch.bfloat16: 2.0**-16, torch.float16: 2.0**-20}
NUM_ROWS, NUM_IN, NUM_OUT = 5, 48, 33


def draw_matrix(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", SPLIT_ERRORS)
def test_a_split_matrix_multiplies_like_the_whole_one(dtype):
    wide = draw_matrix(NUM_ROWS, NUM_OUT)
    weight = draw_matrix(NUM_OUT, NUM_IN, seed=1, dtype=dtype)
    product = multiply_split_matrix(split_into_half_precision(wide, dtype), weight)
    assert product.dtype == torch.float32
    expected = wide.double() @ weight.double()
    bound = SPLIT_ERRORS[dtype] * (wide.abs().double() @ weight.abs().double())
    assert ((product.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
@pytest.mark.parametrize("dtype", SPLIT_ERRORS)
def test_rows_of_any_size_neither_overflow_nor_vanish(dtype, scale):
    wide = draw_matrix(NUM_ROWS, NUM_OUT) * scale
    wide[0] = 0
    weight = draw_matrix(NUM_OUT, NUM_IN, seed=1, dtype=dtype)
    product = multiply_split_matrix(split_into_half_precision(wide, dtype), weight)
    expected = wide.double() @ weight.double()
    bound = SPLIT_ERRORS[dtype] * (wide.abs().double() @ weight.abs().double())
    assert ((product.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", SPLIT_ERRORS)
def test_magnitudes_in_half_precision_multiply_exactly(dtype):
    first = draw_matrix(NUM_ROWS, NUM_IN, dtype=dtype).abs()
    second = draw_matrix(NUM_IN, NUM_OUT, seed=1, dtype=dtype).abs()
    expected = first.double() @ second.double()
    # Only the sums round, once per term.
    torch.testing.assert_close(
        multiply_half_precision(first, second).double(), expected, rtol=NUM_IN * 2.0**-24, atol=0
    )


def test_a_processor_multiplies_in_float32():
    matrix = draw_matrix(3, 3, dtype=torch.bfloat16)
    assert not half_precision.supports_half_precision(matrix, matrix)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", SPLIT_ERRORS)
def test_the_z_plus_rule_gives_the_same_relevance_with_half_products(dtype, bias, monkeypatch):
    features = draw_matrix(2, NUM_ROWS, NUM_IN, dtype=dtype)
    weight = draw_matrix(NUM_OUT, NUM_IN, seed=1, dtype=dtype)
    shift = draw_matrix(NUM_OUT, seed=2, dtype=dtype) if bias else None
    output = torch.nn.functional.linear(features, weight, shift)
    relevance = draw_matrix(2, NUM_ROWS, NUM_OUT, seed=3) * 1e-6
    case = RuleContext(output, (features, weight, shift), batch_size=2)
    (expected,) = z_plus(relevance, case)
    monkeypatch.setattr(rules, "supports_half_precision", lambda *_: True)
    (actual,) = z_plus(relevance, case)
    assert actual.dtype == expected.dtype == torch.float32
    assert actual.shape == features.shape
    # Relevance of both signs may cancel, so the bound is that of its magnitude.
    (magnitude,) = z_plus(relevance.abs(), case)
    bound = 2 * SPLIT_ERRORS[dtype] * magnitude + NUM_IN * 2.0**-24 * magnitude
    # Where hardly any signs agree, float32 sums of both kinds round differently.
    is_close = (actual - expected).abs() <= bound + 1e-5 * magnitude.amax()
    assert is_close.all()
