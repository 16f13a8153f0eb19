"""Metrics of a planted model, compared with values that were computed by hand.

They are here, not in the test modules, because a test of the tests runs them on broken metrics.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid


def assert_aopc_equals_the_value_by_hand() -> None:
    """Compare AOPC and its curve with the values by hand."""
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    # Σw = 2; counts of 4 words at 0 … 100 %: 0 0 1 1 2 2 2 3 3 4 4; left: 2, 0, −1, −1, 0
    original = sigmoid(2)
    remaining = {0: sigmoid(2), 1: 0.5, 2: sigmoid(-1), 3: sigmoid(-1), 4: 0.5}
    expected = [original - remaining[count] for count in (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)]
    mean, curve = measure_value(explainer, attribution, "aopc")
    assert curve == pytest.approx(expected, abs=1e-12)
    assert mean == pytest.approx(0.416588, abs=1e-6)


def assert_comprehensiveness_and_sufficiency_equal_the_values_by_hand() -> None:
    """Compare both metrics and their curves with the values by hand."""
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    options = {"shares": (0.25, 0.5)}
    mean, curve = measure_value(explainer, attribution, ("comprehensiveness", options))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(0), sigmoid(2) - sigmoid(-1)])
    assert mean == pytest.approx(np.mean(curve))
    _, curve = measure_value(explainer, attribution, ("sufficiency", options))
    assert curve == pytest.approx([0.0, sigmoid(2) - sigmoid(3)], abs=1e-12)  # kept: 10; 10 and 11
