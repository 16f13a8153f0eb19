"""Targets of several logits are split into rounds of one part per example."""

from tokenlight.data.resolved_target import ResolvedTarget
from tokenlight.trace.target_parts import split_into_rounds, split_terms


def make_target(*terms):
    return ResolvedTarget("contrast", "name", tuple(((index,), weight) for index, weight in terms))


def test_a_target_with_fewer_terms_repeats_its_last_one_with_weight_zero():
    contrast = make_target((3, 1.0), (5, -1.0))
    single = make_target((4, 2.0))
    rounds = split_into_rounds([contrast, single], split_terms)
    assert rounds == [
        ([1.0, 2.0], (make_target((3, 1.0)), make_target((4, 1.0)))),
        ([-1.0, 0.0], (make_target((5, 1.0)), make_target((4, 1.0)))),
    ]
