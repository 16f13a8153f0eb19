"""Comprehensiveness and sufficiency, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid

COVERED_MODULES = ("metrics/sufficiency",)


def test_comprehensiveness_and_sufficiency_equal_the_values_by_hand():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    options = {"bins": (0.25, 0.5)}
    mean, curve = measure_value(explainer, attribution, ("comprehensiveness", options))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(0), sigmoid(2) - sigmoid(-1)])
    assert mean == pytest.approx(np.mean(curve))
    _, curve = measure_value(explainer, attribution, ("sufficiency", options))
    assert curve == pytest.approx([0.0, sigmoid(2) - sigmoid(3)], abs=1e-12)  # kept: 10; 10 and 11


def test_a_bin_takes_at_least_one_token():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    assert measure_value(explainer, attribution, ("comprehensiveness", {"bins": (0.01,)}))[
        0
    ] == pytest.approx(sigmoid(2) - 0.5)
