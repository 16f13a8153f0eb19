"""What an evaluation does not cover is told in the terminal, in summary.json and in the report."""

from __future__ import annotations

import gzip
import html
import json
import re

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.cli.evaluate import evaluate
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.measurement_records import Failure, Record
from tokenlight.evaluation.report import render_evaluation_page
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example
from tokenlight.metrics.aopc import AreaOverPerturbationCurve

LONG = "a dull film " * 40
SHORT = "we love this movie"
EMPTY = "   "
app = typer.Typer()
app.command()(evaluate)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_lines(path, texts, label="negative"):
    path.write_text("\n".join(json.dumps({"text": t, "label": label}) for t in texts))
    return path


def read_words(source):
    """The words of a page, without its marks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", source)).split())


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def test_terminal_summary_and_report_list_truncated_and_refused_texts(bert_folder, tmp_path):
    limit = Explainer.from_pretrained(bert_folder).max_tokens
    data = write_lines(tmp_path / "longs.jsonl", [LONG, SHORT, EMPTY])
    out = tmp_path / "out"
    outcome = run(data, "-m", bert_folder, "-x", "attcat", "-x", "random", "--metric", "aopc",
               "-o", out)  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    cut = f"1 of 3 texts was truncated to {limit} tokens (long=truncate)."
    assert cut in outcome.stderr
    assert "1 of 3 texts was not explained by attcat, random: The text '   ' is" in outcome.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["truncation"] == {"num_truncated": 1, "num_texts": 3, "lengths": [limit]}
    omissions = [
        (omission["method"], omission["metric"], omission["num_omitted"], omission["num_texts"])
        for omission in summary["omissions"]
    ]
    assert omissions == [("attcat", None, 1, 3), ("random", None, 1, 3)]
    assert all("is empty" in omission["reason"] for omission in summary["omissions"])
    report = read_words((out / "report.html").read_text())
    assert cut in report
    assert "attcat, random not explained 1 of 3 The text" in report


def test_a_complete_evaluation_reports_no_omissions(bert_folder, tmp_path):
    data = write_lines(tmp_path / "shorts.jsonl", [SHORT, "a dull plot"])
    out = tmp_path / "out"
    outcome = run(data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "-o", out)
    assert outcome.exit_code == 0, outcome.output
    assert "cut" not in outcome.output
    assert "not explained" not in outcome.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["truncation"] == {"num_truncated": 0, "num_texts": 2, "lengths": []}
    assert summary["omissions"] == []
    source = (out / "report.html").read_text()
    assert "Left out" not in source
    assert "was cut" not in source


def test_a_file_of_refused_texts_only_still_has_a_report(bert_folder, tmp_path):
    data = write_lines(tmp_path / "empty.jsonl", [EMPTY])
    out = tmp_path / "out"
    outcome = run(data, "-m", bert_folder, "-x", "attcat", "-o", out)
    assert outcome.exit_code == 2, outcome.output
    assert "1 of 1 text was not explained by attcat" in outcome.stderr
    assert "error: None of the 1 texts could be measured" in outcome.stderr
    assert "not explained 1 of 1" in read_words((out / "report.html").read_text())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "nonsense"), "Unknown label 'nonsense'"),
        (("--target", "7"), "Label number 7 does not exist"),
        (("-x", "lime:num_samples=0"), "samples"),
        (("-x", "gae", "-x", "attcat", "-x", "gae"), "--method gae is given twice. Leave one out."),
    ],
)
def test_an_option_that_is_wrong_for_every_text_creates_no_folder(
    bert_folder, tmp_path, options, message
):
    data = write_lines(tmp_path / "a.jsonl", [SHORT])
    out = tmp_path / "out"
    outcome = run(data, "-m", bert_folder, *options, "-o", out)
    assert outcome.exit_code == 2, outcome.output
    assert message in outcome.stderr
    assert not out.exists()


def test_another_target_in_the_same_folder_is_refused(bert_folder, tmp_path):
    data = write_lines(tmp_path / "a.jsonl", [SHORT])
    out = tmp_path / "out"
    arguments = (data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "-o", out)
    assert run(*arguments).exit_code == 0
    outcome = run(*arguments, "--target", "positive", "--long", "stride")
    assert outcome.exit_code == 2
    assert (
        "other settings: long (was truncate, now stride); target (was predicted, now positive)."
        in (" ".join(outcome.stderr.split()))
    )
    outcome = run(*arguments, "--target", "positive")
    assert "other settings: target (was predicted, now positive)." in outcome.stderr


def test_an_invalid_mark_fails_only_metrics_that_read_marks(explainer, tmp_path):
    examples = [Example(SHORT, spans=[(0, 999)])]
    evaluation, refused = evaluate_file(
        explainer, examples, Experiment(["attcat"], ["aopc"]), tmp_path / "a"
    )
    assert len(evaluation.records) == 1
    assert not refused
    _, refused = evaluate_file(
        explainer, examples, Experiment(["attcat"], ["rationale"]), tmp_path / "b"
    )
    assert "outside the text" in refused[0].reason


def test_the_report_states_what_was_evaluated_and_how(bert_folder, tmp_path):
    data = write_lines(tmp_path / "<b>reviews.jsonl", [SHORT, LONG])
    out = tmp_path / "out"
    outcome = run(data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "--target", "positive",
               "--long", "stride", "--seed", "7", "-o", out)  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    about = json.loads((out / "summary.json").read_text())["metadata"]
    assert about.pop("versions").startswith("tokenlight ")
    assert about == {
        "model": str(bert_folder),
        "data": "<b>reviews.jsonl",
        "columns": "text from text, label from label",
        "texts": "2",
        "target": "positive",
        "long": "stride",
        "seed": "7",
    }
    source = (out / "report.html").read_text()
    for name, value in about.items():
        assert f"{name} {value}" in read_words(source)
    assert f"torch {torch.__version__}" in read_words(source)
    assert "<b>" not in source
    assert str(tmp_path / "<b>") not in html.unescape(source)  # the name of the file, not its place


def test_a_resumed_evaluation_has_the_same_report(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "PART_SIZE", 2)
    examples = [Example(text) for text in (LONG, SHORT, EMPTY, LONG, EMPTY, SHORT)]
    job = Experiment(
        [("attcat", {}), ("random", {})], [("aopc", {})], {"long": "truncate"}, 0, "six.txt"
    )
    real = resuming._compute_part
    turns = []

    def interrupt_later(*arguments):
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    evaluation, _ = evaluate_file(explainer, examples, job, tmp_path / "whole")
    monkeypatch.setattr(resuming, "_compute_part", interrupt_later)
    with pytest.raises(KeyboardInterrupt):
        evaluate_file(explainer, examples, job, tmp_path / "part")
    resumed, _ = evaluate_file(explainer, examples, job, tmp_path / "part")
    assert len(turns) == 4  # the first shard was read, not made again
    assert evaluation.notes == (
        f"2 of 6 texts were truncated to {explainer.max_tokens} tokens (long=truncate).",
        "2 of 6 texts were not explained by attcat, random: The text '   ' is empty. Give a text "
        "with at least one word.",
    )
    assert resumed.to_dict() == evaluation.to_dict()
    assert render_evaluation_page(resumed) == render_evaluation_page(evaluation)


def test_other_versions_of_the_libraries_are_refused_by_the_folder(
    explainer, tmp_path, monkeypatch
):
    job = Experiment([("attcat", {})], [("aopc", {})])
    evaluate_file(explainer, [Example(SHORT)], job, tmp_path)
    monkeypatch.setattr(resuming, "get_library_versions", lambda: {"torch": "0.1"})
    with pytest.raises(BadInput, match=r"versions \(was tokenlight .*, now torch 0.1\)"):
        evaluate_file(explainer, [Example(SHORT)], job, tmp_path)


def test_a_text_that_cannot_be_measured_is_not_reported_as_unexplained(
    explainer, tmp_path, monkeypatch
):
    def raise_error(*_, **__):
        raise ValueError("bad luck")

    monkeypatch.setattr(resuming, "measure", raise_error)
    job = Experiment([("attcat", {})], [("aopc", {})])
    evaluation, _ = evaluate_file(explainer, [Example(SHORT)], job, tmp_path)
    note = "1 of 1 text was not measured by any metric (attcat): Unexpected ValueError: bad luck"
    assert evaluation.notes == (note,)


def test_failures_of_two_variants_of_a_method_are_distinguished(explainer, tmp_path):
    job = Experiment([("gradcam", {"layer": 99}), ("gradcam", {"layer": 98})], [("aopc", {})])
    evaluation, _ = evaluate_file(explainer, [Example(SHORT), Example("dull")], job, tmp_path)
    omissions = [
        (omission["method"], omission["num_omitted"])
        for omission in evaluation.to_dict()["omissions"]
    ]
    assert omissions == [("gradcam(layer=99)", 2), ("gradcam(layer=98)", 2)]


def record(text, method, **more):
    return Record(text, method, "positive", "positive", None, 9, {}, **more)


def test_texts_are_counted_and_not_explanations_nor_lines():
    """Two methods, two targets, and reasons that differ in a number: one line for each metric."""
    records = [
        record(text, method, skip_reasons={"aopc": f"it has {text} tokens."})
        for text in (600, 700)
        for method in ("attcat", "gae", "gae")
    ]
    evaluation = Evaluation(
        (*records, record(1, "attcat"), record(1, "gae")), {"aopc": AreaOverPerturbationCurve()}
    )
    assert len(evaluation.to_dict()["omissions"]) == 4
    sentence = (
        "2 of 3 texts were not measured by aopc (attcat, gae): for example: it has 600 tokens."
    )
    assert evaluation.notes == (sentence,)


@pytest.mark.parametrize(
    "reason",
    [
        "the text {0!r} is no prompt, says the model's tokenizer.",
        "the model's labels lack {0!r} (of {1} tokens).",
        "the word ‘{0}’ has no token.",
    ],
)
def test_reasons_that_quote_their_text_become_one_line(reason):
    texts = ["good", "don't", 'a "b" film', "both ' and \" here", "two\nlines", ""]
    refusals = tuple(
        Failure(i, "attcat", reason.format(text, i)) for i, text in enumerate(texts)
    )  # fmt: skip
    evaluation = Evaluation(
        (record(9, "attcat"),), {"aopc": AreaOverPerturbationCurve()}, 0, {}, refusals
    )
    (note,) = evaluation.notes
    assert note == f"6 of 7 texts were not explained by attcat: for example: {refusals[0].reason}"
    assert len(evaluation.to_dict()["omissions"]) == 6  # the file keeps each


def test_reasons_that_differ_in_their_own_words_stay_apart():
    refusals = (
        Failure(0, "attcat", "the model's head isn't known."),
        Failure(1, "attcat", "the model's text isn't known."),
    )
    evaluation = Evaluation(
        (record(9, "attcat"),), {"aopc": AreaOverPerturbationCurve()}, 0, {}, refusals
    )
    assert len(evaluation.notes) == 2


def test_methods_that_leave_out_different_texts_have_their_own_lines():
    refusals = (Failure(0, "attcat", "no."), Failure(1, "gae", "no."))
    evaluation = Evaluation(
        (record(0, "gae"), record(1, "attcat")),
        {"aopc": AreaOverPerturbationCurve()},
        0,
        {},
        refusals,
    )
    assert evaluation.notes == (
        "1 of 2 texts was not explained by attcat: no.",
        "1 of 2 texts was not explained by gae: no.",
    )
    assert evaluation.by_method["gae"].notes == ("1 of 2 texts was not explained by gae: no.",)


def test_texts_cut_to_several_lengths_name_the_shortest_and_the_longest():
    lengths = {0: 9, 1: 7, 2: 8}
    records = [
        Record(text, "attcat", "positive", "positive", None, tokens, {}, num_truncated=3)
        for text, tokens in lengths.items()
    ]
    evaluation = Evaluation(tuple(records), {"aopc": AreaOverPerturbationCurve()})
    assert evaluation.notes == ("3 of 3 texts were truncated to 7 to 9 tokens (long=truncate).",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "good", "label": "positive"}\n\n{"text": "bad", "label": "happy"}\n',
            "line 3 of a.jsonl: Unknown label 'happy'. Known: negative, neutral, positive. Rename it to one "
            "of these, or leave the cell empty where a text has no label.",
        ),
        (
            "a.jsonl.gz",
            '\n{"text": "bad", "label": "all"}\n',
            "line 2 of a.jsonl.gz: Unknown label 'all'. Known: negative, neutral, positive.",
        ),
        (
            "a.csv",
            "text,label\ngood,positive\nbad,predicted\n",
            "row 2 of a.csv: Unknown label 'predicted'. Known: negative, neutral, positive.",
        ),
        ("a.tsv", "text\tlabel\ngood\t7\n", "row 1 of a.tsv: Label number 7 does not exist"),
        (
            "a.json",
            '[{"text": "good", "label": 0.5}]',
            "row 1 of a.json: Unknown label '0.5'. Known: negative, neutral, positive.",
        ),
    ],
)
def test_a_wrong_label_is_named_with_its_row_and_the_labels_there_are(
    bert_folder, tmp_path, name, content, message
):
    path = tmp_path / name
    packed = name.endswith(".gz")
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    outcome = run(path, "-m", bert_folder, "-o", tmp_path / "out")
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.output.split())
    assert not (tmp_path / "out" / "parts").exists()


def test_a_wrong_label_without_a_file_is_named_by_its_text(explainer, tmp_path):
    examples = [Example(SHORT, "positive"), Example(SHORT, "wrong")]
    with pytest.raises(UnknownName, match=r"^text 1 \(counted from 0\): Unknown label 'wrong'"):
        evaluate_file(explainer, examples, Experiment([("attcat", {})], [("aopc", {})]), tmp_path)
