"""Whose explanation is whose, and that texts are counted where each has several."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

from tests.planted import planted, scored
from tests.tiny import randomised, tiny_bert, tiny_config
from tests.unit.served import tiny_writer
from tokenlight import Continuation, Explainer
from tokenlight.evaluation.measure import Record
from tokenlight.evaluation.report import page
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file, explained
from tokenlight.files.tables import Example
from tokenlight.metrics._interval import mean_interval
from tokenlight.metrics._metric import Measured
from tokenlight.metrics.aopc import AreaOverPerturbationCurve
from tokenlight.metrics.precision_at_k import PrecisionAtK
from tokenlight.metrics.token_overlap import TokenOverlap

TEXTS = ["the film", "we love this dull old movie", "good"]
EVERY = Experiment(["attcat", "random"], ["aopc"], {"target": "all"})


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


@pytest.fixture
def labeller(tokenizer):
    model = randomised(BertForTokenClassification(tiny_config(num_labels=3)), torch.float32)
    return Explainer(model, tokenizer, name="words")


def test_every_word_is_an_explanation_of_its_own_text(labeller, tmp_path):
    examples = [Example(text) for text in TEXTS]
    made, refused = explained(labeller, examples, EVERY)
    assert refused == []
    for i, text in enumerate(TEXTS):
        assert {a.row.texts for a in made[i]} == {(text,)}
        assert [a.method for a in made[i]] == ["attcat"] * len(text.split()) + [
            "random"
        ] * len(text.split())  # fmt: skip
    found, refused = evaluate_file(labeller, examples, EVERY, tmp_path)
    assert refused == []
    assert [r.text for r in found.records] == [0] * 4 + [1] * 12 + [2] * 2
    assert found.by_method["attcat"].summary["aopc"]["count"] == 3
    for record in found.records[:2]:  # each word agrees with the other method's view of itself
        assert set(record.agrees) == {"random"}


def test_words_of_one_text_are_one_text_for_evaluate_too(labeller):
    xs = labeller.explain(TEXTS, method=["attcat", "random"], target="all")
    rows = labeller.evaluate(xs, "aopc").rows
    assert [row["text"] for row in rows] == [0] * 4 + [1] * 12 + [2] * 2


def test_what_is_written_on_is_an_explanation_of_its_own_prompt(tmp_path):
    writer = tiny_writer()
    prompts = ["the film is", "we love this old"]
    job = Experiment(["attcat", "random"], ["aopc"], {"target": Continuation(tokens=3)})
    expected = {i: writer.explain([p], ["attcat", "random"], Continuation(tokens=3))
                for i, p in enumerate(prompts)}  # fmt: skip
    made, _ = explained(writer, [Example(p) for p in prompts], job)
    for i, xs in expected.items():
        assert [(a.method, a.row.ids) for a in made[i]] == [(a.method, a.row.ids) for a in xs]
    found, refused = evaluate_file(writer, [Example(p) for p in prompts], job, tmp_path)
    assert refused == []
    assert [r.text for r in found.records] == [i for i, xs in expected.items() for _ in xs]
    assert found.by_method["random"].summary["aopc"]["count"] == 2
    xs = [a for listed in expected.values() for a in listed]
    assert [row["text"] for row in writer.evaluate(xs, "aopc").rows] == [
        r.text for r in found.records
    ]


def test_classes_are_averaged_and_texts_are_counted(explainer, tmp_path):
    given = [Example(text) for text in TEXTS]
    found, _ = evaluate_file(
        explainer, given, Experiment(["attcat"], ["aopc"], EVERY.how), tmp_path
    )
    assert len(found.rows) == 9
    values = np.array([row["aopc"] for row in found.rows]).reshape(3, 3)
    summary, expected = found.summary["aopc"], mean_interval(values.mean(axis=1))
    assert summary["count"] == 3
    assert summary["mean"] == pytest.approx(values.mean())
    assert (summary["low"], summary["high"]) == pytest.approx((expected.low, expected.high))
    assert {interval.count for interval in found.curves["aopc"][1]} == {3}
    assert re.findall(r"· \d+ texts?", page(found)) == ["· 3 texts"]


def test_agreement_is_counted_by_texts(explainer, tmp_path):
    found, _ = evaluate_file(explainer, [Example(text) for text in TEXTS[:2]], EVERY, tmp_path)
    assert {interval.count for interval in found.agreement.pairs.values()} == {2}


def record(text, measured, method="attcat", **more):
    return Record(text, method, "positive", "positive", None, 9, measured, **more)


def test_one_explanation_a_text_is_summarised_as_it_was():
    values = [0.1, 0.5, 0.2, 0.9]
    records = [record(i, {"aopc": Measured(value)}) for i, value in enumerate(values)]
    found = Evaluation(tuple(records), {"aopc": AreaOverPerturbationCurve()}).summary["aopc"]
    expected = mean_interval(values)
    assert [found[k] for k in ("mean", "low", "high", "count")] == [
        expected.mean, expected.low, expected.high, 4,
    ]  # fmt: skip


def overlap(*parts):
    """Parts: (text, class, {token: weight})."""
    return [
        record(text, {"token_overlap": Measured(
            float("nan"), detail={"class": label, "weights": weights})})
        for text, label, weights in parts
    ]  # fmt: skip


def test_the_overlap_of_classes_draws_texts_and_sums_all_their_explanations():
    twice = [(0, 0, {"5": 1.0, "6": 2.0}), (0, 0, {"5": 3.0, "6": -1.0}), (1, 1, {"5": 1.0}),
             (1, 1, {"7": 1.0})]  # fmt: skip
    once = [(0, 0, {"5": 4.0, "6": 1.0}), (1, 1, {"5": 1.0, "7": 1.0})]
    metric = TokenOverlap(k=1, idf="smooth")
    both = [
        Evaluation(tuple(overlap(*parts)), {"token_overlap": metric}).summary["token_overlap"]
        for parts in (twice, once)
    ]
    assert both[0] == both[1]
    assert both[0]["count"] == 2


def test_the_words_of_one_text_may_be_of_several_classes():
    parts = [(0, 0, {"5": 1.0}), (0, 1, {"5": 1.0}), (1, 1, {"6": 3.0})]
    metric = TokenOverlap(k=1, idf="none")
    found = Evaluation(tuple(overlap(*parts)), {"token_overlap": metric})
    # Class 0 lists token 5, class 1 token 6 (3 > 1): nothing in common.
    assert found.summary["token_overlap"]["mean"] == 0.0
    assert found.summary["token_overlap"]["count"] == 2


def test_a_ratio_counts_each_text_once():
    counts = [(0, 1, 2), (0, 2, 2), (1, 0, 3)]
    records = [
        record(text, {"precision_at_k": Measured(float(c), detail={"count": c, "length": n})})
        for text, c, n in counts
    ]
    metric = {"precision_at_k": PrecisionAtK(report="ratio")}
    found = Evaluation(tuple(records), metric).summary["precision_at_k"]
    assert found["mean"] == pytest.approx(100 * 1.5 / 5)
    assert found["count"] == 2


def test_a_text_with_one_class_left_out_is_not_said_to_be_left_out():
    equal = "all scores are equal."
    whole, none = {"aopc": Measured(0.5)}, {"skipped": {"aopc": equal}}
    records = (record(0, whole), record(0, {}, **none), record(1, {}, **none),
               record(1, {}, **none), record(2, whole))  # fmt: skip
    found = Evaluation(records, {"aopc": AreaOverPerturbationCurve()})
    assert found.notes == (
        f"1 of 3 texts was only in part measured by aopc (attcat): {equal}",
        f"1 of 3 texts was not measured by aopc (attcat): {equal}",
    )
    assert [one["partly"] for one in found.to_dict()["left_out"]] == [True, False]
    assert found.summary["aopc"]["count"] == 2
    shown = " ".join(re.sub(r"<[^>]*>", " ", page(found)).split())
    assert "attcat only in part measured by aopc 1 of 3" in shown
    assert "attcat not measured by aopc 1 of 3" in shown


def test_labels_still_go_with_texts_of_several_classes():
    """The number of explanations a text, told by the labels, is the same for each text."""
    explainer = planted()
    xs = [scored(explainer, [5, 6, 7], [1, 2, 3], target=t) for _ in range(2) for t in (0, 1)]
    found = explainer.evaluate(xs, "aopc", labels=[0, 1])
    assert [r.text for r in found.records] == [0, 0, 1, 1]
    assert found.summary["aopc"]["count"] == 2
