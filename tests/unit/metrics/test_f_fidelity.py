"""F-fidelity, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid
from tokenlight.errors import BadInput


def test_f_fidelity_equals_the_value_by_hand():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    # Everything goes for sure: of shares 1/4, 1/2 and 1 the first word, the first two, all four.
    sure = {"alpha": 1.0, "beta": 1.0, "shares": (0.25, 0.5, 1.0), "num_samples": 2}
    _, curve = measure_value(explainer, attribution, ("f_fidelity", sure))
    remaining_logits = [2 - 2, 2 - 3, 2 - 2]
    assert curve == pytest.approx([sigmoid(2) - sigmoid(logit) for logit in remaining_logits])
    _, curve = measure_value(explainer, attribution, ("f_fidelity", sure | {"side": "minus"}))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(logit) for logit in (2, 3, 2)])
    for wrong in ({"alpha": 0.0}, {"beta": 1.5}, {"num_samples": 0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            measure_value(explainer, attribution, ("f_fidelity", wrong))
