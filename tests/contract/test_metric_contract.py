"""The laws every metric obeys; a new file in metrics/ is tested by existing."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
import torch

from tests.state import same, snapshot
from tests.tiny import tiny_bert, tiny_tokenizer
from tokenlight import Explainer, registry
from tokenlight.evaluation.measure import Record
from tokenlight.metrics._metric import Metric

METRICS = registry.names("metrics")
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
    mean = np.mean([x.logits for x in EXPLAINER.explain(TEXTS, "random")], axis=0)
    EXPLAINER.model.classifier.bias -= torch.from_numpy(mean)
SPANS = [[(4, 8)], [(2, 6), (7, 11)], [(0, 5)], [(0, 3)]]
# Shares of what the tokens give the class: where a random model gives it more without them, of nothing.
NO_LIKELIER = "the explained class is no likelier with the tokens than without them."
UNDEFINED = {"soft_comprehensiveness": {NO_LIKELIER}, "soft_sufficiency": {NO_LIKELIER}}
XS = EXPLAINER.explain(TEXTS, method=["attcat", "grad_x_input"])


def evaluated(metric, xs=XS, **more):
    return EXPLAINER.evaluate(xs, metric, labels=LABELS, spans=SPANS, **more)


def numbers(evaluation, metric):
    return [row[metric] for row in evaluation.rows]


@pytest.mark.parametrize("metric", METRICS)
def test_every_text_gets_a_number_and_the_summary_an_interval_that_holds_it(metric):
    found = evaluated(metric)
    assert len(found.rows) == len(XS)
    assert set(found.summary[metric]["skipped"]) <= UNDEFINED.get(metric, set())
    assert all(part.summary[metric]["count"] for part in found.by_method.values())
    for part in (found, *found.by_method.values()):
        one = part.summary[metric]
        assert np.isfinite([one["mean"], one["low"], one["high"]]).all()
        assert one["low"] <= one["mean"] <= one["high"]
    assert set(found.by_method) == {"attcat", "grad_x_input"}


@pytest.mark.parametrize("metric", METRICS)
def test_its_docstring_has_formula_citation_and_difference_from_the_paper(metric):
    cls = registry.find("metrics", metric)
    assert issubclass(cls, Metric)
    assert ".. math::" in cls.__doc__
    assert "Differs from the paper" in cls.__doc__
    assert cls.cites
    assert cls.better in ("higher", "lower", "neither")
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen


@pytest.mark.parametrize("metric", METRICS)
def test_every_preset_can_be_built(metric):
    for preset in registry.find("metrics", metric).presets:
        registry.build("metrics", metric, {"preset": preset}).check(EXPLAINER.live.head)


@pytest.mark.parametrize("metric", METRICS)
def test_the_curve_stands_on_the_grid(metric):
    found = evaluated(metric).by_method["attcat"]
    for key, (points, intervals) in found.curves.items():
        assert len(points) == len(intervals), key
        assert list(points) == sorted(points)


@pytest.mark.parametrize("metric", METRICS)
def test_a_text_has_the_same_number_alone_and_in_any_batch(metric):
    whole = numbers(evaluated(metric), metric)
    small = numbers(evaluated(metric, batch_tokens=20), metric)
    alone = [
        EXPLAINER.evaluate(x, metric, labels=[LABELS[i // 2]], spans=[SPANS[i // 2]]).rows[0][
            metric
        ]
        for i, x in enumerate(XS)
    ]
    for first, second, third in zip(whole, small, alone, strict=True):
        if first is not None:
            assert second == pytest.approx(first, abs=1e-9)
            assert third == pytest.approx(first, abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_the_texts_does_not_matter(metric):
    places = list(range(len(TEXTS)))
    random.Random(1).shuffle(places)
    xs = [XS[2 * i + j] for i in places for j in range(2)]
    labels, spans = [LABELS[i] for i in places], [SPANS[i] for i in places]
    turned = EXPLAINER.evaluate(xs, metric, labels=labels, spans=spans)
    expected = numbers(evaluated(metric), metric)
    for i, value in zip(places, numbers(turned, metric)[::2], strict=True):
        assert value == (expected[2 * i] and pytest.approx(expected[2 * i], abs=1e-9))
    mean = turned.summary[metric]["mean"]
    assert mean == pytest.approx(evaluated(metric).summary[metric]["mean"], abs=1e-9)


@pytest.mark.parametrize("metric", METRICS)
def test_the_same_seed_gives_the_same_summary(metric):
    first, second = (evaluated(metric, seed=4).by_method["attcat"].summary for _ in range(2))
    assert first == second


@pytest.mark.parametrize("metric", METRICS)
def test_records_survive_a_file(metric):
    found = evaluated(metric)
    back = [Record.from_dict(json.loads(json.dumps(r.to_dict()))) for r in found.records]
    again = dataclasses.replace(found, records=tuple(back))
    np.testing.assert_equal(again.summary, found.summary)
    np.testing.assert_equal(again.rows, found.rows)


@pytest.mark.parametrize("metric", METRICS)
def test_the_model_is_as_before(metric):
    before = snapshot(EXPLAINER.model)
    evaluated(metric)
    assert same(before, snapshot(EXPLAINER.model))


@pytest.mark.parametrize("metric", METRICS)
def test_an_explanation_is_not_changed(metric):
    before = [x.to_dict() for x in XS]
    evaluated(metric)
    assert [x.to_dict() for x in XS] == before
