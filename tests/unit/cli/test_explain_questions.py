"""Questions, pairs, classes and long texts from the command line."""

from __future__ import annotations

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.helpers.tiny import tiny_bert_qa, tiny_tokenizer
from tokenlight import cli
from tokenlight.cli.evaluate import evaluate

CONTEXT = "the cat sat on the mat . the dog sat in town , and the cat was great ."


@pytest.fixture(scope="module")
def qa_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "answerer"
    tiny_bert_qa(torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def ask_question(capsys, monkeypatch, qa_model):
    """Ask one question; gives (exit status, standard output, standard error)."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")

    def run(*more, context=CONTEXT):
        question = ("explain", "--question", "where is the dog ?", "--context", context)
        with pytest.raises(SystemExit) as end:
            cli.main((*question, "-m", qa_model, *more))
        return end.value.code, *capsys.readouterr()

    return run


def test_the_answer_its_shares_and_the_null_score_are_printed(ask_question):
    code, output, _ = ask_question()
    assert code == 0
    assert "“no answer” scores" in output
    for name in ("question ", "context "):
        assert f"  {name}" in output
    assert "falls on" in output  # special tokens, told in words
    assert "for the answer ‘" in output


def test_words_of_the_context_are_an_answer(ask_question):
    code, output, _ = ask_question("--target", "in town")
    assert code == 0
    assert "for the answer ‘in town’" in output
    code, output, _ = ask_question("--target", "the cat", "--occurrence", "1")
    assert code == 0
    code, output, _ = ask_question("--target", "in town", "--rather-than", "on the mat")
    assert "for the answer ‘in town’ rather than ‘on the mat’" in output


def test_the_null_answer_can_be_explained_and_contrasted_with_an_answer(ask_question):
    code, output, _ = ask_question("--no-answer")
    assert code == 0
    assert "for no answer" in output
    _, output, _ = ask_question("--no-answer", "--rather-than", "in town")
    assert "for no answer rather than ‘in town’" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "all"), "'all' is not in the context"),
        (("--target", "the cat"), "Say which with --occurrence 0 to 1."),
        (("--target", "the cat", "--occurrence", "7"), "--occurrence 7 does not exist"),
        (("--target", " "), "as they are written there, or --no-answer"),
        (("--token", "cat"), "--context cannot be combined with --token"),
        (("--continue", "cat"), "--context cannot be combined with --continue"),
        (("--target", "in town", "--rather-than", "in town"), "Give two that differ"),
        (("--target", "a fish"), "'a fish' is not in the context"),
        (
            ("--target", "town", "--no-answer"),
            "--target 'town' cannot be combined with --no-answer",
        ),
        (
            ("--occurrence", "1"),
            "Give --token WORD, or the words of a question's answer as --target",
        ),
        (("--rather-than", "all"), "'all' is not in the context"),
    ],
)
def test_invalid_options_give_one_message_with_flags(ask_question, arguments, message):
    code, output, errors = ask_question(*arguments)
    assert code == 2
    assert output == ""
    assert message in " ".join(errors.split())
    assert "Traceback" not in errors
    assert "SpanTarget" not in errors


def test_a_long_context_is_read_in_windows(ask_question):
    long = "the movie was slow and dull . " * 12 + CONTEXT
    code, _, errors = ask_question(context=long)
    assert code == 2
    assert "--long stride" in errors
    code, output, _ = ask_question("--long", "stride", "--target", "in town", context=long)
    assert code == 0
    assert "the answer is explained in window" in " ".join(output.split())
    assert "strongest of" in output


def test_a_plain_text_is_refused_with_what_to_give(qa_model, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(("explain", "good film", "-m", qa_model))
    assert end.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "answers questions about a context. Give --question and --context." in message


def test_a_single_rival_is_contrasted_with_the_predicted_class(bert_folder, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    names = {"negative", "neutral", "positive"}
    with pytest.raises(SystemExit):
        cli.main(("explain", "good film", "-m", str(bert_folder), "--json", "-"))
    predicted = json.loads(capsys.readouterr().out)["prediction"]["label"]
    rival = sorted(names - {predicted})[0]
    with pytest.raises(SystemExit) as end:
        cli.main(("explain", "good film", "-m", str(bert_folder), "--rather-than", rival))
    assert end.value.code == 0
    assert f"for {predicted} rather than {rival}" in capsys.readouterr().out


def test_all_classes_are_compared_on_one_scale(bert_folder, capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit):
        cli.main(("explain", "a charming film", "-m", str(bert_folder), "--target", "all"))
    output = capsys.readouterr().out
    assert "class by class  attnlrp" in output
    assert "negative neutral positive" in " ".join(output.split())
    assert all(line == line.rstrip() for line in output.splitlines())


def test_precision_is_measured_on_a_file_like_squad(qa_model, tmp_path):
    def row(question, answers, **more):
        squad_answers = [{"text": text, "answer_start": CONTEXT.index(text)} for text in answers]
        return {"question": question, "context": CONTEXT, "answers": squad_answers, **more}

    rows = [
        row("where is the dog ?", ["in town", "town"]),
        row("what sat on the mat ?", ["cat"]),
        row("who is red ?", [], is_impossible=True),
    ]
    path = tmp_path / "squad.jsonl"
    out = tmp_path / "out"
    path.write_text("\n".join(map(json.dumps, rows)))
    app = typer.Typer()
    app.command()(evaluate)
    result = CliRunner().invoke(
        app,
        [str(path), "-m", qa_model, "-x", "attcat", "-x", "random", "-o", str(out),
         "--metric", "precision_at_k:k=99", "--metric", "precision_at_k:preset=mask_lrp"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    summary = json.loads((out / "summary.json").read_text())["methods"]
    everything = summary["attcat"]["precision_at_k(k=99)"]
    assert everything["mean"] == pytest.approx(1.5)  # two tokens, and one
    assert everything["count"] == 2
    (reason,) = everything["skipped"]
    assert reason.startswith("The question has no answer")
    assert 0 <= summary["random"]["precision_at_k(preset=mask_lrp)"]["mean"] <= 100
