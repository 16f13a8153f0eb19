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

from tests.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.cli.evaluate import evaluate
from tokenlight.errors import BadInput, UnknownName
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.measure import Failure, Record
from tokenlight.evaluation.report import page
from tokenlight.evaluation.results import Evaluation
from tokenlight.evaluation.run import Experiment, evaluate_file
from tokenlight.files.tables import Example
from tokenlight.metrics.aopc import AreaOverPerturbationCurve

LONG, SHORT, EMPTY = "a dull film " * 40, "we love this movie", "   "
app = typer.Typer()
app.command()(evaluate)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def lines(place, texts, label="negative"):
    place.write_text("\n".join(json.dumps({"text": t, "label": label}) for t in texts))
    return place


def shown(source):
    """The words of a page, without its marks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", source)).split())


@pytest.fixture
def explainer(tokenizer):
    return Explainer(tiny_bert(dtype=torch.float32), tokenizer, name="tiny")


def test_terminal_summary_and_report_say_what_was_cut_and_what_was_refused(bert_folder, tmp_path):
    limit = Explainer.from_pretrained(bert_folder).max_tokens
    data, out = lines(tmp_path / "longs.jsonl", [LONG, SHORT, EMPTY]), tmp_path / "out"
    done = run(data, "-m", bert_folder, "-x", "attcat", "-x", "random", "--metric", "aopc",
               "-o", out)  # fmt: skip
    assert done.exit_code == 0, done.output
    cut = f"1 of 3 texts was cut to {limit} tokens (long=truncate)."
    assert cut in done.stderr
    assert "1 of 3 texts was not explained by attcat, random: the text '   ' is" in done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["cut"] == {"texts": 1, "of": 3, "tokens": [limit]}
    told = [(one["method"], one["metric"], one["texts"], one["of"]) for one in summary["left_out"]]
    assert told == [("attcat", None, 1, 3), ("random", None, 1, 3)]
    assert all("is empty" in one["reason"] for one in summary["left_out"])
    report = shown((out / "report.html").read_text())
    assert cut in report
    assert "attcat, random not explained 1 of 3 the text" in report


def test_nothing_left_out_is_nothing_said(bert_folder, tmp_path):
    data, out = lines(tmp_path / "shorts.jsonl", [SHORT, "a dull plot"]), tmp_path / "out"
    done = run(data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "-o", out)
    assert done.exit_code == 0, done.output
    assert "cut" not in done.output
    assert "not explained" not in done.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["cut"] == {"texts": 0, "of": 2, "tokens": []}
    assert summary["left_out"] == []
    source = (out / "report.html").read_text()
    assert "Left out" not in source
    assert "was cut" not in source


def test_a_file_of_refused_texts_only_still_has_a_report(bert_folder, tmp_path):
    data, out = lines(tmp_path / "empty.jsonl", [EMPTY]), tmp_path / "out"
    done = run(data, "-m", bert_folder, "-x", "attcat", "-o", out)
    assert done.exit_code == 2, done.output
    assert "1 of 1 text was not explained by attcat" in done.stderr
    assert "error: none of the 1 texts could be measured" in done.stderr
    assert "not explained 1 of 1" in shown((out / "report.html").read_text())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--target", "nonsense"), "unknown label 'nonsense'"),
        (("--target", "7"), "label number 7 does not exist"),
        (("-x", "lime:samples=0"), "samples"),
        (("-x", "gae", "-x", "attcat", "-x", "gae"), "--method gae is given twice; leave one out."),
    ],
)
def test_what_is_wrong_for_every_text_claims_no_folder(bert_folder, tmp_path, options, told):
    data, out = lines(tmp_path / "a.jsonl", [SHORT]), tmp_path / "out"
    done = run(data, "-m", bert_folder, *options, "-o", out)
    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert not out.exists()


def test_another_target_in_the_same_folder_is_named_in_words(bert_folder, tmp_path):
    data, out = lines(tmp_path / "a.jsonl", [SHORT]), tmp_path / "out"
    given = (data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "-o", out)
    assert run(*given).exit_code == 0
    done = run(*given, "--target", "positive", "--long", "stride")
    assert done.exit_code == 2
    assert (
        "other settings: long (was truncate, now stride); target (was predicted, now positive)."
        in (" ".join(done.stderr.split()))
    )
    done = run(*given, "--target", "positive")
    assert "other settings: target (was predicted, now positive)." in done.stderr


def test_a_wrong_mark_costs_only_metrics_that_read_marks(explainer, tmp_path):
    given = [Example(SHORT, spans=[(0, 999)])]
    found, refused = evaluate_file(
        explainer, given, Experiment(["attcat"], ["aopc"]), tmp_path / "a"
    )
    assert len(found.records) == 1
    assert not refused
    _, refused = evaluate_file(
        explainer, given, Experiment(["attcat"], ["rationale"]), tmp_path / "b"
    )
    assert "stands outside of the text" in refused[0].reason


def test_the_report_says_what_was_evaluated_and_how(bert_folder, tmp_path):
    data, out = lines(tmp_path / "<b>reviews.jsonl", [SHORT, LONG]), tmp_path / "out"
    done = run(data, "-m", bert_folder, "-x", "attcat", "--metric", "aopc", "--target", "positive",
               "--long", "stride", "--seed", "7", "-o", out)  # fmt: skip
    assert done.exit_code == 0, done.output
    about = json.loads((out / "summary.json").read_text())["about"]
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
        assert f"{name} {value}" in shown(source)
    assert f"torch {torch.__version__}" in shown(source)
    assert "<b>" not in source
    assert str(tmp_path / "<b>") not in html.unescape(source)  # the name of the file, not its place


def test_a_resumed_evaluation_says_the_same(explainer, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "SHARD", 2)
    given = [Example(text) for text in (LONG, SHORT, EMPTY, LONG, EMPTY, SHORT)]
    job = Experiment(
        [("attcat", {}), ("random", {})], [("aopc", {})], {"long": "truncate"}, 0, "six.txt"
    )
    real, turns = resuming._shard, []

    def interrupted(*given):
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return real(*given)

    whole, _ = evaluate_file(explainer, given, job, tmp_path / "whole")
    monkeypatch.setattr(resuming, "_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_file(explainer, given, job, tmp_path / "part")
    resumed, _ = evaluate_file(explainer, given, job, tmp_path / "part")
    assert len(turns) == 4  # the first shard was read, not made again
    assert whole.notes == (
        f"2 of 6 texts were cut to {explainer.max_tokens} tokens (long=truncate).",
        "2 of 6 texts were not explained by attcat, random: the text '   ' is empty; give a text "
        "with at least one word.",
    )
    assert resumed.to_dict() == whole.to_dict()
    assert page(resumed) == page(whole)


def test_other_versions_of_the_libraries_are_refused_by_the_folder(
    explainer, tmp_path, monkeypatch
):
    job = Experiment([("attcat", {})], [("aopc", {})])
    evaluate_file(explainer, [Example(SHORT)], job, tmp_path)
    monkeypatch.setattr(resuming, "versions", lambda: {"torch": "0.1"})
    with pytest.raises(BadInput, match=r"versions \(was tokenlight .*, now torch 0.1\)"):
        evaluate_file(explainer, [Example(SHORT)], job, tmp_path)


def test_what_could_not_be_measured_is_not_said_to_be_unexplained(explainer, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ValueError("bad luck")

    monkeypatch.setattr(resuming, "measure", broken)
    job = Experiment([("attcat", {})], [("aopc", {})])
    found, _ = evaluate_file(explainer, [Example(SHORT)], job, tmp_path)
    note = "1 of 1 text was not measured by any metric (attcat): unexpected ValueError: bad luck"
    assert found.notes == (note,)


def test_a_method_given_twice_is_told_apart_in_what_it_refuses(explainer, tmp_path):
    job = Experiment([("gradcam", {"layer": 99}), ("gradcam", {"layer": 98})], [("aopc", {})])
    found, _ = evaluate_file(explainer, [Example(SHORT), Example("dull")], job, tmp_path)
    told = [(one["method"], one["texts"]) for one in found.to_dict()["left_out"]]
    assert told == [("gradcam(layer=99)", 2), ("gradcam(layer=98)", 2)]


def record(text, method, **more):
    return Record(text, method, "positive", "positive", None, 9, {}, **more)


def test_texts_are_counted_and_not_explanations_nor_lines():
    """Two methods, two targets, and reasons that differ in a number: one line for each metric."""
    records = [
        record(text, method, skipped={"aopc": f"it has {text} tokens."})
        for text in (600, 700)
        for method in ("attcat", "gae", "gae")
    ]
    found = Evaluation(
        (*records, record(1, "attcat"), record(1, "gae")), {"aopc": AreaOverPerturbationCurve()}
    )
    assert len(found.to_dict()["left_out"]) == 4
    said = "2 of 3 texts were not measured by aopc (attcat, gae): for example: it has 600 tokens."
    assert found.notes == (said,)


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
    found = Evaluation(
        (record(9, "attcat"),), {"aopc": AreaOverPerturbationCurve()}, 0, {}, refusals
    )
    (note,) = found.notes
    assert note == f"6 of 7 texts were not explained by attcat: for example: {refusals[0].reason}"
    assert len(found.to_dict()["left_out"]) == 6  # the file keeps each


def test_reasons_that_differ_in_their_own_words_stay_apart():
    refusals = (
        Failure(0, "attcat", "the model's head isn't known."),
        Failure(1, "attcat", "the model's text isn't known."),
    )
    found = Evaluation(
        (record(9, "attcat"),), {"aopc": AreaOverPerturbationCurve()}, 0, {}, refusals
    )
    assert len(found.notes) == 2


def test_methods_that_leave_out_different_texts_have_their_own_lines():
    refusals = (Failure(0, "attcat", "no."), Failure(1, "gae", "no."))
    found = Evaluation(
        (record(0, "gae"), record(1, "attcat")),
        {"aopc": AreaOverPerturbationCurve()},
        0,
        {},
        refusals,
    )
    assert found.notes == (
        "1 of 2 texts was not explained by attcat: no.",
        "1 of 2 texts was not explained by gae: no.",
    )
    assert found.by_method["gae"].notes == ("1 of 2 texts was not explained by gae: no.",)


def test_texts_cut_to_several_lengths_name_the_shortest_and_the_longest():
    lengths = {0: 9, 1: 7, 2: 8}
    records = [
        Record(text, "attcat", "positive", "positive", None, tokens, {}, cut=3)
        for text, tokens in lengths.items()
    ]
    found = Evaluation(tuple(records), {"aopc": AreaOverPerturbationCurve()})
    assert found.notes == ("3 of 3 texts were cut to 7 to 9 tokens (long=truncate).",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "good", "label": "positive"}\n\n{"text": "bad", "label": "happy"}\n',
            "line 3 of a.jsonl: unknown label 'happy'. Known: negative, neutral, positive. Rename it to one "
            "of these, or leave the cell empty where a text has no label.",
        ),
        (
            "a.jsonl.gz",
            '\n{"text": "bad", "label": "all"}\n',
            "line 2 of a.jsonl.gz: unknown label 'all'. Known: negative, neutral, positive.",
        ),
        (
            "a.csv",
            "text,label\ngood,positive\nbad,predicted\n",
            "row 2 of a.csv: unknown label 'predicted'. Known: negative, neutral, positive.",
        ),
        ("a.tsv", "text\tlabel\ngood\t7\n", "row 1 of a.tsv: label number 7 does not exist"),
        (
            "a.json",
            '[{"text": "good", "label": 0.5}]',
            "row 1 of a.json: unknown label '0.5'. Known: negative, neutral, positive.",
        ),
    ],
)
def test_a_wrong_label_is_named_with_its_row_and_the_labels_there_are(
    bert_folder, tmp_path, name, content, message
):
    place = tmp_path / name
    packed = name.endswith(".gz")
    place.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    done = run(place, "-m", bert_folder, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not (tmp_path / "out" / "parts").exists()


def test_a_wrong_label_without_a_file_is_named_by_its_text(explainer, tmp_path):
    given = [Example(SHORT, "positive"), Example(SHORT, "wrong")]
    with pytest.raises(UnknownName, match=r"^text 1 \(counted from 0\): unknown label 'wrong'"):
        evaluate_file(explainer, given, Experiment([("attcat", {})], [("aopc", {})]), tmp_path)
