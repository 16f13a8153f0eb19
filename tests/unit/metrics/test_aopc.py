"""AOPC, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.hand_computed_metrics import assert_aopc_equals_the_value_by_hand
from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid


def test_aopc_equals_the_value_by_hand():
    # The numbers stand in the helper, which a test of the tests also runs on broken metrics.
    assert_aopc_equals_the_value_by_hand()


def test_aopc_of_the_bottom_order_and_of_another_class_equal_the_values_by_hand():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    # Bottom first: −1, 0, +1, +2 go: left 3, 3, 2, 0
    remaining = {0: 2, 1: 3, 2: 3, 3: 2, 4: 0}
    expected = [sigmoid(2) - sigmoid(remaining[c]) for c in (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)]
    assert measure_value(explainer, attribution, ("aopc", {"order": "bottom"}))[1] == pytest.approx(
        expected
    )
    other = make_attribution(explainer, WORDS, [2, 1, 0, -1], target=0)
    flipped = [-v for v in measure_value(explainer, attribution, "aopc")[1]]
    assert measure_value(explainer, other, "aopc")[1] == pytest.approx(flipped)


def test_aopc_stops_at_half_of_the_tokens():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    original, half = (
        measure_value(explainer, attribution, ("aopc", {"max_share": k}))[1] for k in (1.0, 0.5)
    )
    assert len(half) == 6
    assert half == original[:6]
