"""The laws every metric obeys; a new file in metrics/ is tested by existing."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.model_state import assert_unchanged, take_snapshot
from tests.helpers.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, registry
from tokenlight.evaluation.measurement_records import Record
from tokenlight.evaluation.results import Evaluation
from tokenlight.metrics.base import Metric

METRICS = registry.list_names("metrics")
TOKENIZER = tiny_tokenizer()
TEXTS = [
    "the film is not very charming , but we love it !",
    "a dull plot and slow acting",
    "never ever hate this movie . it was fun",
    "one two three red blue green cat",
]
LABELS = ["positive", "negative", "neutral", "positive"]
EXPLAINER = Explainer(tiny_bert(), TOKENIZER)
# Without its mean the model predicts several classes, so that metrics over classes have some.
with torch.no_grad():
    mean = np.mean(
        [attribution.logits for attribution in EXPLAINER.explain(TEXTS, "random")], axis=0
    )
    EXPLAINER.model.classifier.bias -= torch.from_numpy(mean)
SPANS = [[(4, 8)], [(2, 6), (7, 11)], [(0, 5)], [(0, 3)]]
# Shares of what the tokens give the class: where a random model gives it more without them, of nothing.
NO_LIKELIER = "The explained class is no more likely with the tokens than without them."
UNDEFINED = {"soft_comprehensiveness": {NO_LIKELIER}, "soft_sufficiency": {NO_LIKELIER}}
ATTRIBUTIONS = EXPLAINER.explain(TEXTS, method=["attcat", "grad_x_input"])


def evaluate_attributions(metric: str, attributions: Any = ATTRIBUTIONS, **more: Any) -> Evaluation:
    """Measure a metric on attributions, with labels and spans."""
    return EXPLAINER.evaluate(attributions, metric, labels=LABELS, spans=SPANS, **more)


def read_column(evaluation: Evaluation, metric: str) -> list[Any]:
    """Return a metric's value for each row."""
    return [row[metric] for row in evaluation.rows]


@pytest.mark.parametrize("metric", METRICS)
def test_every_text_gets_a_number_and_the_summary_an_interval_that_holds_it(metric):
    evaluation = evaluate_attributions(metric)
    assert len(evaluation.rows) == len(ATTRIBUTIONS)
    assert set(evaluation.summary[metric]["skipped"]) <= UNDEFINED.get(metric, set())
    assert all(part.summary[metric]["count"] for part in evaluation.by_method.values())
    for part in (evaluation, *evaluation.by_method.values()):
        summary = part.summary[metric]
        assert np.isfinite([summary["mean"], summary["low"], summary["high"]]).all()
        assert summary["low"] <= summary["mean"] <= summary["high"]
    assert set(evaluation.by_method) == {"attcat", "grad_x_input"}


@pytest.mark.parametrize("metric", METRICS)
def test_the_docstring_of_a_metric_has_formula_citation_and_difference_from_the_paper(metric):
    cls = registry.load_class("metrics", metric)
    assert issubclass(cls, Metric)
    assert ".. math::" in cls.__doc__
    assert "Differs from the paper" in cls.__doc__
    assert cls.cites
    assert cls.better in ("higher", "lower", "neither")
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen


@pytest.mark.parametrize("metric", METRICS)
def test_every_preset_of_a_metric_can_be_built(metric):
    for preset in registry.load_class("metrics", metric).presets:
        registry.build("metrics", metric, {"preset": preset}).check(EXPLAINER.runner.head)


@pytest.mark.parametrize("metric", METRICS)
def test_the_curve_has_a_point_for_each_value_of_the_grid(metric):
    evaluation = evaluate_attributions(metric).by_method["attcat"]
    for key, (points, intervals) in evaluation.curves.items():
        assert len(points) == len(intervals), key
        assert list(points) == sorted(points)


@pytest.mark.parametrize("metric", METRICS)
def test_a_text_has_the_same_value_in_any_batch(metric):
    in_one_batch = read_column(evaluate_attributions(metric), metric)
    in_small_batches = read_column(evaluate_attributions(metric, batch_tokens=20), metric)
    alone = [
        EXPLAINER.evaluate(
            attribution, metric, labels=[LABELS[i // 2]], spans=[SPANS[i // 2]]
        ).rows[0][metric]
        for i, attribution in enumerate(ATTRIBUTIONS)
    ]
    for first, second, third in zip(in_one_batch, in_small_batches, alone, strict=True):
        if first is None:
            assert second is None
            assert third is None
        else:
            assert second == pytest.approx(first, abs=1e-9)
            assert third == pytest.approx(first, abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_the_texts_does_not_matter(metric):
    order = list(range(len(TEXTS)))
    random.Random(1).shuffle(order)
    attributions = [ATTRIBUTIONS[2 * i + j] for i in order for j in range(2)]
    labels = [LABELS[i] for i in order]
    spans = [SPANS[i] for i in order]
    shuffled = EXPLAINER.evaluate(attributions, metric, labels=labels, spans=spans)
    expected = read_column(evaluate_attributions(metric), metric)
    for i, value in zip(order, read_column(shuffled, metric)[::2], strict=True):
        assert value == (expected[2 * i] and pytest.approx(expected[2 * i], abs=1e-9))
    mean = shuffled.summary[metric]["mean"]
    assert mean == pytest.approx(evaluate_attributions(metric).summary[metric]["mean"], abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_same_seed_gives_the_same_summary(metric):
    first, second = (
        evaluate_attributions(metric, seed=4).by_method["attcat"].summary for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("metric", METRICS)
def test_records_survive_saving_and_loading(metric):
    evaluation = evaluate_attributions(metric)
    records = [Record.from_dict(json.loads(json.dumps(r.to_dict()))) for r in evaluation.records]
    loaded = dataclasses.replace(evaluation, records=tuple(records))
    np.testing.assert_equal(loaded.summary, evaluation.summary)
    np.testing.assert_equal(loaded.rows, evaluation.rows)


@pytest.mark.parametrize("metric", METRICS)
def test_the_model_is_left_unchanged(metric):
    before = take_snapshot(EXPLAINER.model)
    evaluate_attributions(metric)
    assert_unchanged(before, take_snapshot(EXPLAINER.model))


@pytest.mark.parametrize("metric", METRICS)
def test_an_explanation_is_not_changed(metric):
    before = [attribution.to_dict() for attribution in ATTRIBUTIONS]
    evaluate_attributions(metric)
    assert [attribution.to_dict() for attribution in ATTRIBUTIONS] == before
