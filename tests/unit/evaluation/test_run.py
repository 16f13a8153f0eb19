"""Whole data files: interrupted and resumed, with texts and methods that are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.helpers.expect import expect_error
from tests.helpers.tiny import tiny_bert, tiny_bert_qa
from tokenlight import Explainer, Question
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, count_finished_texts, evaluate_file
from tokenlight.files.tables import Example

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]
JOB = Experiment([("attcat", {}), ("random", {})], [("aopc", {}), ("hiding_game", {})])


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def make_examples(count=10):
    return [Example(f"{TEXTS[i % 4]} {'fun ' * (i + 1)}", i % 3) for i in range(count)]


def format_rows(evaluation: Evaluation):
    return [json.dumps(row) for row in evaluation.rows]


def test_an_interrupted_evaluation_resumes_where_it_stopped(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "PART_SIZE", 3)
    evaluation, _ = evaluate_file(explainer, make_examples(), JOB, tmp_path / "whole")
    real = resuming._compute_part
    shards = []

    def interrupt_later(*arguments):
        shards.append(arguments[-1])
        if len(shards) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(resuming, "_compute_part", interrupt_later)
    with pytest.raises(KeyboardInterrupt):
        evaluate_file(explainer, make_examples(), JOB, tmp_path / "part")
    assert count_finished_texts(tmp_path / "part") == 6
    resumed, refused = evaluate_file(explainer, make_examples(), JOB, tmp_path / "part")
    assert shards == [0, 3, 6, 6, 9]  # finished shards are not repeated
    assert format_rows(resumed) == format_rows(evaluation)
    assert refused == []
    assert [row["text"] for row in resumed.rows[::2]] == list(range(10))


def test_other_settings_in_the_same_folder_are_refused(explainer, tmp_path):
    evaluate_file(explainer, make_examples(2), JOB, tmp_path)
    with pytest.raises(BadInput, match=r"other settings: seed \(was 0, now 1\)"):
        evaluate_file(explainer, make_examples(2), replace(JOB, seed=1), tmp_path)
    with pytest.raises(BadInput, match=r"texts \(was 2, now 3\)"):
        evaluate_file(explainer, make_examples(3), JOB, tmp_path)


def test_every_character_of_an_answer_survives_its_file(tokenizer, tmp_path):
    """JSON leaves characters alone that str.splitlines() takes for the end of a line."""
    explainer = Explainer(tiny_bert_qa(), tokenizer)
    context = "the cat sat\u2028on\u2029the\u0085red mat"
    examples = [
        Example(Question("who sat", context), None, ((context.index("sat"), len(context)),))
    ]
    answer = {"target": "sat\u2028on\u2029the\u0085red"}
    job = Experiment([("attcat", {})], [("precision_at_k", {})], answer)
    for _ in range(2):
        evaluation, refused = evaluate_file(explainer, examples, job, tmp_path)
        assert refused == []
        assert evaluation.summary["precision_at_k"]["count"] == 1
    (part,) = (tmp_path / "parts").iterdir()
    assert "\u2028" in part.read_text("utf-8")  # else this test tests nothing


def test_a_retrained_model_of_the_same_name_is_refused_by_the_folder(explainer, tmp_path):
    evaluate_file(explainer, make_examples(2), JOB, tmp_path)
    evaluate_file(explainer, make_examples(2), JOB, tmp_path)
    with torch.no_grad():
        explainer.model.classifier.weight.add_(0.1)
    with pytest.raises(BadInput, match=r"other settings: weights \(was"):
        evaluate_file(explainer, make_examples(2), JOB, tmp_path)


def test_a_failing_text_does_not_stop_the_others(explainer, tmp_path):
    examples = [Example("good film", 1), Example("   ", 0), Example("a dull plot", 0)]
    evaluation, refused = evaluate_file(explainer, examples, JOB, tmp_path)
    assert [(r.text_index, r.method) for r in refused] == [(1, "attcat"), (1, "random")]
    assert "is empty" in refused[0].reason
    assert [row["text"] for row in evaluation.rows] == [0, 0, 2, 2]
    assert [row["label"] for row in evaluation.rows] == [
        "neutral",
        "neutral",
        "negative",
        "negative",
    ]


def test_an_unsupported_method_does_not_stop_the_others(explainer, tmp_path):
    job = replace(JOB, methods=[("attcat", {}), ("gradcam", {"layer": 99})])
    evaluation, refused = evaluate_file(explainer, make_examples(3), job, tmp_path)
    assert evaluation.methods == ("attcat",)
    assert {r.method for r in refused} == {"gradcam"}
    assert len(refused) == 3


def test_an_unknown_label_is_found_before_any_work(explainer, tmp_path):
    with expect_error(UnknownName, "unknown-true-label", mentions="'wrong'"):
        evaluate_file(explainer, [Example("good", "wrong")], JOB, tmp_path)
    assert not (tmp_path / "parts").exists()
