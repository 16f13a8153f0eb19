"""Normalized AOPC, computed by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.helpers.planted_model import VOCABULARY, make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid
from tokenlight.errors import BadInput


def test_naopc_is_zero_for_the_worst_and_one_for_the_best_order():
    explainer = make_planted_explainer(make_weights())
    # [MASK] weighs nothing: deleting and masking are alike. Falls are taken after 1, 2, 3, 4 words.
    falls = {}
    for order in itertools.permutations(range(4)):
        remaining_logits = [
            2 - sum((2, 1, 0, -1)[i] for i in order[:count]) for count in (1, 2, 3, 4)
        ]
        falls[order] = np.mean([sigmoid(2) - sigmoid(logit) for logit in remaining_logits])
    low = min(falls.values())
    high = max(falls.values())
    for order in itertools.permutations(range(4)):
        ranks = [4 - order.index(i) for i in range(4)]
        attribution = make_attribution(explainer, WORDS, ranks)
        row = explainer.evaluate([attribution], [("naopc", {"beam_width": 24})]).rows[0]
        assert row["naopc"] == pytest.approx((falls[order] - low) / (high - low), abs=1e-9)
    best = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    assert measure_value(explainer, best, "naopc")[0] == pytest.approx(1.0)
    worst = make_attribution(explainer, WORDS, [-2, -1, 0, 1])
    assert measure_value(explainer, worst, "naopc")[0] == pytest.approx(0.0)


def test_naopc_skips_long_texts_and_texts_that_no_token_decides():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    evaluation = explainer.evaluate([attribution], [("naopc", {"max_tokens": 3})])
    assert "max_tokens=3" in str(evaluation.summary["naopc"]["skipped"])
    nothing = make_planted_explainer(np.zeros((VOCABULARY, 2)))
    evaluation = nothing.evaluate([make_attribution(nothing, WORDS, [2, 1, 0, -1])], ["naopc"])
    assert "same AOPC" in str(evaluation.summary["naopc"]["skipped"])
    with pytest.raises(BadInput, match="beam_width=0"):
        explainer.evaluate([attribution], [("naopc", {"beam_width": 0})])
