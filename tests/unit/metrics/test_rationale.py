"""Agreement with human rationales, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.handmade_attributions import make_attribution, split_words
from tests.helpers.handmade_attributions import make_row as text_row
from tests.helpers.planted_model import MASK, PAD
from tokenlight import registry
from tokenlight.data.head import Head
from tokenlight.metrics.base import Case, Measurement
from tokenlight.metrics.rationale import compute_precision_recall_area
from tokenlight.perturb.variants import Perturber, ReplacementIds


def measure_rationale(scores, spans, text="one two three four five six", **options):
    row = text_row([text], [split_words(text)], cut=options.pop("cut", 0))
    attribution = make_attribution(row, [0, *scores, 0])
    case = Case(
        attribution,
        Perturber(row, ReplacementIds(PAD, MASK)),
        Head("text-classification", ("no", "yes")),
        spans=spans,
    )
    return registry.build("metrics", "rationale", options).measure(case, [])


def test_rationale_scores_equal_the_values_by_hand():
    # Marked: "two three" (tokens 2, 3 of 1 … 6). Ranked: two, five, three, …
    measurement = measure_rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),))
    # Points (recall, precision): (0, 1), (½, 1), (½, ½), (1, 2/3), …; by steps 1/1 and 2/3 count half.
    assert measurement.value == pytest.approx(0.5 * 1 + 0.5 * (1 / 2 + 2 / 3) / 2)
    steps = measure_rationale([0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), integration="steps")
    assert steps.value == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert measurement.parts["f1"] == pytest.approx(0.5)  # chosen: two, five; one of two is right
    # Runs chosen {2}, {5}; marked {2, 3}: overlap ½ matches; precision ½, recall 1
    assert measurement.parts["iou"] == pytest.approx(2 / 3)
    assert measurement.parts["visible_share"] == 1
    strict = measure_rationale(
        [0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), min_iou=0.6, report="iou"
    )
    assert strict.value == 0
    third = measure_rationale(
        [0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),), selected_share=0.5, report="f1"
    )
    assert third.value == pytest.approx(2 * 2 / 5)  # chosen: two, five, three


def test_average_precision_treats_equal_scores_as_one_threshold():
    gold = np.array([True, False, True, False])
    for scores, area in (([1.0, 1, 1, 1], 0.5), ([4.0, 3, 2, 1], 0.5 + 1 / 3), ([2.0, 1, 2, 1], 1)):
        assert compute_precision_recall_area(
            np.array(scores), gold, use_steps=True
        ) == pytest.approx(area)


def test_the_area_equals_the_value_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        gold = generator.random(size) < 0.4
        scores = generator.integers(0, 6, size).astype(float)
        gold[0] = True
        precision, recall, _ = sklearn.precision_recall_curve(gold, scores)
        assert compute_precision_recall_area(scores, gold) == pytest.approx(
            sklearn.auc(recall, precision), abs=1e-14
        )
        steps = sklearn.average_precision_score(gold, scores)
        assert compute_precision_recall_area(scores, gold, use_steps=True) == pytest.approx(
            steps, abs=1e-14
        )


def test_iou_f1_over_texts_follows_its_chosen_average():
    # Text one: chosen {2}, {5} against {2, 3}: right 1 of 2 and of 1. Text two: {1, 2}, all right of two.
    first = [0.1, 0.9, 0.7, 0.2, 0.8, 0.0], ((0, 4, 13),)
    second = [0.9, 0.8, 0.1, 0.1, 0.1, 0.3], ((0, 0, 7), (0, 24, 27))
    f1 = {
        "macro": 2 * 0.75 * 1 / 1.75,  # precision (½ + 1) / 2, recall (1 + 1) / 2
        "micro": 2 * (3 / 4) * (3 / 3) / (3 / 4 + 1),
        "texts": (2 / 3 + 1) / 2,
    }
    for over, expected in f1.items():
        metric = registry.build("metrics", "rationale", {"report": "iou", "iou_over": over})
        measurements = [
            measure_rationale(*arguments, report="iou", iou_average=over)
            for arguments in (first, second)
        ]
        summary = metric.summarize(measurements)
        assert summary.interval.mean == pytest.approx(expected)
        assert summary.parts["iou"] == summary.interval
    lopsided = [Measurement(0, detail={"right": r, "selected": s, "marked": m}, parts={"iou": 0})
                for r, s, m in ((1, 1, 4), (0, 3, 1))]  # fmt: skip
    for over, expected in (("macro", 2 * 0.5 * 0.125 / 0.625), ("micro", 2 * 0.25 * 0.2 / 0.45)):
        metric = registry.build("metrics", "rationale", {"report": "iou", "iou_over": over})
        assert metric.summarize(lopsided).interval.mean == pytest.approx(expected)


def test_a_truncated_rationale_reports_its_remaining_share():
    measurement = measure_rationale([1, 1, 1, 1, 1, 1], ((0, 4, 7), (0, 100, 103)), cut=9)
    assert measurement.parts["visible_share"] == pytest.approx(0.5)
