"""Randomisation of a planted model, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.planted_model import (
    MASK,
    PAD,
    compute_oracle_scores,
    make_attribution,
    make_planted_explainer,
)
from tokenlight import registry
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds


def test_randomisation_of_a_planted_model_is_the_mean_similarity():
    explainer = make_planted_explainer()
    words = list(range(10, 22))
    attribution = make_attribution(
        explainer, words, compute_oracle_scores(explainer, words, 1), target=1
    )
    metric = registry.build("metrics", "randomisation")
    case = Case(
        attribution, Perturber(attribution.row, ReplacementIds(PAD, MASK)), explainer.runner.head
    )
    same = replace(attribution, method="same")
    negated = replace(attribution, scores=-attribution.scores)
    flat = replace(attribution, scores=np.zeros(len(attribution)))
    measurement = metric.measure(replace(case, extra_attributions=(same, negated, flat)), [])
    assert measurement.curve == pytest.approx((1, -1, 0))
    assert measurement.value == pytest.approx(0)
    magnitudes = registry.build("metrics", "randomisation", {"absolute": True})
    assert magnitudes.measure(
        replace(case, extra_attributions=(negated,)), []
    ).value == pytest.approx(1)
