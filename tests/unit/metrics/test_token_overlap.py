"""Token overlap of classes, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.planted_model import MASK, PAD, make_attribution, make_planted_explainer
from tests.helpers.planted_words import make_weights
from tokenlight import registry
from tokenlight.metrics.base import Case
from tokenlight.perturb.variants import Perturber, ReplacementIds


def test_token_overlap_equals_the_value_by_hand():
    explainer = make_planted_explainer(make_weights(w20=-3, w21=-2, w22=3))
    attribution = make_attribution(explainer, [10, 11, 22], [5, 4, 1])  # predicted 1
    of_class_0 = make_attribution(explainer, [20, 21, 10], [5, 4, 3])  # predicted 0
    plain = {"idf": "none", "k": 2}
    summary = explainer.evaluate([attribution, of_class_0], ("token_overlap", plain)).summary[
        "token_overlap"
    ]
    assert summary["mean"] == 0  # {10, 11} and {20, 21}
    summary = explainer.evaluate(
        [attribution, of_class_0], ("token_overlap", plain | {"k": 3})
    ).summary
    assert summary["token_overlap"]["mean"] == pytest.approx(1 / 3)  # word 10 is in both
    counted = explainer.evaluate(
        [attribution, of_class_0], ("token_overlap", plain | {"k": 3, "report": "count"})
    ).summary
    assert counted["token_overlap"]["mean"] == pytest.approx(1)
    # ln(2 / 2) = 0: a word of every text has no weight, but stands in the lists
    logged = explainer.evaluate([attribution, of_class_0], ("token_overlap", {"k": 3})).summary
    assert logged["token_overlap"]["mean"] == pytest.approx(1 / 3)
    logged = explainer.evaluate(
        [attribution, of_class_0], ("token_overlap", {"k": 3, "tokens": "positive"})
    )
    assert logged.summary["token_overlap"]["mean"] == 0


def test_token_overlap_lists_words_that_speak_against_a_class_last():
    explainer = make_planted_explainer(make_weights(w20=-3, w21=-2, w22=3))
    attribution = make_attribution(explainer, [10, 11, 22], [-5, 4, 1])  # predicted 1
    of_class_0 = make_attribution(explainer, [20, 21, 10], [5, -4, 3])  # predicted 0
    plain = {"idf": "none", "report": "count"}
    for k, shared in ((2, 0), (3, 1)):  # {11, 22} and {20, 10}; with the third 10 and 21
        summary = explainer.evaluate(
            [attribution, of_class_0], ("token_overlap", plain | {"k": k})
        ).summary
        assert summary["token_overlap"]["mean"] == shared
    evaluation = explainer.evaluate(
        [attribution, of_class_0], ("token_overlap", plain | {"tokens": "positive"})
    )
    assert evaluation.summary["token_overlap"]["mean"] == 0  # word 10 speaks against class 1


@pytest.mark.parametrize(("normalize", "total", "decoded"), [("none", 1, 1), ("l1", 8, 5)])
def test_token_overlap_counts_the_score_of_a_type_once_per_text(normalize, total, decoded):
    explainer = make_planted_explainer(make_weights())
    metric = registry.build("metrics", "token_overlap", {"normalize": normalize})
    position = make_attribution(explainer, [10, 11, 10], [3, 2, 3])
    by_type = replace(position, method="decoded_gradcam")
    for attribution, expected in (
        (position, {"10": 6 / total, "11": 2 / total}),
        (by_type, {"10": 3 / decoded, "11": 2 / decoded}),
    ):
        case = Case(
            attribution,
            Perturber(attribution.row, ReplacementIds(PAD, MASK)),
            explainer.runner.head,
        )
        assert metric.measure(case, []).detail["weights"] == pytest.approx(expected)
