"""F-fidelity, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.planted_model import planted, scored
from tests.unit.metrics.planted_words import WORDS, sigmoid, value, weights
from tokenlight.errors import BadInput


def test_f_fidelity_by_hand():
    explainer = planted(weights())
    attribution = scored(explainer, WORDS, [2, 1, 0, -1])
    # Everything goes for sure: of shares 1/4, 1/2 and 1 the first word, the first two, all four.
    sure = {"alpha": 1.0, "beta": 1.0, "shares": (0.25, 0.5, 1.0), "samples": 2}
    _, curve = value(explainer, attribution, ("f_fidelity", sure))
    remaining_logits = [2 - 2, 2 - 3, 2 - 2]
    assert curve == pytest.approx([sigmoid(2) - sigmoid(logit) for logit in remaining_logits])
    _, curve = value(explainer, attribution, ("f_fidelity", sure | {"side": "minus"}))
    assert curve == pytest.approx([sigmoid(2) - sigmoid(logit) for logit in (2, 3, 2)])
    for wrong in ({"alpha": 0.0}, {"beta": 1.5}, {"samples": 0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            value(explainer, attribution, ("f_fidelity", wrong))
