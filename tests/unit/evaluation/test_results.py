"""Results of an evaluation: rows, summaries, tables and files."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput, MissingExtra

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]


def make_explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


@pytest.fixture
def explainer(tokenizer):
    return make_explainer(tokenizer)


@pytest.fixture(scope="module")
def evaluation_of_three_methods(tokenizer):
    explainer = make_explainer(tokenizer)
    attributions = explainer.explain(TEXTS, method=["attcat", "random", ("random", {"seed": 9})])
    return explainer.evaluate(attributions, ["aopc", "lodds"])


def test_several_methods_are_summarized_separately(evaluation_of_three_methods):
    evaluation = evaluation_of_three_methods
    names = list(evaluation.by_method)
    assert names[0] == "attcat"
    assert len(names) == 3
    assert names[1].startswith("random")
    attcat = [row["aopc"] for row in evaluation.rows if row["method"] == "attcat"]
    assert evaluation.by_method["attcat"].summary["aopc"]["mean"] == pytest.approx(np.mean(attcat))


def test_the_rows_of_several_methods_are_grouped_by_text(evaluation_of_three_methods):
    rows = evaluation_of_three_methods.rows
    assert len(rows) == 12
    assert [row["text"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_table_of_several_methods_has_a_line_for_each(evaluation_of_three_methods):
    table = evaluation_of_three_methods.format_table().splitlines()
    assert table[0].split() == ["method", "n", "aopc", "↑", "lodds", "↓"]
    assert len(table) == 4
    assert "<Evaluation of 12 explanations>" in repr(evaluation_of_three_methods)


def test_agreement_between_methods_is_measured(explainer):
    attributions = explainer.explain(TEXTS, method=["attcat", "cat", "random"])
    agreement = explainer.evaluate(attributions, "aopc").agreement
    assert agreement.methods == ("attcat", "cat", "random")
    np.testing.assert_allclose(agreement.matrix, agreement.matrix.T)
    np.testing.assert_allclose(np.diag(agreement.matrix), 1)
    assert agreement.matrix[0, 1] > agreement.matrix[0, 2]
    with expect_error(BadInput, "agreement-of-one-method"):
        _ = explainer.evaluate(attributions[::3], "aopc").agreement


def test_one_metric_with_two_option_sets_has_two_columns(explainer):
    attribution = explainer.explain(TEXTS[0], "attcat")
    evaluation = explainer.evaluate(attribution, ["aopc", ("aopc", {"order": "bottom"})])
    assert list(evaluation.summary) == ["aopc", "aopc(order=bottom)"]
    only = explainer.evaluate(attribution, [("aopc", {"order": "bottom"})])
    assert list(only.summary) == ["aopc"]


def test_labels_go_with_texts_not_with_explanations(explainer):
    attributions = explainer.explain(TEXTS, method=["attcat", "random"])
    labels = ["negative", 1, "positive", "2"]
    evaluation = explainer.evaluate(attributions, "hiding_game", labels=labels)
    assert [row["label"] for row in evaluation.rows[::2]] == [
        "negative",
        "neutral",
        "positive",
        "positive",
    ]
    with expect_error(BadInput, "wrong-number-per-text", mentions="3 labels"):
        explainer.evaluate(attributions, "hiding_game", labels=labels[:3])
    with expect_error(BadInput, "wrong-number-per-text", mentions="2 spans"):
        explainer.evaluate(attributions, "hiding_game", labels=labels, spans=[None, None])


def test_the_same_text_twice_stays_two_texts(explainer):
    attributions = explainer.explain([TEXTS[0], TEXTS[0]], method=["attcat", "random"])
    assert [row["text"] for row in explainer.evaluate(attributions, "aopc").rows] == [0, 0, 1, 1]


def test_spans_are_read_in_every_form(explainer):
    attribution = explainer.explain(TEXTS[0], "attcat")
    for spans in ([(4, 8)], [[(4, 8)]], [[(0, 4, 8)]]):
        row = explainer.evaluate(attribution, "rationale", spans=spans).rows[0]
        assert row["rationale"] is not None
        assert row["rationale.f1"] in (0.0, 1.0)
    for spans, code in (([[(8, 4)]], "span-outside-text"), ([["ab"]], "span-format")):
        with expect_error(BadInput, code):
            explainer.evaluate(attribution, "rationale", spans=spans)
    evaluation = explainer.evaluate(attribution, "rationale", spans=[None])
    assert (
        evaluation.rows[0]["rationale.skipped"]
        == "The text has no marked rationale. Give spans for it, or leave it out."
    )


def test_precision_at_k_of_a_question_is_measured_on_its_answer(tokenizer):
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    attribution = explainer.explain(
        Question(question="who sat", context="the cat sat on the mat"), "attcat"
    )
    evaluation = explainer.evaluate(
        attribution, [("precision_at_k", {"k": 20}), "aopc"], spans=[(4, 7)]
    )
    assert evaluation.rows[0]["precision_at_k"] == 1
    assert evaluation.rows[0]["aopc"] is not None


def test_an_empty_list_cannot_be_evaluated(explainer):
    with expect_error(BadInput, "not-attributions"):
        explainer.evaluate([], "aopc")


def test_an_evaluation_is_saved_with_rows_summary_and_report(explainer, tmp_path):
    import pyarrow.parquet

    attributions = explainer.explain(TEXTS, method=["attcat", "random"])
    evaluation = explainer.evaluate(
        attributions, ["aopc", "hiding_game", "token_overlap"], labels=[0, 1, 2, None]
    )
    evaluation.save(tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "curves.png",
        "report.html",
        "rows.parquet",
        "summary.json",
    ]
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "rows.parquet").to_pylist()
    assert [row["aopc"] for row in rows] == [row["aopc"] for row in evaluation.rows]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    page = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
    documented_keys = re.findall(
        r"^\| `(\w+)` \|", page.partition("<!-- summary keys -->")[2], re.M
    )
    assert documented_keys == list(summary)
    assert summary["methods"]["attcat"]["aopc"]["count"] == 4
    assert (tmp_path / "out" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(evaluation.to_pandas()) == 8


def test_the_report_escapes_what_it_shows(explainer):
    from tokenlight.evaluation.report import render_evaluation_page

    attribution = replace(
        explainer.explain(TEXTS[0], "attcat"), method="<script>alert(1)</script>$x$"
    )
    report = render_evaluation_page(explainer.evaluate([attribution], "aopc"), title="<b>")
    assert "<script" not in report
    assert "&lt;script&gt;" in report
    assert "<b>" not in report


def test_a_missing_library_is_named(explainer, monkeypatch):
    attributions = explainer.explain(TEXTS[:2], method=["attcat"])
    evaluation = explainer.evaluate(attributions, "aopc")
    for library in ("scipy", "pyarrow", "matplotlib"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match="scipy"):
        _ = evaluation.summary
    from tokenlight.evaluation.report import draw_figure
    from tokenlight.files.write import write_parquet

    with pytest.raises(MissingExtra, match="matplotlib"):
        draw_figure(evaluation)
    with pytest.raises(MissingExtra, match="pyarrow"):
        write_parquet(None, [])
