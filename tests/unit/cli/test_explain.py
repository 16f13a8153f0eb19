"""``tokenlight explain`` on real files of tiny models."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import pytest
import torch

from tests.helpers.deadlines import DEADLINE_SECONDS
from tests.helpers.html_reader import PageReader
from tests.helpers.tiny import save_model, tiny_bert, tiny_bert_qa

TEXT = "A charming and very good film, but slowly the plot was dull."
EVIL = '<script>alert("1")</script> \x1b[31m [red] 😀 e\u0301 שלום'


@pytest.fixture(scope="module")
def classifier(bert_folder):
    return str(bert_folder)


@pytest.fixture(scope="module")
def qa_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("answerer"), tiny_bert_qa(torch.float32))


def test_explain_prints_the_text_the_prediction_and_the_top_tokens(tokenlight, classifier):
    code, output, errors = tokenlight("explain", TEXT, "--model", classifier)
    assert code == 0
    assert errors == ""
    assert output.startswith("prediction  ")
    assert "attnlrp  default method" in output
    assert "charming" in output
    assert "\x1b" not in output


def test_several_methods_with_options_and_a_reference_are_shown(tokenlight, classifier):
    code, output, _ = tokenlight(
        *("explain", TEXT, "-m", classifier, "--method", "attcat:hidden=output", "--method", "gae"),
        *("--reference", "rollout", "--words", "--target", "negative"),
    )
    assert code == 0
    assert "for negative" in output
    assert "attcat(hidden=output)" in output
    assert "gae − rollout" in output
    assert "charming(" in output or "charming " in output


def test_an_effort_chooses_the_method_and_shows_error_bars(tokenlight, classifier):
    code, output, _ = tokenlight("explain", TEXT, "-m", classifier, "--effort", "4")
    assert code == 0
    assert "effort=4: subset_relevance, 3 partial texts (4 passes)" in output
    assert re.search(r"± one standard error over 3 partial texts; \d+ of \d+ could be 0", output)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--effort", "much"],
            "--effort much is not valid. Choose one of instant, normal, thorough",
        ),
        (["--effort", "0"], "--effort 0 is not valid"),
        (["--stable", "1.5"], "--stable 1.5 is not valid"),
        (["--effort", "normal", "--method", "attcat"], "cannot be combined with --method"),
        (["--stable", "0.9", "--effort", "instant"], "--effort instant allows only one pass"),
    ],
)
def test_an_invalid_effort_is_refused_with_a_clear_message(tokenlight, classifier, options, reason):
    code, output, errors = tokenlight("explain", TEXT, "-m", classifier, *options)
    assert code == 2
    assert output == ""
    assert reason in " ".join(errors.split())


def test_all_targets_are_explained(tokenlight, classifier):
    _, output, _ = tokenlight("explain", TEXT, "-m", classifier, "--target", "all")
    assert "for negative" in output
    assert "for positive" in output


def test_a_contrast_of_two_labels_is_explained(tokenlight, classifier):
    arguments = ("--target", "positive", "--rather-than", "negative")
    _, output, _ = tokenlight("explain", TEXT, "-m", classifier, *arguments)
    assert "for positive rather than negative" in output


def test_layers_prints_the_table(tokenlight, classifier):
    _, output, _ = tokenlight("explain", TEXT, "-m", classifier, "-x", "attcat", "--layers")
    assert "layer by layer" in output
    assert re.search(r"L0 +L1 +L2 +Sum", output)  # as wide as the numbers below


def test_json_to_standard_output_is_json_and_nothing_else(tokenlight, classifier):
    code, output, _ = tokenlight("explain", EVIL, "-m", classifier, "--json", "-")
    assert code == 0
    document = json.loads(output)
    assert document["row"]["texts"] == [EVIL]
    assert document["method"] == "attnlrp"
    code, output, _ = tokenlight(
        *("explain", TEXT, "-m", classifier, "-x", "attcat", "-x", "cat", "--json", "-")
    )
    assert [entry["method"] for entry in json.loads(output)] == ["attcat", "cat"]


def test_every_file_is_written_and_named(tokenlight, classifier, tmp_path):
    paths = {
        kind: tmp_path / "new folder" / f"x.{kind}" for kind in ("html", "json", "csv", "parquet")
    }
    options = [part for kind, path in paths.items() for part in (f"--{kind}", str(path))]
    code, output, errors = tokenlight("explain", EVIL, "-m", classifier, *options)
    assert code == 0
    assert output.startswith("prediction")
    first, *others = [f"wrote {path}" for path in paths.values()]
    assert errors.splitlines() == [f"{first} (in a new folder)", *others]
    reader = PageReader(paths["html"].read_text(encoding="utf-8"))
    assert reader.lines[0].text == EVIL.replace("\x1b", "␛")
    assert "script" not in {tag for tag, _ in reader.tags}
    assert json.loads(paths["json"].read_text(encoding="utf-8"))["row"]["texts"] == [EVIL]
    rows = list(csv.DictReader(io.StringIO(paths["csv"].read_text(encoding="utf-8"))))
    assert "😀" in {row["token"] for row in rows}
    import pandas

    assert list(pandas.read_parquet(paths["parquet"])["token"]) == [row["token"] for row in rows]


def test_a_page_can_show_words_and_differences_first(tokenlight, classifier, tmp_path):
    path = tmp_path / "page.html"
    tokenlight(
        *("explain", TEXT, "-m", classifier, "--words", "--reference", "gae", "--html", str(path))
    )
    source = path.read_text(encoding="utf-8")
    [switch] = [v for t, v in PageReader(source).tags if v.get("class") == "see-words"]
    assert "checked" in switch
    assert "attnlrp − gae" in source


def test_an_output_that_cannot_be_written_is_refused(tokenlight, classifier, tmp_path):
    (tmp_path / "file").write_text("")
    for kind in ("html", "csv"):
        path = tmp_path / "file" / f"x.{kind}"
        code, _, errors = tokenlight("explain", TEXT, "-m", classifier, f"--{kind}", str(path))
        assert code == 2
        assert f"annot write {path}" in errors.replace("\n", "")


def test_a_pair_shows_both_texts(tokenlight, classifier):
    _, output, _ = tokenlight("explain", "a good plot", "--pair", "the film", "-m", classifier)
    assert "% of the total score falls on special tokens, which are not words" in output
    for name, text in (("first", "a good plot"), ("second", "the film")):
        assert any(
            line.split()[0] == name and "%" in line and re.sub(r"\(.*?\)", "", line).endswith(text)
            for line in output.splitlines()
            if line.strip()
        )


def test_the_answer_to_a_question_is_explained(tokenlight, qa_model):
    code, output, _ = tokenlight(
        *(
            "explain",
            "--question",
            "Where is the cat?",
            "--context",
            "The cat sat on the mat in town .",
        ),
        *("-m", qa_model),
    )
    assert code == 0
    assert "for the answer ‘" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["  "], "is empty"),
        (["a " * 60], "reads at most 48"),
        ([TEXT, "--target", "positiv"], "Did you mean 'positive'"),
        ([TEXT, "--target", "7"], "Label number 7 does not exist"),
        ([TEXT, "--method", "attcat:hiden=output"], "Did you mean 'hidden'"),
        ([TEXT, "--method", "attcat:hidden=up"], "hidden='up'"),
        (
            ["a", "dull", "plot"],
            "3 were given. Put the text in quotes: tokenlight explain 'a dull plot'",
        ),
        ([TEXT, "--method", "attcat,gae"], "several methods. Give --method attcat --method gae."),
        ([TEXT, "--reference", "attcat,gae"], "several methods. Give one of them."),
        ([TEXT, "--words", "--tokens"], "--words cannot be combined with --tokens. Leave one"),
    ],
)
def test_bad_input_is_one_clean_message(tokenlight, classifier, arguments, message):
    code, output, errors = tokenlight("explain", *arguments, "-m", classifier)
    assert code == 2
    assert output == ""
    assert errors.startswith("error: ")
    assert message in errors
    assert "Traceback" not in errors


def test_a_long_text_is_refused_with_the_flags_and_no_python(tokenlight, classifier):
    _, _, errors = tokenlight("explain", "a " * 60, "-m", classifier)
    assert "--long truncate" in errors
    assert "--long stride" in errors
    assert "long=" not in errors


@pytest.mark.parametrize(("option", "ending"), [("--image", ".png"), ("--chat", ".json")])
def test_no_output_overwrites_an_input(tokenlight, tmp_path, option, ending):
    input_file = tmp_path / f"mine{ending}"
    link = tmp_path / f"link{ending}"
    input_file.write_bytes(b"precious")
    link.symlink_to(input_file)
    for path in (input_file, link):
        code, output, errors = tokenlight(
            "explain", option, input_file, "-m", "any", f"--{ending[1:]}", path
        )
        assert (code, output) == (2, "")
        assert f"would overwrite {option} {input_file}" in errors
        assert input_file.read_bytes() == b"precious"


def test_a_missing_library_is_named_before_a_model_is_loaded(tokenlight, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    path = tmp_path / "a.parquet"
    for options in (("--parquet", path), ("--method", "best")):
        code, _, errors = tokenlight("explain", TEXT, "-m", "/no/such/model", *options)
        assert code == 2
        assert errors.strip().endswith("pip install 'tokenlight[bench]'")


def test_a_truncated_text_is_reported(tokenlight, classifier):
    code, output, _ = tokenlight("explain", "a film " * 30, "-m", classifier, "--long", "truncate")
    assert code == 0
    assert "14 of 62 tokens were truncated" in output.replace("\n", " ")


def test_hostile_labels_are_printed_escaped(tokenlight, tmp_path):
    labels = ("<b>no</b>", "[red]\x1b[31m\u202eyes")
    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    folder = save_model(tmp_path / "evil", tiny_bert(torch.float32, **names))
    page = tmp_path / "page.html"
    _, output, _ = tokenlight(
        *("explain", TEXT, "-m", folder, "--target", "1", "--html", str(page))
    )
    assert "for [red]␛[31m⟨RLO⟩yes" in output
    reader = PageReader(page.read_text(encoding="utf-8"))
    assert reader.texts["b"].startswith("[red]␛[31m⟨RLO⟩yes")
    _, output, _ = tokenlight("explain", TEXT, "-m", folder, "--target", "1", "--json", "-")
    assert json.loads(output)["target"]["name"] == "[red]\x1b[31m\u202eyes"


def type_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def test_text_comes_from_standard_input(tokenlight, classifier, monkeypatch):
    type_input(monkeypatch, "A charming film 😀\r\n".encode())
    code, output, _ = tokenlight("explain", "-", "-m", classifier, "--json", "-")
    assert code == 0
    assert json.loads(output)["row"]["texts"] == ["A charming film 😀"]


def test_standard_input_that_is_no_text_is_refused(tokenlight, classifier, monkeypatch):
    type_input(monkeypatch, b"\xff\xfe broken")
    code, _, errors = tokenlight("explain", "-", "-m", classifier)
    assert code == 2
    assert "Standard input is not UTF-8 text" in errors


def test_pipes_get_no_colours_unless_forced(tokenlight, classifier, monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in tokenlight("explain", TEXT, "-m", classifier)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm")
    assert ";48;2;" in tokenlight("explain", TEXT, "-m", classifier)[1]


def test_a_terminal_without_unicode_still_gets_valid_json(tokenlight, classifier, monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    assert tokenlight("explain", "a film 😀", "-m", classifier, "--json", "-")[0] == 0
    assert json.loads(plain.buffer.getvalue().decode("ascii"))["row"]["texts"] == ["a film 😀"]


def test_a_terminal_without_unicode_still_gets_a_picture(tokenlight, classifier, monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    assert tokenlight("explain", "a film 😀", "-m", classifier)[0] == 0
    assert "\\U0001f600" in plain.buffer.getvalue().decode("ascii")


def test_an_unknown_model_is_refused(tokenlight):
    code, output, errors = tokenlight("explain", TEXT, "-m", "tokenlight/sentimnt")
    assert code == 2
    assert output == ""
    assert errors.startswith("error: ")
    assert "tokenlight/sentiment" in errors


def test_a_closed_pipe_ends_quietly(classifier):
    command = [sys.executable, "-m", "tokenlight.cli", "explain", TEXT, "-m", classifier]
    process = subprocess.run(
        ["bash", "-c", '"$@" --json - | true; exit ${PIPESTATUS[0]}', "_", *command],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert process.stderr == b""
    assert process.returncode == 0


def test_word_scores_are_saved_in_files(tokenlight, classifier, tmp_path):
    path = tmp_path / "words.csv"
    code, output, _ = tokenlight(
        *("explain", "Charming film", "-m", classifier, "--words", "--csv", str(path)),
        *("--json", "-"),
    )
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [row["token"] for row in rows] == ["[CLS]", "Charming", "film", "[SEP]"]
    assert json.loads(output)["tokens"] == ["[CLS]", "Charming", "film", "[SEP]"]


def test_the_best_method_is_chosen_from_the_command_line(
    tokenlight, classifier, tmp_path, monkeypatch
):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    code, output, _ = tokenlight("explain", "Charming film", "-m", classifier, "--method", "best")
    assert code == 0
    assert "method='best'" in output


def test_a_text_that_is_a_file_name_is_explained_with_a_note(
    tokenlight, classifier, tmp_path, monkeypatch
):
    (tmp_path / "good").write_text("a fine film")
    monkeypatch.chdir(tmp_path)
    code, output, errors = tokenlight("explain", "good", "--model", classifier)
    assert code == 0
    assert "good" in output
    assert "is also a file; the name itself was explained. Give --file FILE" in errors
    assert "is also a file" not in tokenlight("explain", "film", "--model", classifier)[2]
