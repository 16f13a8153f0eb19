"""Curves of many methods: the best ones and chance are named, the others stand behind in grey."""

from __future__ import annotations

import pytest

from tokenlight.evaluation.measure import Record
from tokenlight.evaluation.report import MOST, NAMED, figure
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics._metric import Measured
from tokenlight.metrics.aopc import AreaOverPerturbationCurve


def evaluation(methods):
    """``method 0`` has the highest curve, then ``method 1`` …; random the lowest."""
    metric = AreaOverPerturbationCurve()
    names = [f"method {i}" for i in range(methods - 1)] + ["random"]
    records = tuple(
        Record(
            text=text, method=name, target="a", predicted="a", label=None, tokens=9,
            measured={"aopc": Measured(1.0 - i / 100, (1.0 - i / 100,) * len(metric.points))},
        )
        for text in range(3)
        for i, name in enumerate(names)
    )  # fmt: skip
    return Evaluation(records, {"aopc": metric}, 0)


def named(found):
    (axes,) = figure(found).axes
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("methods", [2, MOST])
def test_few_methods_are_all_named(methods):
    assert len(named(evaluation(methods))) == methods


def test_of_many_methods_the_best_and_chance_are_named():
    found = named(evaluation(20))
    assert sorted(found) == sorted(
        [*(f"method {i}" for i in range(NAMED)), "random", f"{20 - NAMED - 1} others"]
    )
