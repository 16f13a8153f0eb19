"""The commands evaluate and diff, and the comparison behind diff."""

from __future__ import annotations

import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.tiny import tiny_bert
from tokenlight import Explainer
from tokenlight.cli.evaluate import diff, evaluate, idf
from tokenlight.errors import BadInput
from tokenlight.evaluation import run as resuming
from tokenlight.evaluation.compare import Side, compare
from tokenlight.files.tables import Example

TEXTS = ["the film is not very good", "we love this movie", "a dull plot", "never ever hate it"]
app = typer.Typer()
app.command()(evaluate)
app.command()(diff)
app.command()(idf)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def data_file(tmp_path):
    place = tmp_path / "texts.jsonl"
    rows = [{"text": text, "label": i % 3} for i, text in enumerate(TEXTS)]
    place.write_text("\n".join(map(json.dumps, rows)))
    return place


def test_evaluate_prints_the_table_and_writes_everything(bert_folder, data_file, tmp_path):
    out = tmp_path / "out"
    done = run("evaluate", data_file, "-m", bert_folder, "-x", "attcat", "-x", "random",
               "--metric", "aopc", "--metric", "hiding_game:steps=4", "-o", out)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "aopc ↑" in done.output
    assert "written:" in done.output
    assert {p.name for p in out.iterdir()} >= {
        "rows.parquet",
        "summary.json",
        "curves.png",
        "report.html",
    }
    summary = json.loads((out / "summary.json").read_text())
    assert summary["methods"]["attcat"]["hiding_game"]["count"] == 4
    again = run("evaluate", data_file, "-m", bert_folder, "-x", "attcat", "-x", "random",
                "--metric", "aopc", "--metric", "hiding_game:steps=4", "-o", out)  # fmt: skip
    assert again.exit_code == 0
    assert again.output == done.output


def test_evaluate_stopped_says_what_is_kept(bert_folder, data_file, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "SHARD", 2)
    real, turns = resuming._shard, []

    def interrupted(*given):
        turns.append(1)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(resuming, "_shard", interrupted)
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
    assert "2 of 4 texts are kept" in stopped.output
    done = run(*arguments)
    assert done.exit_code == 0
    assert len(turns) == 3


def test_evaluate_takes_the_best_method(bert_folder, data_file, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr("tokenlight.evaluation.choose.CANDIDATES", ("cat", "gae"))
    done = run(
        "evaluate", data_file, "-m", bert_folder, "-x", "best", "--limit", 2, "-o", tmp_path / "o"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("best: ")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--metric", "aopcc"), "Did you mean 'aopc'"),
        (("-x", "atcat"), "Did you mean 'attcat'"),
        (("--metric", "rationale"), "spans that a person marked"),
    ],
)
def test_evaluate_refuses_in_one_line(bert_folder, data_file, tmp_path, extra, message):
    done = run("evaluate", data_file, "-m", bert_folder, "-o", tmp_path / "out", *extra)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_evaluate_names_the_flags_for_a_text_that_is_too_long(bert_folder, tmp_path):
    place = tmp_path / "long.txt"
    place.write_text("a dull plot\nwe love this movie\n" + "a film " * 60)
    done = run("evaluate", place, "-m", bert_folder, "--long", "error", "-o", tmp_path / "out")
    assert "--long truncate" in done.output
    assert "long=" not in done.output


@pytest.mark.parametrize(("library", "extra"), [("scipy", "bench"), ("matplotlib", "plots")])
def test_a_missing_library_is_told_before_anything_is_measured(
    data_file, tmp_path, monkeypatch, library, extra
):
    monkeypatch.setitem(sys.modules, library, None)
    done = run("evaluate", data_file, "-m", "/no/such/model", "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert f"tokenlight evaluate needs {library}." in done.output
    assert f"tokenlight[{extra}]" in done.output
    assert not (tmp_path / "out").exists()


def test_the_data_are_not_written_over(data_file, tmp_path):
    kept = data_file.read_bytes()
    done = run("diff", "a", "b", data_file, "--json", data_file)
    assert done.exit_code == 2
    assert "would overwrite DATA" in done.output
    done = run("idf", data_file, "-o", data_file)
    assert done.exit_code == 2
    assert "would overwrite CORPUS" in done.output
    assert data_file.read_bytes() == kept
    rows = tmp_path / "rows.parquet"
    rows.write_bytes(b"precious")
    done = run("evaluate", rows, "-o", tmp_path)
    assert done.exit_code == 2
    assert "would overwrite DATA" in done.output


def test_diff_of_a_model_with_itself_passes(bert_folder, data_file, tmp_path):
    done = run("diff", bert_folder, bert_folder, data_file, "--json", tmp_path / "d.json")
    assert done.exit_code == 0, done.output
    assert "nothing moved beyond its limit" in done.output
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["flips"]["mean"] == 0
    assert found["focus"]["mean"] == pytest.approx(1)
    assert found["change"]["mean"] == pytest.approx(0)


def test_diff_goes_on_behind_an_empty_row_and_names_it_with_method_and_column(
    bert_folder, tmp_path
):
    data = tmp_path / "reviews.csv"
    data.write_text('review,stars\nthe film is good,1\n"",2\na dull plot,3\n')
    done = run(
        "diff", bert_folder, bert_folder, data, "-x", "attcat", "--json", tmp_path / "d.json"
    )
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "2 texts, text from review, explained by attcat"
    assert "left out: row 2 of reviews.csv, which has no text" in done.output
    found = json.loads((tmp_path / "d.json").read_text())
    assert (found["texts"], found["method"]) == (2, "attcat")
    assert found["left_out"] == ["row 2 of reviews.csv"]
    data.write_text('review\n""\n" "\n')
    done = run("diff", bert_folder, bert_folder, data)
    assert done.exit_code == 2
    assert "none of the 2 texts has a word" in done.output


def test_evaluate_tells_paired_differences_and_that_few_texts_are_few(
    bert_folder, data_file, tmp_path
):
    arguments = ("-m", bert_folder, "-x", "attcat", "-x", "random", "--metric", "aopc")
    done = run("evaluate", data_file, *arguments, "-o", tmp_path / "o")
    assert done.exit_code == 0, done.output
    assert "\ndifference from attcat, text by text" in done.output
    few = "texts are few: the intervals are rough; give 20 or more"
    assert few in done.output
    assert few in json.loads((tmp_path / "o" / "summary.json").read_text("utf-8"))["caution"]
    assert few in (tmp_path / "o" / "report.html").read_text("utf-8")
    values = {"attcat": {}, "random": {}}
    for row in pq.read_table(tmp_path / "o" / "rows.parquet").to_pylist():
        values[row["method"]][row["text"]] = row["aopc"]
    gaps = [values["random"][text] - values["attcat"][text] for text in values["attcat"]]
    assert f"\n  random  aopc {np.mean(gaps):+.3f} [" in done.output
    kept = json.loads((tmp_path / "o" / "summary.json").read_text("utf-8"))["differences"]
    assert kept["aopc"]["random"]["mean"] == pytest.approx(np.mean(gaps), abs=1e-12)
    report = (tmp_path / "o" / "report.html").read_text("utf-8")
    assert "Difference from attcat, text by text" in report
    assert f"<td>{np.mean(gaps):+.3f}</td>" in report


def test_diff_of_two_models_fails_the_build(bert_folder, data_file, tmp_path, tokenizer):
    other = tiny_bert(dtype=torch.float32)
    with torch.no_grad():
        other.classifier.weight.copy_(-other.classifier.weight)
        other.classifier.bias.copy_(-other.classifier.bias)
    other.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    done = run("diff", bert_folder, tmp_path / "other", data_file)
    assert done.exit_code == 1
    assert "of predictions changed (limit 1.0%)" in done.output


def test_diff_of_precisions(bert_folder, data_file):
    done = run(
        "diff", bert_folder, bert_folder, data_file, "--dtype-b", "bfloat16", "--min-focus", "0.5"
    )
    assert done.exit_code in (0, 1), done.output
    assert "AOPC, B − A" in done.output


def sides(tokenizer, **more):
    explainer = Explainer(tiny_bert(), tokenizer)
    return Side(explainer), Side(explainer, **more)


def test_prompts_are_compared_on_the_words_of_the_text(tokenizer):
    examples = [Example(text) for text in TEXTS]
    a, b = sides(tokenizer, prompt="the movie : {text} !")
    found = compare(a, b, examples)
    assert found.texts == 4
    assert found.focus.count == 4
    assert found.focus.mean < 1
    same = compare(a, a, examples)
    assert same.focus.mean == pytest.approx(1)
    assert same.failures() == []


@pytest.mark.filterwarnings("ignore")  # the library's own words on its processor kernels
def test_a_quantised_model_is_compared_with_the_full_one(tokenizer, tmp_path):
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    tiny_bert(torch.float32, hidden_size=64, intermediate_size=128).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    full = Explainer.from_pretrained(tmp_path)
    eight_bit = Explainer.from_pretrained(
        tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map="cpu"
    )
    found = compare(Side(full), Side(eight_bit), [Example(text) for text in TEXTS])
    assert found.texts == 4
    assert found.flips.mean == 0
    assert 0.8 < found.focus.mean <= 1
    assert found.change.mean != 0  # eight bits were indeed read


def test_every_limit_is_checked(tokenizer):
    a, b = sides(tokenizer, prompt="bad dull {text}")
    found = compare(a, b, [Example(text) for text in TEXTS])
    assert len(found.failures(flips=-1, focus=1.1, faithfulness=-9)) == 3


def test_what_cannot_be_compared_is_refused(tokenizer):
    with pytest.raises(BadInput, match="exactly once"):
        sides(tokenizer, prompt="no place")
    a, b = sides(tokenizer)
    with pytest.raises(BadInput, match="plain texts"):
        compare(a, b, [Example(("a", "b"))])
    other = Side(
        Explainer(tiny_bert(id2label={0: "x", 1: "y"}, label2id={"x": 0, "y": 1}), tokenizer)
    )
    with pytest.raises(BadInput, match="different labels"):
        compare(a, other, [Example("good")])


def test_word_scores_are_sums_over_their_tokens(tokenizer):
    explainer = Explainer(tiny_bert(), tokenizer)
    a = explainer.explain("charming film , slower", "attcat")
    found = Side(explainer).word_scores("charming film , slower", a)
    expected = [score for _, score in a.words()]
    np.testing.assert_allclose(found, expected)
