"""LOdds, computed by hand."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value, sigmoid


def test_lodds_replaces_by_padding():
    explainer = make_planted_explainer(make_weights(w0=0.5, w4=-0.5))
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    remaining = {0: 2, 1: 0 + 0.5, 2: -1 + 1.0, 3: -1 + 1.5, 4: 0 + 2.0}
    counts = (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)
    expected = [log(sigmoid(remaining[c]) / sigmoid(2)) for c in counts]
    mean, curve = measure_value(explainer, attribution, "lodds")
    assert curve == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(expected))
    masked = {c: remaining[c] - 1.0 * c for c in remaining}
    expected = [log(sigmoid(masked[c]) / sigmoid(2)) for c in counts]
    assert measure_value(explainer, attribution, ("lodds", {"perturb": "mask"}))[
        1
    ] == pytest.approx(expected)


def test_lodds_clips_a_probability_of_zero():
    explainer = make_planted_explainer(make_weights(w10=1000))
    attribution = make_attribution(explainer, [10, 13], [1, 0])
    _, curve = measure_value(explainer, attribution, "lodds")
    assert curve[-1] == pytest.approx(log(0.5))
    other = make_attribution(explainer, [10, 13], [1, 0], target=0)
    assert measure_value(explainer, other, "lodds")[1][-1] == pytest.approx(log(0.5 / 1e-12))


@pytest.mark.parametrize("preset", ["attcat", "mask_lrp"])
def test_the_official_lodds_do_not_clip(preset):
    words = [10, *[12] * 20]
    scores = [1.0] + [0.0] * 20
    settings = ("lodds", {"preset": preset})
    steep = make_planted_explainer(make_weights(w10=60))
    low = make_attribution(steep, words, scores, target=0)
    _, curve = measure_value(steep, low, settings, labels=[0])
    assert curve[-1] == pytest.approx(log(0.5) + 60)  # clipped: ln(0.5 / 1e-12), less than 28
    _, curve = measure_value(steep, low, ("lodds", {"preset": preset, "clip": True}), labels=[0])
    assert curve[-1] == pytest.approx(log(0.5 / 1e-12))


def test_a_text_with_a_probability_of_zero_is_left_out_where_lodds_do_not_clip():
    scores = [1.0] + [0.0] * 20
    explainer = make_planted_explainer(make_weights(w10=1000, w11=-1000))
    at_first = make_attribution(explainer, [10, *[12] * 20], scores, target=0)
    # Word 11, ranked last, stays: without word 10 it speaks alone.
    later = make_attribution(explainer, [10, *[12] * 19, 11], [*scores[:-1], -1.0], target=1)
    fine = make_attribution(explainer, [12] * 21, scores, target=1)
    evaluation = explainer.evaluate(
        [at_first, later, fine], ("lodds", {"preset": "attcat"}), labels=[0, 1, 1]
    )
    for row in evaluation.rows[:2]:
        assert "is zero, so it has no logarithm. Use clip=true" in row["lodds.skipped"]
    assert evaluation.rows[2]["lodds.skipped"] is None
    assert list(evaluation.summary["lodds"]["skipped"].values()) == [2]
    assert evaluation.summary["lodds"]["mean"] == 0  # of the third alone: its words weigh nothing
