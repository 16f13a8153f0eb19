"""Curves of many methods: the best ones and chance are named, the others stand behind in grey."""

from __future__ import annotations

import pytest

from tokenlight.evaluation.measurement_records import Record
from tokenlight.evaluation.report import MAX_DISTINCT_LINES, NUM_NAMED_METHODS, draw_figure
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics.aopc import AreaOverPerturbationCurve
from tokenlight.metrics.base import Measurement


def build_evaluation(methods):
    """``method 0`` has the highest curve, then ``method 1`` …; random the lowest."""
    metric = AreaOverPerturbationCurve()
    names = [f"method {i}" for i in range(methods - 1)] + ["random"]
    records = tuple(
        Record(
            text_index=text, method=name, target="a", predicted="a", label=None, num_tokens=9,
            measurements={"aopc": Measurement(1.0 - i / 100, (1.0 - i / 100,) * len(metric.curve_points))},
        )
        for text in range(3)
        for i, name in enumerate(names)
    )  # fmt: skip
    return Evaluation(records, {"aopc": metric}, 0)


def list_legend(evaluation):
    (axes,) = draw_figure(evaluation).axes
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("methods", [2, MAX_DISTINCT_LINES])
def test_few_methods_are_all_named(methods):
    assert len(list_legend(build_evaluation(methods))) == methods


def test_the_legend_names_the_best_of_many_methods_and_chance():
    legend = list_legend(build_evaluation(20))
    assert sorted(legend) == sorted(
        [
            *(f"method {i}" for i in range(NUM_NAMED_METHODS)),
            "random",
            f"{20 - NUM_NAMED_METHODS - 1} others",
        ]
    )
