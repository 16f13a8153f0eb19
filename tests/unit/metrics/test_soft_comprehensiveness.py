"""Soft comprehensiveness and soft sufficiency, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, sigmoid
from tokenlight.errors import BadInput

COVERED_MODULES = ("metrics/soft_sufficiency",)


def test_binary_scores_zero_whole_embeddings():
    explainer = make_planted_explainer(make_weights())
    metrics = ["soft_comprehensiveness", "soft_sufficiency"]
    room = sigmoid(2) - sigmoid(0)
    # Scaled, 5 is 1 and −3 is 0: every number is kept for sure or gone for sure. Weights: 2, 1, 0, −1.
    for scores, without, alone, named_share in (
        ([-3, 5, -3, -3], 1, 1, 1 / 4),  # the word of weight 1 is named
        ([5, -3, -3, -3], 0, 2, 1 / 4),
        ([5, 5, -3, -3], -1, 3, 1 / 2),  # more is lost than the text has to give: cut to 1
        ([-3, 5, 5, 5], 2, 0, 3 / 4),
    ):
        row = explainer.evaluate([make_attribution(explainer, WORDS, scores)], metrics).rows[0]
        lost = min(1.0, (sigmoid(2) - sigmoid(without)) / room)
        remaining = 1 - max(0.0, sigmoid(2) - sigmoid(alone)) / room
        assert row["soft_comprehensiveness"] == pytest.approx(lost)
        assert row["soft_sufficiency"] == pytest.approx(remaining)
        assert row["soft_comprehensiveness.mean_keep_probability"] == pytest.approx(1 - named_share)
        assert row["soft_sufficiency.mean_keep_probability"] == pytest.approx(named_share)


def test_texts_without_contribution_or_order_are_skipped():
    explainer = make_planted_explainer(make_weights())
    flat = make_attribution(explainer, WORDS, [1, 1, 1, 1])
    against = make_attribution(explainer, WORDS, [2, 1, 0, -1], target=0)
    evaluation = explainer.evaluate([flat, against], ["soft_comprehensiveness"])
    reasons = str(evaluation.summary["soft_comprehensiveness"]["skipped"])
    assert "all scores of this text are equal" in reasons
    assert "no more likely with the tokens" in reasons
    with pytest.raises(BadInput, match="num_samples=0"):
        explainer.evaluate([flat], [("soft_sufficiency", {"num_samples": 0})])
