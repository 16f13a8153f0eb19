"""The commands evaluate, diff and idf."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.helpers.tiny import tiny_bert
from tokenlight.cli.evaluate import diff, evaluate, idf
from tokenlight.evaluation import run as resuming

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]
app = typer.Typer()
app.command()(evaluate)
app.command()(diff)
app.command()(idf)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_texts(folder):
    """Write the labeled texts as JSON lines; return the path."""
    path = folder / "texts.jsonl"
    rows = [{"text": text, "label": i % 3} for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def data_file(tmp_path):
    return write_texts(tmp_path)


def test_evaluate_prints_the_table_and_writes_everything(bert_folder, data_file, tmp_path):
    out = tmp_path / "out"
    result = run("evaluate", data_file, "-m", bert_folder, "-x", "attcat", "-x", "random",
               "--metric", "aopc", "--metric", "hiding_game:num_steps=4", "-o", out)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "aopc ↑" in result.output
    assert "written:" in result.output
    assert {p.name for p in out.iterdir()} >= {
        "rows.parquet",
        "summary.json",
        "curves.png",
        "report.html",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["methods"]["attcat"]["hiding_game"]["count"] == 4
    second_run = run("evaluate", data_file, "-m", bert_folder, "-x", "attcat", "-x", "random",
                "--metric", "aopc", "--metric", "hiding_game:num_steps=4", "-o", out)  # fmt: skip
    assert second_run.exit_code == 0
    assert second_run.output == result.output


def test_an_interrupted_evaluate_reports_what_is_kept(
    bert_folder, data_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(resuming, "PART_SIZE", 2)
    real = resuming._compute_part
    turns = []

    def interrupt_later(*call_arguments):
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return real(*call_arguments)

    monkeypatch.setattr(resuming, "_compute_part", interrupt_later)
    arguments = (
        "evaluate",
        data_file,
        "-m",
        bert_folder,
        "--metric",
        "aopc",
        "-o",
        tmp_path / "out",
    )
    stopped = run(*arguments)
    assert stopped.exit_code == 130
    assert "2 of 4 texts are saved" in stopped.output
    result = run(*arguments)
    assert result.exit_code == 0
    assert len(turns) == 3


def test_evaluate_takes_the_best_method(bert_folder, data_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr("tokenlight.evaluation.choose.DEFAULT_CANDIDATES", ("cat", "gae"))
    result = run(
        "evaluate", data_file, "-m", bert_folder, "-x", "best", "--limit", 2, "-o", tmp_path / "o"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("best: ")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--metric", "aopcc"), "Did you mean 'aopc'"),
        (("-x", "atcat"), "Did you mean 'attcat'"),
        (("--metric", "rationale"), "spans that a person marked"),
    ],
)
def test_invalid_arguments_of_evaluate_give_a_one_line_error(
    bert_folder, data_file, tmp_path, extra, message
):
    result = run("evaluate", data_file, "-m", bert_folder, "-o", tmp_path / "out", *extra)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_evaluate_names_the_flags_for_a_text_that_is_too_long(bert_folder, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("a dull plot\nwe love this movie\n" + "a film " * 60)
    result = run("evaluate", path, "-m", bert_folder, "--long", "error", "-o", tmp_path / "out")
    assert "--long truncate" in result.output
    assert "long=" not in result.output


@pytest.mark.parametrize(("library", "extra"), [("scipy", "bench"), ("matplotlib", "plots")])
def test_a_missing_library_is_reported_before_anything_is_measured(
    data_file, tmp_path, monkeypatch, library, extra
):
    monkeypatch.setitem(sys.modules, library, None)
    result = run("evaluate", data_file, "-m", "/no/such/model", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert f"tokenlight evaluate needs {library}." in result.output
    assert f"tokenlight[{extra}]" in result.output
    assert not (tmp_path / "out").exists()


def test_evaluate_does_not_overwrite_its_data(data_file, tmp_path):
    content = data_file.read_bytes()
    result = run("diff", "a", "b", data_file, "--json", data_file)
    assert result.exit_code == 2
    assert "would overwrite DATA" in result.output
    result = run("idf", data_file, "-o", data_file)
    assert result.exit_code == 2
    assert "would overwrite CORPUS" in result.output
    assert data_file.read_bytes() == content
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"precious")
    result = run("evaluate", rows, "-o", tmp_path)
    assert result.exit_code == 2
    assert "would overwrite DATA" in result.output


def test_diff_of_a_model_with_itself_passes(bert_folder, data_file, tmp_path):
    files = ["--json", tmp_path / "d.json", "--html", tmp_path / "d.html"]
    result = run("diff", bert_folder, bert_folder, data_file, *files)
    assert result.exit_code == 0, result.output
    assert "What changed from A to B" in (tmp_path / "d.html").read_text(encoding="utf-8")
    assert "no change exceeds its limit" in result.output
    comparison = json.loads((tmp_path / "d.json").read_text())
    assert comparison["flip_rate"]["mean"] == 0
    assert comparison["rank_correlation"]["mean"] == pytest.approx(1)
    assert comparison["aopc_change"]["mean"] == pytest.approx(0)


def test_diff_skips_an_empty_row_and_names_its_method_and_column(bert_folder, tmp_path):
    data = tmp_path / "reviews.csv"
    data.write_text('review,stars\nthe film is good,1\n"",2\na dull plot,3\n')
    result = run(
        "diff", bert_folder, bert_folder, data, "-x", "attcat", "--json", tmp_path / "d.json"
    )
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == "2 texts, text from review, explained by attcat"
    assert "skipped: row 2 of reviews.csv, which has no text" in result.output
    comparison = json.loads((tmp_path / "d.json").read_text())
    assert (comparison["num_texts"], comparison["method"]) == (2, "attcat")
    assert comparison["omitted"] == ["row 2 of reviews.csv"]
    data.write_text('review\n""\n" "\n')
    result = run("diff", bert_folder, bert_folder, data)
    assert result.exit_code == 2
    assert "None of the 2 texts contains a word" in result.output


def test_diff_refuses_a_named_column_of_foreign_labels_and_ignores_another(bert_folder, tmp_path):
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\nthe film is good,five stars\na dull plot,one star\n")
    command = ("diff", bert_folder, bert_folder, data, "-x", "attcat")
    result = run(*command, "--label", "label")
    assert result.exit_code == 2
    assert "No true label is one of the models'" in result.output
    result = run(*command)
    assert result.exit_code == 0, result.output
    assert "note: the labels in reviews.csv are not compared with the predictions" in result.output
    assert "accuracy of A" not in result.output


@pytest.fixture(scope="module")
def two_method_run(bert_folder, tmp_path_factory):
    """Return the result of evaluating two methods, and the output folder."""
    folder = tmp_path_factory.mktemp("evaluation")
    arguments = ("-m", bert_folder, "-x", "attcat", "-x", "random", "--metric", "aopc")
    result = run("evaluate", write_texts(folder), *arguments, "-o", folder / "o")
    assert result.exit_code == 0, result.output
    return result, folder / "o"


def test_evaluate_warns_about_few_texts(two_method_run):
    result, out = two_method_run
    warning = "texts: the intervals are rough. Give 20 or more to compare methods."
    assert warning in result.output
    assert warning in json.loads((out / "summary.json").read_text("utf-8"))["sample_size_warning"]
    assert warning in (out / "report.html").read_text("utf-8")


def test_evaluate_reports_paired_differences(two_method_run):
    result, out = two_method_run
    values = {"attcat": {}, "random": {}}
    for row in pq.read_table(out / "rows.parquet").to_pylist():
        values[row["method"]][row["text"]] = row["aopc"]
    mean = np.mean([values["random"][text] - values["attcat"][text] for text in values["attcat"]])
    assert "\ndifference from attcat, text by text" in result.output
    assert f"\n  random  aopc {mean:+.3f} [" in result.output
    differences = json.loads((out / "summary.json").read_text("utf-8"))["differences"]
    assert differences["aopc"]["random"]["mean"] == pytest.approx(mean, abs=1e-12)
    report = (out / "report.html").read_text("utf-8")
    assert "Difference from attcat, text by text" in report
    assert f"<td>{mean:+.3f}</td>" in report


def test_diff_of_two_models_fails_the_build(bert_folder, data_file, tmp_path, tokenizer):
    other = tiny_bert(dtype=torch.float32)
    with torch.no_grad():
        other.classifier.weight.copy_(-other.classifier.weight)
        other.classifier.bias.copy_(-other.classifier.bias)
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    result = run("diff", bert_folder, tmp_path / "other", data_file)
    assert result.exit_code == 1
    assert "of predictions changed (limit 1.0%)" in result.output


def test_diff_names_the_order_of_its_arguments(bert_folder, data_file):
    result = run("diff", data_file, bert_folder, bert_folder)
    assert result.exit_code == 2
    assert "which comes last: tokenlight diff A B DATA" in " ".join(result.output.split())


def test_diff_measures_the_accuracy_where_a_true_label_is_named(bert_folder, tmp_path):
    path = tmp_path / "rated.csv"
    labels = ("negative", "neutral", "positive")  # one of them is what the model says
    path.write_text("review,verdict\n" + "".join(f"a charming film,{name}\n" for name in labels))
    table = tmp_path / "diff.json"
    arguments = ("diff", bert_folder, bert_folder, path, "--json", table)
    result = run(*arguments, "--label", "verdict")
    assert result.exit_code == 0, result.output
    assert f"A  {bert_folder}\n" in result.output
    (accuracy,) = [line for line in result.output.splitlines() if line.startswith("accuracy of A")]
    (correlation,) = [line for line in result.output.splitlines() if "word scores  " in line]
    assert accuracy.index("0.333 [") == correlation.index("1.000 [")  # one column of numbers
    comparison = json.loads(table.read_text())
    assert comparison["accuracy_after"]["mean"] == pytest.approx(1 / 3)
    assert comparison["accuracy_change"]["mean"] == 0
    table.unlink()
    assert "accuracy" not in run(*arguments).output


def test_diff_compares_two_precisions(bert_folder, data_file):
    result = run(
        "diff",
        bert_folder,
        bert_folder,
        data_file,
        "--dtype-b",
        "bfloat16",
        "--min-correlation",
        "0.5",
    )
    assert result.exit_code in (0, 1), result.output
    assert "AOPC, B − A" in result.output
