"""The mask that Chefer et al. add to attention scores: a rule of its own, seen where scores are near 0."""

from __future__ import annotations

import pytest
import torch

from tokenlight.relevance.fork import carrying
from tokenlight.relevance.rules import Operation, RuleCase, RuleSet, passed
from tokenlight.relevance.rulesets import ATTNLRP_RULES, CHEFER, CHEFER_ORIG
from tokenlight.relevance.tracing import forked


def divided(a, b):
    """sd(a, b) of the specification, one number at a time."""
    if b == 0:
        return 0.0
    return a / (b + 1e-9 if b + 1e-9 != 0 else 1e-9)


def twin(relevance, scores, *, renormalised):
    """The Add rule on (scores, mask) with a mask of zeros, example by example."""
    found = torch.zeros_like(relevance)
    for example in range(len(relevance)):
        flat_r, flat_a = relevance[example].flatten(), scores[example].flatten()
        pairs = zip(flat_a.tolist(), flat_r.tolist(), strict=True)
        kept = torch.tensor([a * divided(r, a) for a, r in pairs], dtype=torch.float64)
        if renormalised:
            kept = kept * divided(float(flat_r.sum()), float(kept.sum()))
        found[example] = kept.reshape(relevance[example].shape)
    return found


def sample():
    """Two examples, two heads, three tokens; scores from ordinary down to nothing."""
    torch.manual_seed(3)
    scores = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    scores[0, 0, 0] = torch.tensor([1e-8, -3e-9, 0.0])
    scores[1, 1, 2, 0] = -1e-9  # the stabiliser's own pole
    return scores, torch.randn(2, 2, 3, 3, dtype=torch.float64)


@pytest.mark.parametrize(("rules", "renormalised"), [(CHEFER, True), (CHEFER_ORIG, False)])
def test_the_mask_is_an_add_whether_or_not_it_hides_a_token(rules, renormalised):
    scores, relevance = sample()
    case = RuleCase(torch.softmax(scores, dim=-1), (scores,), 2, -1)
    (found,) = rules.rules[Operation.SOFTMAX](relevance, case)
    wanted = twin(relevance, scores, renormalised=renormalised)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)
    assert (found - relevance).abs().max() > 1e-2  # it is not the identity
    if renormalised:
        torch.testing.assert_close(found.sum(dim=(1, 2, 3)), relevance.sum(dim=(1, 2, 3)))


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float64).min, -torch.inf])
@pytest.mark.parametrize("rules", [CHEFER, CHEFER_ORIG])
def test_a_hidden_key_gets_nothing_and_spoils_nothing(rules, hidden):
    scores, relevance = sample()
    scores[..., 2], relevance[..., 2] = hidden, 0.0
    case = RuleCase(torch.softmax(scores, dim=-1), (scores,), 2, -1)
    (found,) = rules.rules[Operation.SOFTMAX](relevance, case)
    assert torch.isfinite(found).all()
    assert (found[..., 2] == 0).all()


def test_attnlrp_has_its_own_rule():
    assert ATTNLRP_RULES.rules[Operation.SOFTMAX] is not CHEFER.rules[Operation.SOFTMAX]


def clone_of(uses, rules):
    """Relevance of x, made by a norm, that ``uses`` linear maps read: one number each way."""
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(4, dtype=torch.float64)
    maps = [torch.nn.Linear(4, 1, bias=False, dtype=torch.float64) for _ in range(uses)]
    model = torch.nn.Sequential(norm, *maps).requires_grad_(False)
    given = torch.randn(1, 2, 4, dtype=torch.float64, requires_grad=True)
    with forked(model, examples=1) as (passage, _):
        made = norm(given)
        made.data[0, 0, 0] = 3e-9  # next to 0, where the division shows
        outputs = [one(made) for one in maps]
    with carrying(passage, rules):
        arrived = torch.autograd.grad(outputs, made, [torch.ones_like(o) for o in outputs],
                                      retain_graph=True)[0]  # fmt: skip
        found = torch.autograd.grad(outputs, given, [torch.ones_like(o) for o in outputs])[0]
    return made.detach(), arrived, found


def test_a_value_that_several_operations_read_is_divided_as_in_the_official_clone():
    value, arrived, found = clone_of(2, CHEFER)
    assert arrived[0, 0, 0] != 0
    wanted = value * arrived / (value + 1e-9)  # norms pass relevance on
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    assert abs(found[0, 0, 0]) < 0.8 * abs(arrived[0, 0, 0])


@pytest.mark.parametrize(("uses", "rules"), [(1, CHEFER), (2, ATTNLRP_RULES)])
def test_a_value_read_once_or_by_other_rules_is_not_divided(uses, rules):
    passing = {**rules.rules, Operation.NORM: passed}
    plain = RuleSet("plain", passing, divides_clones=rules.divides_clones)
    value, arrived, found = clone_of(uses, plain)
    torch.testing.assert_close(found, arrived, rtol=1e-12, atol=0)
    assert value[0, 0, 0] == 3e-9
