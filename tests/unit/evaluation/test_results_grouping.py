"""Whose explanation is whose, and that texts are counted where each has several."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertForTokenClassification

from tests.helpers.api_server import make_language_model
from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.tiny import randomize_weights, tiny_bert, tiny_config
from tests.helpers.tolerance import assert_close
from tokenlight import Continuation, Explainer
from tokenlight.data.intervals import bootstrap_mean
from tokenlight.evaluation.measurement_records import Record
from tokenlight.evaluation.report import render_evaluation_page
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file, explain_part
from tokenlight.files.tables import Example
from tokenlight.metrics.aopc import AreaOverPerturbationCurve
from tokenlight.metrics.base import Measurement
from tokenlight.metrics.precision_at_k import PrecisionAtK
from tokenlight.metrics.token_overlap import TokenOverlap

TEXTS = ["the film", "we love this dull old movie", "good"]
ALL_TARGETS = Experiment(["attcat", "random"], ["aopc"], {"target": "all"})


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


@pytest.fixture
def tagger(tokenizer):
    model = randomize_weights(BertForTokenClassification(tiny_config(num_labels=3)), torch.float32)
    return Explainer(model, tokenizer, name="words")


def test_every_word_is_an_explanation_of_its_own_text(tagger, tmp_path):
    examples = [Example(text) for text in TEXTS]
    attributions, refused = explain_part(tagger, examples, ALL_TARGETS)
    assert refused == []
    for i, text in enumerate(TEXTS):
        assert {attribution.row.texts for attribution in attributions[i]} == {(text,)}
        assert [attribution.method for attribution in attributions[i]] == ["attcat"] * len(text.split()) + [
            "random"
        ] * len(text.split())  # fmt: skip
    evaluation, refused = evaluate_file(tagger, examples, ALL_TARGETS, tmp_path)
    assert refused == []
    assert [r.text_index for r in evaluation.records] == [0] * 4 + [1] * 12 + [2] * 2
    assert evaluation.by_method["attcat"].summary["aopc"]["count"] == 3
    for record in evaluation.records[:2]:  # each word agrees with the other method's view of itself
        assert set(record.rank_correlations) == {"random"}


def test_evaluate_counts_the_words_of_one_text_as_one_text(tagger):
    attributions = tagger.explain(TEXTS, method=["attcat", "random"], target="all")
    rows = tagger.evaluate(attributions, "aopc").rows
    assert [row["text"] for row in rows] == [0] * 4 + [1] * 12 + [2] * 2


def test_each_continuation_is_an_explanation_of_its_own_prompt(tmp_path):
    writer = make_language_model()
    prompts = ["the film is", "we love this old"]
    job = Experiment(["attcat", "random"], ["aopc"], {"target": Continuation(max_new_tokens=3)})
    expected = {i: writer.explain([p], ["attcat", "random"], Continuation(max_new_tokens=3))
                for i, p in enumerate(prompts)}  # fmt: skip
    attributions, _ = explain_part(writer, [Example(p) for p in prompts], job)
    for i, expected_attributions in expected.items():
        assert [(attribution.method, attribution.row.ids) for attribution in attributions[i]] == [
            (attribution.method, attribution.row.ids) for attribution in expected_attributions
        ]
    evaluation, refused = evaluate_file(writer, [Example(p) for p in prompts], job, tmp_path)
    assert refused == []
    assert [r.text_index for r in evaluation.records] == [
        i for i, attributions in expected.items() for _ in attributions
    ]
    assert evaluation.by_method["random"].summary["aopc"]["count"] == 2
    expected_attributions = [attribution for listed in expected.values() for attribution in listed]
    assert [row["text"] for row in writer.evaluate(expected_attributions, "aopc").rows] == [
        r.text_index for r in evaluation.records
    ]


def test_classes_are_averaged_and_texts_are_counted(explainer, tmp_path):
    examples = [Example(text) for text in TEXTS]
    evaluation, _ = evaluate_file(
        explainer, examples, Experiment(["attcat"], ["aopc"], ALL_TARGETS.explain_options), tmp_path
    )
    assert len(evaluation.rows) == 9
    values = np.array([row["aopc"] for row in evaluation.rows]).reshape(3, 3)
    summary = evaluation.summary["aopc"]
    expected = bootstrap_mean(values.mean(axis=1))
    assert summary["count"] == 3
    assert summary["mean"] == pytest.approx(values.mean())
    assert (summary["low"], summary["high"]) == pytest.approx((expected.low, expected.high))
    assert {interval.count for interval in evaluation.curves["aopc"][1]} == {3}
    assert re.findall(r"· \d+ texts?", render_evaluation_page(evaluation)) == ["· 3 texts"]


def test_agreement_is_counted_by_texts(explainer, tmp_path):
    evaluation, _ = evaluate_file(
        explainer, [Example(text) for text in TEXTS[:2]], ALL_TARGETS, tmp_path
    )
    assert {interval.count for interval in evaluation.agreement.pairs.values()} == {2}


def record(text, measured, method="attcat", **more):
    return Record(text, method, "positive", "positive", None, 9, measured, **more)


def test_one_explanation_per_text_has_the_same_summary_as_before():
    values = [0.1, 0.5, 0.2, 0.9]
    records = [record(i, {"aopc": Measurement(value)}) for i, value in enumerate(values)]
    summary = Evaluation(tuple(records), {"aopc": AreaOverPerturbationCurve()}).summary["aopc"]
    expected = bootstrap_mean(values)
    assert [summary[k] for k in ("mean", "low", "high", "count")] == [
        expected.mean, expected.low, expected.high, 4,
    ]  # fmt: skip


def make_overlap_records(*parts):
    """Parts: (text, class, {token: weight})."""
    return [
        record(text, {"token_overlap": Measurement(
            float("nan"), detail={"class": label, "weights": weights})})
        for text, label, weights in parts
    ]  # fmt: skip


def test_the_overlap_of_classes_draws_texts_and_sums_all_their_explanations():
    twice = [(0, 0, {"5": 1.0, "6": 2.0}), (0, 0, {"5": 3.0, "6": -1.0}), (1, 1, {"5": 1.0}),
             (1, 1, {"7": 1.0})]  # fmt: skip
    once = [(0, 0, {"5": 4.0, "6": 1.0}), (1, 1, {"5": 1.0, "7": 1.0})]
    metric = TokenOverlap(k=1, idf="smooth")
    pair = [
        Evaluation(tuple(make_overlap_records(*parts)), {"token_overlap": metric}).summary[
            "token_overlap"
        ]
        for parts in (twice, once)
    ]
    assert pair[0] == pair[1]
    assert pair[0]["count"] == 2


def test_the_words_of_one_text_may_be_of_several_classes():
    parts = [(0, 0, {"5": 1.0}), (0, 1, {"5": 1.0}), (1, 1, {"6": 3.0})]
    metric = TokenOverlap(k=1, idf="none")
    evaluation = Evaluation(tuple(make_overlap_records(*parts)), {"token_overlap": metric})
    # Class 0 lists token 5, class 1 token 6 (3 > 1): nothing in common.
    assert evaluation.summary["token_overlap"]["mean"] == 0.0
    assert evaluation.summary["token_overlap"]["count"] == 2


def test_a_ratio_counts_each_text_once():
    counts = [(0, 1, 2), (0, 2, 2), (1, 0, 3)]
    records = [
        record(text, {"precision_at_k": Measurement(float(c), detail={"count": c, "length": n})})
        for text, c, n in counts
    ]
    metric = {"precision_at_k": PrecisionAtK(report="ratio")}
    summary = Evaluation(tuple(records), metric).summary["precision_at_k"]
    assert summary["mean"] == pytest.approx(100 * 1.5 / 5)
    assert summary["count"] == 2


def test_a_text_with_one_class_left_out_is_not_counted_as_left_out():
    equal = "all scores are equal."
    original = {"aopc": Measurement(0.5)}
    none = {"skip_reasons": {"aopc": equal}}
    records = (record(0, original), record(0, {}, **none), record(1, {}, **none),
               record(1, {}, **none), record(2, original))  # fmt: skip
    evaluation = Evaluation(records, {"aopc": AreaOverPerturbationCurve()})
    assert evaluation.notes == (
        f"1 of 3 texts was only in part measured by aopc (attcat): {equal}",
        f"1 of 3 texts was not measured by aopc (attcat): {equal}",
    )
    assert [omission["is_partial"] for omission in evaluation.to_dict()["omissions"]] == [
        True,
        False,
    ]
    assert evaluation.summary["aopc"]["count"] == 2
    page_text = " ".join(re.sub(r"<[^>]*>", " ", render_evaluation_page(evaluation)).split())
    assert "attcat only in part measured by aopc 1 of 3" in page_text
    assert "attcat not measured by aopc 1 of 3" in page_text


def test_labels_still_go_with_texts_of_several_classes():
    """The number of explanations a text, told by the labels, is the same for each text."""
    explainer = make_planted_explainer()
    attributions = [
        make_attribution(explainer, [5, 6, 7], [1, 2, 3], target=t)
        for _ in range(2)
        for t in (0, 1)
    ]
    evaluation = explainer.evaluate(attributions, "aopc", labels=[0, 1])
    assert [r.text_index for r in evaluation.records] == [0, 0, 1, 1]
    assert evaluation.summary["aopc"]["count"] == 2


def test_differences_draw_texts_and_not_their_classes():
    """Classes of one text go together: the interval is that of each text's mean difference."""
    generator = np.random.default_rng(5)
    texts = 12
    classes = 3
    shared = generator.normal(size=texts)  # what all classes of a text have in common
    gaps = shared[:, None] + 0.01 * generator.normal(size=(texts, classes))
    records = []
    for text in range(texts):
        for label in range(classes):
            for method, value in (("attcat", 1.0), ("random", 1.0 + gaps[text, label])):
                attributions = record(text, {"aopc": Measurement(float(value))}, method)
                records.append(replace(attributions, target=str(label)))
    differences = Evaluation(tuple(records), {"aopc": AreaOverPerturbationCurve()}).differences
    interval = differences["aopc"]["random"]
    expected = bootstrap_mean(gaps.mean(axis=1).tolist())
    assert interval.count == texts
    assert_close(
        [interval.mean, interval.low, interval.high], [expected.mean, expected.low, expected.high]
    )
    # An interval that took each class for a text would be narrower by the root of their number.
    narrow = bootstrap_mean(gaps.ravel().tolist())
    assert interval.high - interval.low > 1.5 * (narrow.high - narrow.low)
