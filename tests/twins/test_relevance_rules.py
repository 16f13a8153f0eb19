"""Each relevance rule against a slow twin written straight from its formula, element by element."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenlight.relevance import attnlrp, rules
from tokenlight.relevance.attnlrp import EPSILON, epsilon_divide
from tokenlight.relevance.rules import RuleCase, safe_divide

SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**31 - 1)


def numbers(seed, *shapes):
    """Random arrays; about one number in eight is exactly zero."""
    generator = np.random.default_rng(seed)
    drawn = [generator.normal(size=shape) for shape in shapes]
    return [values * (generator.random(values.shape) > 0.125) for values in drawn]


def case(output, *operands, examples=1, detail=None, active=None):
    tensors = [None if o is None else torch.tensor(o) for o in operands]
    for number in range(len(tensors)) if active is None else active:
        if tensors[number] is not None:
            tensors[number].requires_grad_(True)
    activations = tuple(one is not None and one.requires_grad for one in tensors)
    return RuleCase(torch.tensor(output), tuple(tensors), examples, detail, activations)


def answer(rule, relevance, given_case):
    with torch.no_grad():
        found = rule(torch.tensor(relevance), given_case)
    return [None if part is None else part.numpy() for part in found]


def close(ours, twin):
    scale = max(1.0, float(np.abs(twin).max(initial=0.0)))
    np.testing.assert_allclose(ours, twin, rtol=1e-7, atol=1e-9 * scale)


def sd(a, b):
    """Safe division of the specification, on two numbers."""
    if b == 0:
        return 0.0
    return a / (b + 1e-9 if b + 1e-9 != 0 else 1e-9)


def ed(a, b):
    return a / (b + (-EPSILON if b < 0 else EPSILON))


# --- division -------------------------------------------------------------------------------------


@given(st.floats(-10, 10), st.one_of(st.floats(-1e-6, 1e-6), st.floats(-10, 10), st.just(-1e-9)))
def test_safe_division_is_the_specified_one(a, b):
    found = safe_divide(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert float(found) == sd(a, b)


@given(st.floats(-10, 10), st.floats(-10, 10))
def test_epsilon_division_pushes_the_denominator_away_from_zero(a, b):
    found = epsilon_divide(
        torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    )
    assert float(found) == ed(a, b)


# --- linear ---------------------------------------------------------------------------------------


def linear_case(seed, rows, ins, outs):
    features, weight, bias, relevance = numbers(seed, (rows, ins), (outs, ins), outs, (rows, outs))
    output = features @ weight.T + bias
    return features, weight, bias, relevance, case(output, features, weight, bias, active=[0])


def plus(value):
    return max(value, 0.0)


def minus(value):
    return min(value, 0.0)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_z_plus_shares_by_agreeing_signs(seed, rows, ins, outs):
    x, w, _, relevance, given_case = linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            z = sum(
                plus(x[r, i]) * plus(w[j, i]) + minus(x[r, i]) * minus(w[j, i]) for i in range(ins)
            )
            for i in range(ins):
                share = plus(x[r, i]) * plus(w[j, i]) + minus(x[r, i]) * minus(w[j, i])
                twin[r, i] += share * sd(relevance[r, j], z)
    close(answer(rules.z_plus, relevance, given_case)[0], twin)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_separate_z_plus_gives_each_pair_of_signs_the_whole(seed, rows, ins, outs):
    x, w, _, relevance, given_case = linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            for part in (plus, minus):
                z = sum(part(x[r, i]) * part(w[j, i]) for i in range(ins))
                for i in range(ins):
                    twin[r, i] += part(x[r, i]) * part(w[j, i]) * sd(relevance[r, j], z)
    close(answer(rules.z_plus_separate, relevance, given_case)[0], twin)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_epsilon_leaves_the_bias_its_part(seed, rows, ins, outs):
    x, w, b, relevance, given_case = linear_case(seed, rows, ins, outs)
    twin = np.zeros_like(x)
    for r in range(rows):
        for j in range(outs):
            y = sum(x[r, i] * w[j, i] for i in range(ins)) + b[j]
            for i in range(ins):
                twin[r, i] += x[r, i] * w[j, i] * ed(relevance[r, j], y)
    close(answer(attnlrp.epsilon, relevance, given_case)[0], twin)


def add_twin(a, b, relevance):
    """The Add rule over one example, flat lists."""
    first = [x * sd(r, x + y) for x, y, r in zip(a, b, relevance, strict=True)]
    second = [y * sd(r, x + y) for x, y, r in zip(a, b, relevance, strict=True)]
    sa, sb, whole = math.fsum(first), math.fsum(second), math.fsum(relevance)
    fa = sd(abs(sa), abs(sa) + abs(sb)) * whole
    fb = sd(abs(sb), abs(sa) + abs(sb)) * whole
    return [v * sd(fa, sa) for v in first], [v * sd(fb, sb) for v in second]


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_the_official_gpt2_rule_loses_the_bias_part_and_a_half(seed, examples, rows, ins, outs):
    x, w, b, relevance = numbers(
        seed, (examples * rows, ins), (outs, ins), outs, (examples * rows, outs)
    )
    given_case = case(x @ w.T + b, x, w, b, examples=examples, active=[0])
    twin = np.zeros_like(x)
    for e in range(examples):
        block = slice(e * rows, (e + 1) * rows)
        product = x[block] @ w.T
        bias = np.broadcast_to(b, product.shape)
        kept, _ = add_twin(product.ravel(), bias.ravel(), relevance[block].ravel())
        kept = np.array(kept).reshape(product.shape)
        for r in range(rows):
            for j in range(outs):
                for i in range(ins):
                    share = x[block][r, i] * w[j, i] * sd(kept[r, j], product[r, j])
                    twin[e * rows + r, i] += share / 2
    scale = max(1.0, float(np.abs(twin).max()))
    found = answer(rules.gpt2_official, relevance, given_case)[0]
    # Two divisions by what may be nearly zero stand one behind the other.
    np.testing.assert_allclose(found, twin, rtol=1e-5, atol=1e-6 * scale)


# --- sums -----------------------------------------------------------------------------------------


@given(SEEDS, SIZES, SIZES, SIZES)
def test_the_add_rule_conserves_within_each_example(seed, examples, rows, width):
    shape = (examples, rows, width)
    a, b, relevance = numbers(seed, shape, shape, shape)
    found = answer(rules.balanced_add, relevance, case(a + b, a, b, examples=examples))
    for e in range(examples):
        twins = add_twin(a[e].ravel(), b[e].ravel(), relevance[e].ravel())
        for ours, twin in zip(found, twins, strict=True):
            close(ours[e].ravel(), np.array(twin))


@given(SEEDS, SIZES, SIZES)
def test_the_add_rule_spreads_a_broadcast_term(seed, rows, width):
    a, b, relevance = numbers(seed, (1, rows, width), (1, 1, width), (1, rows, width))
    spread = np.broadcast_to(b, a.shape)
    ours = answer(rules.balanced_add, relevance, case(a + b, a, b))
    twins = add_twin(a.ravel(), spread.ravel(), relevance.ravel())
    for found, twin in zip(ours, twins, strict=True):
        close(found.ravel(), np.array(twin))


@given(SEEDS, SIZES, SIZES)
def test_plain_sums_share_in_proportion(seed, rows, width):
    a, b, relevance = numbers(seed, (rows, width), (rows, width), (rows, width))
    for rule, divide in (
        (rules.proportional_add, sd),
        (partial(rules.proportional_add, divide=epsilon_divide), ed),
    ):
        ours = answer(rule, relevance, case(a + b, a, b))
        for found, term in zip(ours, (a, b), strict=True):
            twin = np.vectorize(lambda t, r, s, d=divide: t * d(r, s))(term, relevance, a + b)
            close(found, twin)


@given(SEEDS, SIZES, SIZES, SIZES, st.booleans(), st.booleans())
def test_pooling_shares_in_proportion(seed, batch, tokens, width, kept, is_mean):
    x, relevance = numbers(
        seed, (batch, tokens, width), (batch, 1, width) if kept else (batch, width)
    )
    pooled = (x.mean if is_mean else x.sum)(axis=1, keepdims=kept)
    for rule, divide in (
        (rules.proportional_total, sd),
        (partial(rules.proportional_total, divide=epsilon_divide), ed),
    ):
        given_case = case(pooled, x, detail=([] if kept else [1], tokens if is_mean else 1))
        found = answer(rule, relevance, given_case)[0]
        flat, out = relevance.reshape(batch, width), pooled.reshape(batch, width)
        for b in range(batch):
            for t in range(tokens):
                for k in range(width):
                    part = x[b, t, k] / (tokens if is_mean else 1)
                    close(found[b, t, k], np.array(part * divide(flat[b, k], out[b, k])))


# --- products -------------------------------------------------------------------------------------


def product_twin(x, y, relevance, divide):
    """What each factor of one matrix product contributed, in full."""
    z = x @ y
    first, second = np.zeros_like(x), np.zeros_like(y)
    for j in range(x.shape[0]):
        for p in range(y.shape[1]):
            for i in range(x.shape[1]):
                share = x[j, i] * y[i, p] * divide(relevance[j, p], z[j, p])
                first[j, i] += share
                second[i, p] += share
    return first, second


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_products_halve(seed, heads, rows, inner, columns):
    x, y, relevance = numbers(
        seed, (heads, rows, inner), (heads, inner, columns), (heads, rows, columns)
    )
    given_case = case(x @ y, x, y)
    for rule, divide in (
        (rules.halved_product, sd),
        (partial(rules.halved_product, divide=epsilon_divide), ed),
    ):
        found = answer(rule, relevance, given_case)
        for h in range(heads):
            for ours, twin in zip(
                found, product_twin(x[h], y[h], relevance[h], divide), strict=True
            ):
                close(ours[h], twin / 2)


@given(SEEDS, SIZES, SIZES, SIZES, st.sampled_from([0, 1]))
def test_a_constant_factor_takes_nothing(seed, rows, inner, columns, active):
    x, y, relevance = numbers(seed, (rows, inner), (inner, columns), (rows, columns))
    found = answer(rules.halved_product, relevance, case(x @ y, x, y, active=[active]))
    close(found[active], product_twin(x, y, relevance, sd)[active])
    assert found[1 - active] is None


@given(SEEDS, SIZES, SIZES, SIZES, SIZES)
def test_an_einsum_is_a_product(seed, batch, rows, inner, columns):
    x, y = numbers(seed, (batch, rows, inner), (batch, columns, inner))
    (relevance,) = numbers(seed + 1, (batch, rows, columns))
    output = np.einsum("bij,bkj->bik", x, y)
    given_case = case(output, x, y, detail=("bij", "bkj", "bik"))
    for rule, divide in (
        (rules.halved_product, sd),
        (partial(rules.halved_product, divide=epsilon_divide), ed),
    ):
        found = answer(rule, relevance, given_case)
        for b in range(batch):
            first, second = product_twin(x[b], y[b].T, relevance[b], divide)
            close(found[0][b], first / 2)
            close(found[1][b], second.T / 2)


@given(SEEDS, SIZES, SIZES, SIZES)
def test_constant_attention_gives_all_to_the_values(seed, rows, inner, columns):
    x, y, relevance = numbers(seed, (rows, inner), (inner, columns), (rows, columns))
    twin = product_twin(x, y, relevance, ed)[1]
    none, values = answer(attnlrp.second_only_product, relevance, case(x @ y, x, y))
    assert none is None
    close(values, twin)
    written = case(x @ y, x, y, detail=("ij", "jp", "ip"))
    none, values = answer(attnlrp.second_only_product, relevance, written)
    assert none is None
    close(values, twin)


@given(SEEDS, SIZES, SIZES)
def test_a_gate_halves(seed, rows, width):
    a, b, relevance = numbers(seed, (rows, width), (rows, width), (rows, width))
    for part in answer(rules.halved_gate, relevance, case(a * b, a, b)):
        close(part, relevance / 2)


# --- elements -------------------------------------------------------------------------------------


@given(SEEDS, SIZES, SIZES)
def test_what_passes_relevance_passes_all_of_it(seed, rows, width):
    x, relevance = numbers(seed, (rows, width), (rows, width))
    np.testing.assert_array_equal(answer(rules.passed, relevance, case(x, x))[0], relevance)


@given(SEEDS, SIZES, SIZES)
def test_a_constant_term_keeps_what_it_brought(seed, rows, width):
    x, constant, relevance = numbers(seed, (rows, width), width, (rows, width))
    y = x + constant
    found = answer(attnlrp.epsilon_shifted, relevance, case(y, x, constant, active=[0]))[0]
    twin = np.vectorize(lambda term, r, s: term * ed(r, s))(x, relevance, y)
    close(found, np.where(constant == 0, relevance, twin))
    number = answer(attnlrp.epsilon_shifted, relevance, case(x + 1, x, None, active=[0]))[0]
    close(number, np.vectorize(lambda term, r: term * ed(r, term + 1))(x, relevance))


@given(SEEDS, SIZES, SIZES)
def test_a_zero_factor_lets_nothing_through(seed, rows, width):
    x, factor, relevance = numbers(seed, (rows, width), (rows, width), (rows, width))
    found = answer(rules.scaled, relevance, case(x * factor, x, factor, active=[0]))[0]
    np.testing.assert_array_equal(found, np.where(factor == 0, 0, relevance))


@given(SEEDS, SIZES, SIZES, st.booleans())
def test_the_softmax_is_expanded_to_first_order(seed, rows, width, masks):
    x, relevance = numbers(seed, (rows, width), (rows, width))
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
    close(answer(attnlrp.softmax_taylor, relevance, case(s, x, detail=-1))[0], twin)


@given(SEEDS, SIZES, st.integers(2, 5), st.booleans())
def test_a_norm_with_constant_deviation_is_linear(seed, rows, width, weighted):
    x, relevance, gamma, beta = numbers(seed, (rows, width), (rows, width), width, width)
    x = x + np.arange(width)  # a row of equal numbers has no deviation
    gamma = gamma if weighted else np.ones(width)
    deviation = np.sqrt(x.var(axis=1) + 1e-5)
    output = gamma * (x - x.mean(axis=1, keepdims=True)) / deviation[:, None] + beta
    twin = np.zeros_like(x)
    for r in range(rows):
        for i in range(width):
            for j in range(width):
                slope = gamma[j] / deviation[r] * ((i == j) - 1 / width)
                twin[r, i] += x[r, i] * slope * ed(relevance[r, j], output[r, j])
    given_case = case(output, x, gamma if weighted else None, beta, detail=(True, 1e-5), active=[0])
    close(answer(attnlrp.norm_linear, relevance, given_case)[0], twin)


@given(SEEDS, SIZES, SIZES)
def test_a_norm_without_a_mean_passes_relevance(seed, rows, width):
    x, relevance = numbers(seed, (rows, width), (rows, width))
    given_case = case(x, x, None, None, detail=(False, 0.0))
    found = answer(attnlrp.norm_linear, relevance, given_case)[0]
    np.testing.assert_array_equal(found, relevance)
