"""A reader that closes the pipe (``| head``, ``| true``) costs no file and no exit status."""

import json

import pytest

from tests.helpers.bench_runs import make_sentences, write_suite
from tests.helpers.commands import run_command

pytestmark = pytest.mark.xdist_group("bench")


def run_into_closed_pipe(*arguments, close_errors=False):
    """Run a command whose standard output nobody reads; gives its exit status and standard error."""
    result = run_command(*arguments, close_output=True, close_errors=close_errors)
    return result.status, result.errors


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipes") / "reviews.csv"
    rows = [f"{text},{i % 3}" for i, text in enumerate(make_sentences(12))]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def test_a_closed_pipe_does_not_stop_the_files_of_a_text(bert_folder, tmp_path):
    html = tmp_path / "p.html"
    json_file = tmp_path / "p.json"
    command = ("explain", "good film", "-m", bert_folder, "-x", "attcat")
    code, errors = run_into_closed_pipe(*command, "--html", html, "--json", json_file)
    assert code == 0, errors
    assert errors == f"wrote {html}\nwrote {json_file}\n"
    assert html.stat().st_size > 1000
    assert json.loads(json_file.read_text())["method"] == "attcat"


def test_a_closed_standard_error_does_not_stop_the_command(bert_folder, tmp_path):
    json_file = tmp_path / "p.json"
    command = ("explain", "good film", "-m", bert_folder, "-x", "attcat", "--json", json_file)
    code, _ = run_into_closed_pipe(*command, close_errors=True)
    assert code == 0
    assert json.loads(json_file.read_text())["method"] == "attcat"


def test_a_closed_pipe_does_not_truncate_a_file_of_texts(bert_folder, reviews, tmp_path):
    command = ("explain", "--file", reviews, "-m", bert_folder, "-x", "attcat")
    code, errors = run_into_closed_pipe(*command, "--csv", tmp_path / "p.csv")
    assert code == 0, errors
    csv_content = (tmp_path / "p.csv").read_text()
    assert f"row 12 of {reviews.name}" in csv_content


def test_a_closed_pipe_stops_a_command_without_output_files(bert_folder, reviews):
    command = ("explain", "--file", reviews, "-m", bert_folder, "-x", "attcat")
    code, errors = run_into_closed_pipe(*command)
    assert code == 141
    assert errors == f"{reviews.name}: text from text, label from label\n"


def test_a_closed_pipe_does_not_stop_an_evaluation(bert_folder, reviews, tmp_path):
    command = ("evaluate", reviews, "-m", bert_folder, "-x", "attcat", "--metric", "aopc")
    code, errors = run_into_closed_pipe(*command, "-o", tmp_path / "out")
    assert code == 0, errors
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "out/summary.json").read_text())
    assert (tmp_path / "out/report.html").exists()


def test_a_closed_pipe_does_not_stop_a_comparison(bert_folder, reviews, tmp_path):
    json_file = tmp_path / "p.json"
    command = ("diff", bert_folder, bert_folder, reviews, "-x", "random", "--json", json_file)
    code, errors = run_into_closed_pipe(*command, "--min-correlation", "1.5")
    assert code == 1, errors
    assert json.loads(json_file.read_text())["num_texts"] == 12


def test_a_closed_pipe_does_not_stop_the_heads_file(bert_folder, tmp_path):
    parsed = tmp_path / "a.conllu"
    heads_file = tmp_path / "heads.json"
    parsed.write_text("1\tfilm\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n")
    code, errors = run_into_closed_pipe("heads", bert_folder, "--conllu", parsed, "-o", heads_file)
    assert code == 0, errors
    assert json.loads(heads_file.read_text())["mask"]


def test_a_closed_pipe_does_not_stop_a_benchmark_run(bert_folder, tmp_path):
    suite = write_suite(tmp_path / "suite", bert_folder, 4)
    folder = tmp_path / "run"
    code, errors = run_into_closed_pipe("bench", "run", suite, "--workers", 1, "-o", folder)
    assert code == 0, errors
    assert (folder / "scores.csv").exists()
    code, errors = run_into_closed_pipe("bench", "report", folder, "-o", tmp_path / "report.md")
    assert code == 0, errors
    assert (tmp_path / "report.md").stat().st_size > 1000


def test_a_closed_pipe_ends_a_list_quietly():
    assert run_into_closed_pipe("methods") == (0, "")


def test_an_unwritable_output_is_refused_and_the_result_is_shown(bert_folder, tmp_path):
    (tmp_path / "file").write_text("")
    command = ("explain", "good film", "-m", bert_folder, "-x", "attcat", "--json")
    result = run_command(*command, tmp_path / "file/p.json")
    assert result.status == 2
    assert "annot write" in result.errors
    assert "prediction" in result.output
