"""Each relevance rule against a slow twin written straight from its formula, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenlight.lrp import attnlrp, rules
from tokenlight.lrp.attnlrp import EPSILON, epsilon_divide
from tokenlight.lrp.rules import RuleContext, safe_divide

SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**31 - 1)


def draw_arrays(seed: int, *shapes: Any) -> list[np.ndarray]:
    """Draw random arrays; about one number in eight is exactly zero."""
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(size=shape) for shape in shapes]
    return [values * (generator.random(values.shape) > 0.125) for values in arrays]


def make_case(
    output: np.ndarray,
    *operands: np.ndarray | None,
    examples: int = 1,
    detail: Any = None,
    active: Iterable[int] | None = None,
) -> RuleContext:
    """Return the inputs of a rule; ``active`` operands, by default all, are activations."""
    tensors = [None if operand is None else torch.tensor(operand) for operand in operands]
    for number in range(len(tensors)) if active is None else active:
        if tensors[number] is not None:
            tensors[number].requires_grad_(True)
    activations = tuple(tensor is not None and tensor.requires_grad for tensor in tensors)
    return RuleContext(torch.tensor(output), tuple(tensors), examples, detail, activations)


def apply_rule(
    rule: Callable[..., Any], relevance: np.ndarray, rule_case: RuleContext
) -> list[np.ndarray | None]:
    """Return the relevance that a rule gives each operand."""
    with torch.no_grad():
        parts = rule(torch.tensor(relevance), rule_case)
    return [None if part is None else part.numpy() for part in parts]


def assert_relevance_close(actual: Any, twin: np.ndarray) -> None:
    """Assert that relevance agrees within 1e-9 of the largest, or of one."""
    scale = max(1.0, float(np.abs(twin).max(initial=0.0)))
    np.testing.assert_allclose(actual, twin, rtol=1e-7, atol=1e-9 * scale)


def divide_safely(dividend: float, divisor: float) -> float:
    """Divide two numbers as the specification defines safe division."""
    if divisor == 0:
        return 0.0
    return dividend / (divisor + 1e-9 if divisor + 1e-9 != 0 else 1e-9)


def divide_by_epsilon(dividend: float, divisor: float) -> float:
    """Divide with the denominator pushed away from zero."""
    return dividend / (divisor + (-EPSILON if divisor < 0 else EPSILON))


# --- division -------------------------------------------------------------------------------------


@given(st.floats(-10, 10), st.one_of(st.floats(-1e-6, 1e-6), st.floats(-10, 10), st.just(-1e-9)))
def test_safe_division_is_the_specified_one(dividend, divisor):
    quotient = safe_divide(
        torch.tensor(dividend, dtype=torch.float64), torch.tensor(divisor, dtype=torch.float64)
    )
    assert float(quotient) == divide_safely(dividend, divisor)


@given(st.floats(-10, 10), st.floats(-10, 10))
def test_epsilon_division_pushes_the_denominator_away_from_zero(dividend, divisor):
    quotient = epsilon_divide(
        torch.tensor(dividend, dtype=torch.float64), torch.tensor(divisor, dtype=torch.float64)
    )
    assert float(quotient) == divide_by_epsilon(dividend, divisor)


# --- linear ---------------------------------------------------------------------------------------


def make_linear_case(seed: int, rows: int, ins: int, outs: int) -> tuple[Any, ...]:
    """Return features, weight, bias, relevance and rule case of a linear map."""
    features, weight, bias, relevance = draw_arrays(
        seed, (rows, ins), (outs, ins), outs, (rows, outs)
    )
    output = features @ weight.T + bias
    return features, weight, bias, relevance, make_case(output, features, weight, bias, active=[0])


def clip_below_zero(value: float) -> float:
    """Return the value, or 0 for a negative one."""
    return max(value, 0.0)


def clip_above_zero(value: float) -> float:
    """Return the value, or 0 for a positive one."""
    return min(value, 0.0)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_z_plus_distributes_relevance_over_products_of_equal_signs(seed, rows, ins, outs):
    x, w, _, relevance, rule_case = make_linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            z = sum(
                clip_below_zero(x[r, i]) * clip_below_zero(w[j, i])
                + clip_above_zero(x[r, i]) * clip_above_zero(w[j, i])
                for i in range(ins)
            )
            for i in range(ins):
                share = clip_below_zero(x[r, i]) * clip_below_zero(w[j, i]) + clip_above_zero(
                    x[r, i]
                ) * clip_above_zero(w[j, i])
                twin[r, i] += share * divide_safely(relevance[r, j], z)
    assert_relevance_close(apply_rule(rules.z_plus, relevance, rule_case)[0], twin)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_separate_z_plus_gives_each_pair_of_signs_the_whole(seed, rows, ins, outs):
    x, w, _, relevance, rule_case = make_linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            for part in (clip_below_zero, clip_above_zero):
                z = sum(part(x[r, i]) * part(w[j, i]) for i in range(ins))
                for i in range(ins):
                    twin[r, i] += part(x[r, i]) * part(w[j, i]) * divide_safely(relevance[r, j], z)
    assert_relevance_close(apply_rule(rules.z_plus_by_sign, relevance, rule_case)[0], twin)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_the_epsilon_rule_leaves_the_bias_its_share(seed, rows, ins, outs):
    x, w, b, relevance, rule_case = make_linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            y = sum(x[r, i] * w[j, i] for i in range(ins)) + b[j]
            for i in range(ins):
                twin[r, i] += x[r, i] * w[j, i] * divide_by_epsilon(relevance[r, j], y)
    assert_relevance_close(apply_rule(attnlrp.epsilon_linear, relevance, rule_case)[0], twin)


def split_sum_relevance(
    first_terms: Sequence[float], second_terms: Sequence[float], relevance: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the relevance of both terms by the Add rule, over one example as flat lists."""
    first = [
        x * divide_safely(r, x + y)
        for x, y, r in zip(first_terms, second_terms, relevance, strict=True)
    ]
    second = [
        y * divide_safely(r, x + y)
        for x, y, r in zip(first_terms, second_terms, relevance, strict=True)
    ]
    first_sum = math.fsum(first)
    second_sum = math.fsum(second)
    total = math.fsum(relevance)
    first_share = divide_safely(abs(first_sum), abs(first_sum) + abs(second_sum)) * total
    second_share = divide_safely(abs(second_sum), abs(first_sum) + abs(second_sum)) * total
    first_twin = [v * divide_safely(first_share, first_sum) for v in first]
    second_twin = [v * divide_safely(second_share, second_sum) for v in second]
    return first_twin, second_twin


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_the_official_gpt2_rule_loses_the_bias_part_and_a_half(seed, examples, rows, ins, outs):
    x, w, b, relevance = draw_arrays(
        seed, (examples * rows, ins), (outs, ins), outs, (examples * rows, outs)
    )
    rule_case = make_case(x @ w.T + b, x, w, b, examples=examples, active=[0])
    twin = np.zeros_like(x)
    for e in range(examples):
        block = slice(e * rows, (e + 1) * rows)
        product = x[block] @ w.T
        bias = np.broadcast_to(b, product.shape)
        product_relevance, _ = split_sum_relevance(
            product.ravel(), bias.ravel(), relevance[block].ravel()
        )
        product_relevance = np.array(product_relevance).reshape(product.shape)
        for r in range(rows):
            for j in range(outs):
                for i in range(ins):
                    share = (
                        x[block][r, i]
                        * w[j, i]
                        * divide_safely(product_relevance[r, j], product[r, j])
                    )
                    twin[e * rows + r, i] += share / 2
    scale = max(1.0, float(np.abs(twin).max()))
    actual = apply_rule(rules.mask_lrp_conv1d, relevance, rule_case)[0]
    # Two divisions by what may be nearly zero stand one behind the other.
    np.testing.assert_allclose(actual, twin, rtol=1e-5, atol=1e-6 * scale)


# --- sums -----------------------------------------------------------------------------------------


@given(SEEDS, SIZES, SIZES, SIZES)
def test_the_add_rule_conserves_within_each_example(seed, examples, rows, width):
    shape = (examples, rows, width)
    first, second, relevance = draw_arrays(seed, shape, shape, shape)
    parts = apply_rule(
        rules.balanced_add, relevance, make_case(first + second, first, second, examples=examples)
    )
    for e in range(examples):
        twins = split_sum_relevance(first[e].ravel(), second[e].ravel(), relevance[e].ravel())
        for actual, twin in zip(parts, twins, strict=True):
            assert_relevance_close(actual[e].ravel(), np.array(twin))


@given(SEEDS, SIZES, SIZES)
def test_the_add_rule_spreads_a_broadcast_term(seed, rows, width):
    first, second, relevance = draw_arrays(seed, (1, rows, width), (1, 1, width), (1, rows, width))
    spread = np.broadcast_to(second, first.shape)
    parts = apply_rule(rules.balanced_add, relevance, make_case(first + second, first, second))
    twins = split_sum_relevance(first.ravel(), spread.ravel(), relevance.ravel())
    for part, twin in zip(parts, twins, strict=True):
        assert_relevance_close(part.ravel(), np.array(twin))


@given(SEEDS, SIZES, SIZES)
def test_plain_sums_share_in_proportion(seed, rows, width):
    first, second, relevance = draw_arrays(seed, (rows, width), (rows, width), (rows, width))
    for rule, divide in (
        (rules.proportional_add, divide_safely),
        (partial(rules.proportional_add, divide=epsilon_divide), divide_by_epsilon),
    ):
        parts = apply_rule(rule, relevance, make_case(first + second, first, second))
        for part, term in zip(parts, (first, second), strict=True):
            twin = np.vectorize(lambda t, r, s, d=divide: t * d(r, s))(
                term, relevance, first + second
            )
            assert_relevance_close(part, twin)


@given(SEEDS, SIZES, SIZES, SIZES, st.booleans(), st.booleans())
def test_pooling_shares_in_proportion(seed, batch, tokens, width, keeps_axis, is_mean):
    x, relevance = draw_arrays(
        seed, (batch, tokens, width), (batch, 1, width) if keeps_axis else (batch, width)
    )
    pooled = (x.mean if is_mean else x.sum)(axis=1, keepdims=keeps_axis)
    for rule, divide in (
        (rules.proportional_sum, divide_safely),
        (partial(rules.proportional_sum, divide=epsilon_divide), divide_by_epsilon),
    ):
        rule_case = make_case(
            pooled, x, detail=([] if keeps_axis else [1], tokens if is_mean else 1)
        )
        actual = apply_rule(rule, relevance, rule_case)[0]
        flat = relevance.reshape(batch, width)
        out = pooled.reshape(batch, width)
        for b in range(batch):
            for t in range(tokens):
                for k in range(width):
                    part = x[b, t, k] / (tokens if is_mean else 1)
                    assert_relevance_close(
                        actual[b, t, k], np.array(part * divide(flat[b, k], out[b, k]))
                    )


# --- products -------------------------------------------------------------------------------------


def split_product_relevance(
    x: np.ndarray, y: np.ndarray, relevance: np.ndarray, divide: Callable[[float, float], float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each factor of one matrix product contributed, in full."""
    z = x @ y
    first = np.zeros_like(x)
    second = np.zeros_like(y)
    for j in range(x.shape[0]):
        for p in range(y.shape[1]):
            for i in range(x.shape[1]):
                share = x[j, i] * y[i, p] * divide(relevance[j, p], z[j, p])
                first[j, i] += share
                second[i, p] += share
    return first, second


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_a_product_halves_relevance_between_its_factors(seed, heads, rows, inner, columns):
    x, y, relevance = draw_arrays(
        seed, (heads, rows, inner), (heads, inner, columns), (heads, rows, columns)
    )
    rule_case = make_case(x @ y, x, y)
    for rule, divide in (
        (rules.halved_product, divide_safely),
        (partial(rules.halved_product, divide=epsilon_divide), divide_by_epsilon),
    ):
        parts = apply_rule(rule, relevance, rule_case)
        for h in range(heads):
            for actual, twin in zip(
                parts, split_product_relevance(x[h], y[h], relevance[h], divide), strict=True
            ):
                assert_relevance_close(actual[h], twin / 2)


@given(SEEDS, SIZES, SIZES, SIZES, st.sampled_from([0, 1]))
def test_a_constant_factor_receives_no_relevance(seed, rows, inner, columns, active):
    x, y, relevance = draw_arrays(seed, (rows, inner), (inner, columns), (rows, columns))
    parts = apply_rule(rules.halved_product, relevance, make_case(x @ y, x, y, active=[active]))
    assert_relevance_close(
        parts[active], split_product_relevance(x, y, relevance, divide_safely)[active]
    )
    assert parts[1 - active] is None


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_an_einsum_is_a_product(seed, batch, rows, inner, columns):
    x, y = draw_arrays(seed, (batch, rows, inner), (batch, columns, inner))
    (relevance,) = draw_arrays(seed + 1, (batch, rows, columns))
    output = np.einsum("bij,bkj->bik", x, y)
    rule_case = make_case(output, x, y, detail=("bij", "bkj", "bik"))
    for rule, divide in (
        (rules.halved_product, divide_safely),
        (partial(rules.halved_product, divide=epsilon_divide), divide_by_epsilon),
    ):
        parts = apply_rule(rule, relevance, rule_case)
        for b in range(batch):
            first, second = split_product_relevance(x[b], y[b].T, relevance[b], divide)
            assert_relevance_close(parts[0][b], first / 2)
            assert_relevance_close(parts[1][b], second.T / 2)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_constant_attention_gives_all_to_the_values(seed, rows, inner, columns):
    x, y, relevance = draw_arrays(seed, (rows, inner), (inner, columns), (rows, columns))
    twin = split_product_relevance(x, y, relevance, divide_by_epsilon)[1]
    maps_relevance, values = apply_rule(
        attnlrp.values_only_product, relevance, make_case(x @ y, x, y)
    )
    assert maps_relevance is None
    assert_relevance_close(values, twin)
    as_einsum = make_case(x @ y, x, y, detail=("ij", "jp", "ip"))
    maps_relevance, values = apply_rule(attnlrp.values_only_product, relevance, as_einsum)
    assert maps_relevance is None
    assert_relevance_close(values, twin)


@given(SEEDS, SIZES, SIZES)
def test_a_gate_halves_relevance_between_its_factors(seed, rows, width):
    first, second, relevance = draw_arrays(seed, (rows, width), (rows, width), (rows, width))
    for part in apply_rule(rules.halved_gate, relevance, make_case(first * second, first, second)):
        assert_relevance_close(part, relevance / 2)


# --- elements -------------------------------------------------------------------------------------


@given(SEEDS, SIZES, SIZES)
def test_a_rule_that_passes_relevance_passes_all_of_it(seed, rows, width):
    x, relevance = draw_arrays(seed, (rows, width), (rows, width))
    np.testing.assert_array_equal(
        apply_rule(rules.pass_through, relevance, make_case(x, x))[0], relevance
    )


@given(SEEDS, SIZES, SIZES)
def test_a_constant_term_keeps_its_share_of_the_relevance(seed, rows, width):
    x, constant, relevance = draw_arrays(seed, (rows, width), width, (rows, width))
    y = x + constant
    actual = apply_rule(
        attnlrp.epsilon_add_constant, relevance, make_case(y, x, constant, active=[0])
    )[0]
    twin = np.vectorize(lambda term, r, s: term * divide_by_epsilon(r, s))(x, relevance, y)
    assert_relevance_close(actual, np.where(constant == 0, relevance, twin))
    with_number = apply_rule(
        attnlrp.epsilon_add_constant, relevance, make_case(x + 1, x, None, active=[0])
    )[0]
    assert_relevance_close(
        with_number,
        np.vectorize(lambda term, r: term * divide_by_epsilon(r, term + 1))(x, relevance),
    )


@given(SEEDS, SIZES, SIZES)
def test_a_zero_factor_passes_no_relevance(seed, rows, width):
    x, factor, relevance = draw_arrays(seed, (rows, width), (rows, width), (rows, width))
    actual = apply_rule(
        rules.pass_through_scale, relevance, make_case(x * factor, x, factor, active=[0])
    )[0]
    np.testing.assert_array_equal(actual, np.where(factor == 0, 0, relevance))


@given(SEEDS, SIZES, SIZES, st.booleans())
def test_the_softmax_is_expanded_to_first_order(seed, rows, width, masks):
    x, relevance = draw_arrays(seed, (rows, width), (rows, width))
    if masks:
        x[:, 0] = np.finfo(float).min
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    s = powers / powers.sum(axis=1, keepdims=True)
    twin = np.zeros_like(x)
    for r in range(rows):
        for i in range(width):
            if s[r, i] > 0:
                twin[r, i] = x[r, i] * (relevance[r, i] - s[r, i] * math.fsum(relevance[r]))
    if masks and width == 1:
        return  # a row with nothing but a masked key
    assert_relevance_close(
        apply_rule(attnlrp.softmax_taylor, relevance, make_case(s, x, detail=-1))[0], twin
    )


@given(SEEDS, SIZES, st.integers(2, 5), st.booleans())
def test_a_norm_with_constant_deviation_is_linear(seed, rows, width, weighted):
    x, relevance, gamma, beta = draw_arrays(seed, (rows, width), (rows, width), width, width)
    x = x + np.arange(width)  # a row of equal numbers has no deviation
    gamma = gamma if weighted else np.ones(width)
    deviation = np.sqrt(x.var(axis=1) + 1e-5)
    output = gamma * (x - x.mean(axis=1, keepdims=True)) / deviation[:, None] + beta
    twin = np.zeros_like(x)
    for r in range(rows):
        for i in range(width):
            for j in range(width):
                slope = gamma[j] / deviation[r] * ((i == j) - 1 / width)
                twin[r, i] += x[r, i] * slope * divide_by_epsilon(relevance[r, j], output[r, j])
    rule_case = make_case(
        output, x, gamma if weighted else None, beta, detail=(True, 1e-5), active=[0]
    )
    assert_relevance_close(apply_rule(attnlrp.norm_linear, relevance, rule_case)[0], twin)


@given(SEEDS, SIZES, SIZES)
def test_a_norm_without_a_mean_passes_relevance(seed, rows, width):
    x, relevance = draw_arrays(seed, (rows, width), (rows, width))
    rule_case = make_case(x, x, None, None, detail=(False, 0.0))
    actual = apply_rule(attnlrp.norm_linear, relevance, rule_case)[0]
    np.testing.assert_array_equal(actual, relevance)
