"""The rule for the mask that Chefer et al. add to attention scores; it matters where scores are near 0."""

from __future__ import annotations

import pytest
import torch

from tokenlight.lrp.backward import backward_by_rules
from tokenlight.lrp.rule_sets import ATTNLRP_RULES, CHEFER, CHEFER_ORIG
from tokenlight.lrp.rules import Operation, RuleContext, RuleSet, pass_through
from tokenlight.lrp.tracing import trace_operations


def divide_by_hand(dividend, divisor):
    """sd(a, b) of the specification, one number at a time."""
    if divisor == 0:
        return 0.0
    return dividend / (divisor + 1e-9 if divisor + 1e-9 != 0 else 1e-9)


def mask_rule_by_hand(relevance, scores, *, renormalized):
    """The Add rule on (scores, mask) with a mask of zeros, example by example."""
    relevance_out = torch.zeros_like(relevance)
    for example in range(len(relevance)):
        flat_r = relevance[example].flatten()
        flat_a = scores[example].flatten()
        pairs = zip(flat_a.tolist(), flat_r.tolist(), strict=True)
        shares = torch.tensor(
            [value * divide_by_hand(relevance_share, value) for value, relevance_share in pairs],
            dtype=torch.float64,
        )
        if renormalized:
            shares = shares * divide_by_hand(float(flat_r.sum()), float(shares.sum()))
        relevance_out[example] = shares.reshape(relevance[example].shape)
    return relevance_out


def sample():
    """Two examples, two heads, three tokens; scores from ordinary down to nothing."""
    torch.manual_seed(3)
    scores = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    scores[0, 0, 0] = torch.tensor([1e-8, -3e-9, 0.0])
    scores[1, 1, 2, 0] = -1e-9  # the stabiliser's own pole
    return scores, torch.randn(2, 2, 3, 3, dtype=torch.float64)


@pytest.mark.parametrize(("rules", "renormalized"), [(CHEFER, True), (CHEFER_ORIG, False)])
def test_the_mask_is_an_add_whether_or_not_it_hides_a_token(rules, renormalized):
    scores, relevance = sample()
    case = RuleContext(torch.softmax(scores, dim=-1), (scores,), 2, -1)
    (relevance_out,) = rules.rules[Operation.SOFTMAX](relevance, case)
    expected = mask_rule_by_hand(relevance, scores, renormalized=renormalized)
    torch.testing.assert_close(relevance_out, expected, rtol=1e-12, atol=1e-15)
    assert (relevance_out - relevance).abs().max() > 1e-2  # it is not the identity
    if renormalized:
        torch.testing.assert_close(relevance_out.sum(dim=(1, 2, 3)), relevance.sum(dim=(1, 2, 3)))


@pytest.mark.parametrize("mask_value", [torch.finfo(torch.float64).min, -torch.inf])
@pytest.mark.parametrize("rules", [CHEFER, CHEFER_ORIG])
def test_a_masked_key_gets_no_relevance(rules, mask_value):
    scores, relevance = sample()
    scores[..., 2] = mask_value
    relevance[..., 2] = 0.0
    case = RuleContext(torch.softmax(scores, dim=-1), (scores,), 2, -1)
    (relevance_out,) = rules.rules[Operation.SOFTMAX](relevance, case)
    assert torch.isfinite(relevance_out).all()
    assert (relevance_out[..., 2] == 0).all()


def test_attnlrp_has_its_own_rule():
    assert ATTNLRP_RULES.rules[Operation.SOFTMAX] is not CHEFER.rules[Operation.SOFTMAX]


def propagate_through_clone(uses, rules):
    """Return a value read by several linear maps, the relevance that arrives at it, and that of the input."""
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(4, dtype=torch.float64)
    maps = [torch.nn.Linear(4, 1, bias=False, dtype=torch.float64) for _ in range(uses)]
    model = torch.nn.Sequential(norm, *maps).requires_grad_(False)
    inputs = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    with trace_operations(model, batch_size=1) as (backward_mode, _):
        value = norm(inputs)
        value.data[0, 0, 0] = 3e-9  # next to 0, where the division shows
        outputs = [linear(value) for linear in maps]
    with backward_by_rules(backward_mode, rules):
        arrived = torch.autograd.grad(outputs, value, [torch.ones_like(o) for o in outputs],
                                      retain_graph=True)[0]  # fmt: skip
        relevance_out = torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs])[
            0
        ]
    return value.detach(), arrived, relevance_out


def test_a_value_that_several_operations_read_is_divided_as_in_the_official_clone():
    value, arrived, relevance_out = propagate_through_clone(2, CHEFER)
    assert arrived[0, 0, 0] != 0
    expected = value * arrived / (value + 1e-9)  # norms pass relevance on
    torch.testing.assert_close(relevance_out, expected, rtol=1e-12, atol=0)
    assert abs(relevance_out[0, 0, 0]) < 0.8 * abs(arrived[0, 0, 0])


@pytest.mark.parametrize(("uses", "rules"), [(1, CHEFER), (2, ATTNLRP_RULES)])
def test_a_value_read_once_or_by_other_rules_is_not_divided(uses, rules):
    passing = {**rules.rules, Operation.NORM: pass_through}
    plain = RuleSet("plain", passing, divides_clones=rules.divides_clones)
    value, arrived, relevance_out = propagate_through_clone(uses, plain)
    torch.testing.assert_close(relevance_out, arrived, rtol=1e-12, atol=0)
    assert value[0, 0, 0] == 3e-9
