"""Comprehensiveness and sufficiency, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.hand_computed_metrics import (
    assert_comprehensiveness_and_sufficiency_equal_the_values_by_hand,
)
from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid

COVERED_MODULES = ("metrics/sufficiency",)


def test_comprehensiveness_and_sufficiency_equal_the_values_by_hand():
    # The numbers stand in the helper, which a test of the tests also runs on broken metrics.
    assert_comprehensiveness_and_sufficiency_equal_the_values_by_hand()


def test_a_bin_takes_at_least_one_token():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    assert measure_value(explainer, attribution, ("comprehensiveness", {"shares": (0.01,)}))[
        0
    ] == pytest.approx(sigmoid(2) - 0.5)
