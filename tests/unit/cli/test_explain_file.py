"""``tokenlight explain --file``: every text of a file, one by one or in one file."""

import csv
import io
import json
import subprocess
import sys
import time

import pytest
import torch
from transformers import BertForTokenClassification

import tokenlight as library
from tests.helpers.commands import run_command, start_command
from tests.helpers.html_reader import read_report_entries
from tests.helpers.tiny import randomize_weights, tiny_bert_qa, tiny_config, tiny_tokenizer
from tests.helpers.tolerance import FLOAT32, assert_close
from tokenlight.errors import MissingExtra

ROWS = (
    "review,stars\n"
    "A charming film,3\n"
    '"  ",1\n'
    f'"{"a film " * 40}",2\n'
    "slowly the plot was dull,1\n"
    "never ever good,2\n"
)  # fmt: skip


def tiny_bert_tokens(dtype):
    return randomize_weights(BertForTokenClassification(tiny_config()), dtype)


@pytest.fixture(scope="module")
def classifier(bert_folder):
    return str(bert_folder)


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text(ROWS)
    return path


def test_each_text_is_shown_with_its_number(tokenlight, classifier, tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("A charming film\n\nthe plot was dull\n")
    code, output, errors = tokenlight("explain", "--file", path, "-m", classifier)
    assert (code, errors) == (0, "")
    first, second = output.split("\n\nline 3 of two.txt\n")
    assert first.startswith("line 1 of two.txt\nprediction  ")
    assert "charm" in first
    assert second.startswith("prediction  ")
    assert "dull" in second
    assert "charm" not in second


def test_the_terminal_sums_up_what_a_page_holds(tokenlight, classifier, tmp_path):
    path = tmp_path / "many.csv"
    rows = "".join(f"a charming film {number},{number % 2}\n" for number in range(12))
    path.write_text("review,label\n" + rows)
    page = tmp_path / "page.html"
    code, output, errors = tokenlight("explain", "--file", path, "-m", classifier, "--html", page)
    assert (code, "wrote" in errors) == (0, True)
    assert "row 10 of many.csv" in output
    assert "row 11 of many.csv" not in output
    entries = read_report_entries(page.read_text("utf-8"))
    assert len(entries) == 12
    summary = output.rpartition("\n\n")[2]
    assert summary.startswith("2 more of the 12 texts are in ")
    num_right = sum(entry["label"] == entry["predicted"] for entry in entries)
    assert f"accuracy {num_right} of 12 " in summary
    assert "wrong: 6 " in summary
    # Nothing else holds the texts: then all are shown.
    code, output, _ = tokenlight("explain", "--file", path, "-m", classifier)
    assert code == 0
    assert "row 12 of many.csv" in output
    assert "more of the" not in output


def test_a_refused_text_does_not_stop_the_others(tokenlight, classifier, reviews):
    code, output, errors = tokenlight("explain", "--file", reviews, "-m", classifier)
    assert code == 2
    titles = [line for line in output.splitlines() if line.startswith("row ")]
    assert titles == [f"row {number} of reviews.csv" for number in (1, 4, 5)]
    messages = errors.splitlines()
    assert messages[0] == "reviews.csv: text from review; kept columns: stars"
    assert messages[1].startswith("row 2 of reviews.csv is left out: The text '  ' is empty")
    assert messages[2].startswith("row 3 of reviews.csv is left out: The text has 82 tokens, but")
    assert "--long truncate" in messages[2]
    assert messages[3].startswith("error: 2 of 5 texts could not be explained")
    assert len(messages) == 4


def test_no_file_is_written_if_no_text_can_be_explained(tokenlight, classifier, tmp_path):
    path = tmp_path / "blank.csv"
    page = tmp_path / "page.html"
    path.write_text('text\n"  "\n"  "\n')
    code, output, errors = tokenlight("explain", "--file", path, "-m", classifier, "--html", page)
    assert (code, output) == (2, "")
    assert "row 2 of blank.csv is left out: The text '  ' is empty" in errors
    assert "error: 2 of 2 texts could not be explained" in errors
    assert not page.exists()


def test_the_terminal_shows_true_labels_and_explains_the_choice_of_the_method_once(
    tokenlight, classifier, tmp_path
):
    path = tmp_path / "labeled.csv"
    path.write_text(
        "text,label\na charming film,positive\nnever good,negative\nthe plot,positive\n"
    )
    code, output, _ = tokenlight("explain", "--file", path, "-m", classifier, "--json", "-")
    attributions = [
        library.Attribution.from_dict(attribution) for attribution in json.loads(output)
    ]
    assert code == 0
    assert all(attribution.notes[0].startswith("method='auto'") for attribution in attributions)
    code, output, _ = tokenlight("explain", "--file", path, "-m", classifier)
    assert code == 0
    assert output.count("default method") == 1
    for number, attribution in enumerate(attributions, 1):
        truth = attribution.extras["label"]
        wrong = ", misclassified" if attribution.prediction.label != truth else ""
        assert f"row {number} of labeled.csv  true label {truth}{wrong}\n" in output


def test_the_true_label_of_each_text_can_be_explained(tokenlight, classifier, tmp_path):
    path = tmp_path / "labeled.csv"
    path.write_text("text,gold\na charming film,Positive\nnever good,0\n")
    arguments = ("explain", "--file", path, "-m", classifier, "--target", "label")
    code, output, _ = tokenlight(*arguments, "--label", "gold", "--json", "-")
    assert code == 0
    assert [entry["target"]["name"] for entry in json.loads(output)] == ["positive", "negative"]
    code, _, errors = tokenlight(*arguments)
    assert code == 2
    assert "labeled.csv has no column of labels. Name it with --label COLUMN." in errors
    code, _, errors = tokenlight(*arguments, "-o", tmp_path / "out")
    assert code == 2
    assert "--target label cannot be combined with -o" in errors


def test_the_terminal_lists_the_words_of_the_errors_also_without_a_file(
    tokenlight, classifier, tmp_path
):
    path = tmp_path / "labeled.csv"
    rows = "".join(f"a charming film {number},{number % 2 * 2}\n" for number in range(4))
    path.write_text("text,label\n" + rows)
    arguments = ("explain", "--file", path, "-m", classifier)
    code, output, _ = tokenlight(*arguments)
    assert code == 0
    summary = output.rpartition("\n\n")[2].splitlines()
    assert summary[0] == "accuracy 2 of 4 (50.0 %)"
    assert summary[1].startswith("wrong: 2 ")
    assert summary[2].startswith("words that weigh more there than in right predictions")
    assert "(2)" in summary[3] or "(1)" in summary[3]
    assert summary[-1] == "with fewer than 10 errors of a kind, a word may stand out by chance"
    code, output, _ = tokenlight(*arguments, "--target", "label")
    assert code == 0
    assert "2 of them are explained for another label than the predicted one" in output
    assert "words that weigh more" not in output


def test_labels_that_the_model_does_not_have_are_not_taken_for_errors(
    tokenlight, classifier, tmp_path
):
    path = tmp_path / "labeled.csv"
    path.write_text("text,label,gold\na charming film,pos,5\nnever good,neg,7\n")
    arguments = ("explain", "--file", path, "-m", classifier)
    code, output, errors = tokenlight(*arguments, "--json", "-")
    assert code == 0
    assert "the labels in labeled.csv (pos, neg) are not compared with the predictions" in errors
    columns = [attribution["extras"]["columns"] for attribution in json.loads(output)]
    assert [column["label"] for column in columns] == ["pos", "neg"]
    code, output, _ = tokenlight(*arguments)
    assert (code, "true label" in output, "accuracy" in output) == (0, False, False)
    code, _, errors = tokenlight(*arguments, "--label", "gold")
    assert code == 2
    assert "No label in column 'gold' of labeled.csv is one of the model's: it holds 5, 7" in errors


def test_a_label_that_can_never_be_right_is_named(tokenlight, classifier, tmp_path):
    path = tmp_path / "labeled.csv"
    path.write_text("text,label\na charming film,positive\nnever good,postive\n")
    code, output, errors = tokenlight("explain", "--file", path, "-m", classifier)
    assert code == 0
    assert "note: 1 of the 2 labels in labeled.csv (postive) can never be right" in errors
    assert "accuracy" in output


def test_the_name_of_a_column_as_target_is_refused_with_the_option_for_it(
    tokenlight, classifier, tmp_path
):
    path = tmp_path / "labeled.csv"
    path.write_text("text,gold\na charming film,positive\n")
    code, _, errors = tokenlight("explain", "--file", path, "-m", classifier, "--target", "gold")
    assert code == 2
    assert "Give --target label --label gold" in errors


def test_two_columns_given_as_pair_are_refused_with_the_way_to_name_them(tokenlight, reviews):
    code, _, errors = tokenlight(
        "explain", "--file", reviews, "--text", "review", "--pair", "stars"
    )
    assert code == 2
    assert "give --text FIRST+SECOND" in errors


def test_a_row_without_a_label_is_left_out_when_true_labels_are_explained(
    tokenlight, classifier, tmp_path
):
    path = tmp_path / "labeled.jsonl"
    path.write_text('{"text": "good", "label": "positive"}\n{"text": "bad", "label": null}\n')
    code, _, errors = tokenlight("explain", "--file", path, "-m", classifier, "--target", "label")
    assert code == 2
    assert "line 2 of labeled.jsonl is left out: The row has no true label" in errors


def test_the_column_of_the_true_label_can_be_named(tokenlight, classifier, tmp_path):
    path = tmp_path / "named.csv"
    path.write_text("text,label,gold\na charming film,9,positive\nnever good,9,negative\n")
    command = ("explain", "--file", path, "-m", classifier)
    code, output, errors = tokenlight(*command, "--label", "gold")
    assert code == 0
    assert "row 1 of named.csv  true label positive" in output
    assert errors.startswith("named.csv: text from text, label from gold; kept columns: label")
    code, _, errors = tokenlight(*command, "--label", "golden")
    assert code == 2
    assert "no column 'golden'" in errors
    assert "--label COLUMN" in errors
    code, _, errors = tokenlight("explain", "a charming film", "--label", "gold")
    assert code == 2
    assert "--label gold needs --file DATA" in errors


@pytest.fixture(scope="module")
def four_outputs(classifier, tmp_path_factory):
    """Return the result of a command that writes four kinds of files, and their paths."""
    folder = tmp_path_factory.mktemp("outputs")
    reviews = folder / "reviews.csv"
    reviews.write_text(ROWS)
    paths = {kind: folder / f"all.{kind}" for kind in ("html", "json", "csv", "parquet")}
    options = [part for kind, path in paths.items() for part in (f"--{kind}", path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", "100")
        result = run_command(
            *(
                "explain",
                "--file",
                reviews,
                "-m",
                classifier,
                "-x",
                "attcat",
                "-x",
                "gae",
                "--words",
            ),
            *("--target", "negative", "--long", "truncate", "--reference", "gae", "--layers"),
            *options,
        )
    return result, paths


def test_options_apply_to_each_text_of_a_file(four_outputs):
    result, paths = four_outputs
    assert result.status == 2
    assert result.output.count("for negative") == 4
    assert "layer by layer" in result.output
    assert "attcat − gae" in result.output
    assert [line for line in result.errors.splitlines() if line.startswith("wrote")] == [
        f"wrote {path}" for path in paths.values()
    ]


def test_one_json_file_holds_all_texts_with_their_places(four_outputs):
    _, paths = four_outputs
    attributions = library.load(paths["json"])
    assert [attribution.method for attribution in attributions] == ["attcat", "gae"] * 4
    assert [attribution.extras["location"] for attribution in attributions][::2] == [
        f"row {number} of reviews.csv" for number in (1, 3, 4, 5)
    ]


def test_one_csv_file_holds_all_texts_with_their_columns(four_outputs):
    _, paths = four_outputs
    rows = list(csv.DictReader(io.StringIO(paths["csv"].read_text(encoding="utf-8"))))
    assert {row["token"] for row in rows} >= {"charming", "dull", "never"}
    assert {row["location"] for row in rows} == {
        attribution.extras["location"] for attribution in library.load(paths["json"])
    }
    assert {row["stars"] for row in rows} == {"1", "2", "3"}


def test_one_page_holds_all_texts_with_the_difference_to_the_reference(four_outputs):
    _, paths = four_outputs
    texts = read_report_entries(paths["html"].read_text(encoding="utf-8"))
    assert [text["number"] for text in texts] == [1, 3, 4, 5]
    assert [explanation["name"] for explanation in texts[0]["explained"]] == [
        "attcat",
        "gae",
        "attcat − gae",
    ]
    assert texts[0]["columns"] == {"stars": "3"}


def test_a_file_gives_the_explanations_of_its_single_texts(tokenlight, classifier, reviews):
    """Texts that are read together, some of them refused, have the scores they have alone."""
    arguments = ("-m", classifier, "-x", "attcat", "-x", "gae", "--json", "-")
    code, output, _ = tokenlight("explain", "--file", reviews, *arguments)
    assert code == 2
    together = json.loads(output)
    assert len(together) == 6
    alone = []
    for text in ("A charming film", "slowly the plot was dull", "never ever good"):
        alone += json.loads(tokenlight("explain", text, *arguments)[1])
    for attribution, other in zip(together, alone, strict=True):
        assert attribution["row"] == other["row"]
        assert attribution["method"] == other["method"]
        assert_close(attribution["scores"], other["scores"], FLOAT32)


def test_json_is_a_list_whatever_the_number(tokenlight, classifier, reviews):
    arguments = ("explain", "--file", reviews, "-m", classifier, "--json", "-")
    code, output, _ = tokenlight(*arguments, "--limit", "1")
    assert code == 0
    [only] = json.loads(output)
    assert only["row"]["texts"] == ["A charming film"]
    reviews.write_text('review\n"  "\n')
    code, output, _ = tokenlight(*arguments)
    assert code == 2
    assert json.loads(output) == []


def test_all_classes_are_explained_with_trust(tokenlight, classifier, reviews):
    code, output, _ = tokenlight(
        *("explain", "--file", reviews, "-m", classifier, "--target", "all", "--trust"),
        *("--limit", "1"),
    )
    assert code == 0
    assert output.count("for a verdict; with the top word") == 3


def test_pairs_are_read_as_evaluate_reads_them(tokenlight, classifier, tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [{"premise": "a good plot", "hypothesis": "the film", "other": "a movie"}]
    rows += [{"premise": None, "hypothesis": "b", "other": "c"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    code, output, errors = tokenlight("explain", "--file", path, "-m", classifier, "--json", "-")
    assert code == 2
    assert "line 2 of pairs.jsonl is left out: " in errors
    assert "its 'premise' is null" in errors
    assert json.loads(output)[0]["row"]["texts"] == ["a good plot", "the film"]
    _, output, _ = tokenlight(
        *("explain", "--file", path, "-m", classifier, "--text", "hypothesis+other"),
        *("--json", "-", "--limit", "1"),
    )
    assert json.loads(output)[0]["row"]["texts"] == ["the film", "a movie"]


def test_questions_are_answered(tokenlight, tmp_path):
    folder = tmp_path / "answerer"
    tiny_bert_qa(torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    path = tmp_path / "questions.jsonl"
    row = {"question": "Where is the cat?", "context": "The cat sat on the mat in town ."}
    path.write_text(json.dumps(row))
    code, output, _ = tokenlight("explain", "--file", path, "-m", folder)
    assert code == 0
    assert "for the answer ‘" in output
    errors_of_all = tokenlight("explain", "--file", path, "-m", folder, "--target", "all")[2]
    assert "'all' is not in the context" in errors_of_all


def test_an_error_that_concerns_every_text_ends_the_command_at_once(
    tokenlight, classifier, reviews, monkeypatch
):
    code, output, errors = tokenlight(
        "explain", "--file", reviews, "-m", classifier, "--target", "positiv"
    )
    assert (code, output) == (2, "")
    assert "Did you mean 'positive'" in errors
    assert "left out" not in errors

    def raise_missing_extra(*_, **__):
        raise MissingExtra("no library.")

    monkeypatch.setattr("tokenlight.explainer.Explainer.explain_texts", raise_missing_extra)
    errors = tokenlight("explain", "--file", reviews, "-m", classifier)[2]
    assert errors.splitlines()[1:] == ["error: no library."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "7"), "Label number 7 does not exist"),
        (("-x", "lime:num_samples=0"), "samples"),
        (("--target", "positive", "--rather-than", "positive"), "names one class twice"),
        (("--target", "predicted", "--rather-than", "predicted"), "names one class twice"),
        (("--rather-than", "9"), "Label number 9 does not exist"),
        (("--generate", "3"), "does not continue texts"),
        (("--token", "dull"), "--token dull asks for a token's label"),
        (("--seed", "-1"), "seed=-1 is not valid"),
        (("-x", "attcat", "-x", "attcat"), "--method attcat is given twice"),
    ],
)
def test_an_unknown_target_or_option_ends_the_command(
    tokenlight, classifier, reviews, options, message
):
    code, output, errors = tokenlight("explain", "--file", reviews, "-m", classifier, *options)
    assert (code, output) == (2, "")
    assert message in errors
    assert "left out" not in errors


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (tiny_bert_qa, (), "Give a file with the columns 'question' and 'context'"),
        (tiny_bert_tokens, (), "Use --target all for every word"),
        (
            tiny_bert_tokens,
            ("--token", "film", "--target", "nobody"),
            "Unknown label 'nobody'",
        ),
    ],
)
def test_a_model_of_another_kind_is_refused(tokenlight, tmp_path, reviews, model, options, message):
    folder = tmp_path / "model"
    model(torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    code, output, errors = tokenlight("explain", "--file", reviews, "-m", folder, *options)
    assert (code, output) == (2, "")
    assert message in errors
    assert "left out" not in errors


def test_an_error_of_one_text_skips_only_that_text(tokenlight, classifier, reviews, tmp_path):
    """The label that is predicted for one text is another's alternative."""
    code, output, _ = tokenlight(
        *("explain", "--file", reviews, "-m", classifier, "--rather-than", "negative"),
        *("--limit", "1"),
    )
    assert code == 0
    assert "rather than negative" in output
    folder = tmp_path / "model"
    tiny_bert_tokens(torch.float32).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    code, output, errors = tokenlight("explain", "--file", reviews, "-m", folder, "--token", "dull")
    assert code == 2
    assert "row 4 of reviews.csv" in output
    assert "row 1 of reviews.csv is left out: The text has no word 'dull'" in errors


def test_ctrl_c_keeps_finished_texts(tokenlight, classifier, tmp_path, monkeypatch):
    from tokenlight.explainer import Explainer

    path = tmp_path / "many.txt"
    page = tmp_path / "all.csv"
    path.write_text("a good film\n" * 20)
    real = Explainer.explain_texts
    turns = []

    def interrupt_later(self, inputs, *arguments, **options):
        turns.append(1)
        if len(turns) == 3:
            raise KeyboardInterrupt
        return real(self, inputs, *arguments, **options)

    monkeypatch.setattr(Explainer, "explain_texts", interrupt_later)
    code, output, errors = tokenlight(
        "explain", "--file", path, "-m", classifier, "--json", "-", "--csv", page,
        "--html", tmp_path / "all.html",
    )  # fmt: skip
    assert code == 130
    assert "after 8 of 20 texts; the others are missing" in (tmp_path / "all.html").read_text(
        "utf-8"
    )
    assert "stopped: 8 of 20 texts are explained and written." in errors
    assert len(json.loads(output)) == 8
    assert "line 8 of many.txt" in page.read_text(encoding="utf-8")


def test_sigterm_keeps_finished_texts_and_leaves_no_partial_file(classifier, tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("a good film\n" * 20_000)
    table = tmp_path / "out" / "a.csv"
    command = start_command(
        "explain", "--file", path, "-m", classifier, "--json", "-", "--csv", table
    )
    while not command.output_path.stat().st_size and command.process.is_alive():
        time.sleep(0.05)
    command.process.terminate()
    result = command.wait()
    assert result.status == 130, result.errors
    num_explained = len(json.loads(result.output))
    assert 0 < num_explained < 20_000
    written_rows = {row["location"] for row in csv.DictReader(table.read_text().splitlines())}
    assert len(written_rows) in (
        num_explained,
        num_explained - 1,
    )  # a text may be shown when the signal comes, and not yet kept
    assert (
        f"stopped: {len(written_rows)} of 20000 texts are explained and written." in result.errors
    )
    assert [file.name for file in table.parent.iterdir()] == ["a.csv"]


def test_annotated_spans_are_not_read(tokenlight, classifier, tmp_path):
    path = tmp_path / "marked.jsonl"
    path.write_text(json.dumps({"text": "a good film", "spans": "nonsense"}))
    code, _, errors = tokenlight("explain", "--file", path, "-m", classifier)
    assert code == 0
    assert "left out" not in errors


def test_a_wrong_file_is_reported_before_a_model_is_loaded(tokenlight, tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_bytes("review\ncafé\n".encode("latin1"))
    for arguments, message in (
        (("--file", tmp_path / "revews.csv"), "revews.csv does not exist"),
        (("--file", path), "Line 2 of reviews.csv is not UTF-8"),
    ):
        code, _, errors = tokenlight("explain", *arguments, "-m", "/no/such/model")
        assert code == 2
        assert message in errors


def test_texts_are_explained_in_chunks_that_grow(tokenlight, classifier, tmp_path):
    """The first text is on the terminal before the last one is explained."""
    from tokenlight.explainer import Explainer

    path = tmp_path / "many.txt"
    chunk_sizes = []
    path.write_text("a good film\n" * 20)
    real = Explainer.explain_texts

    def record_chunk(self, inputs, *arguments, **options):
        chunk_sizes.append(len(inputs))
        return real(self, inputs, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Explainer, "explain_texts", record_chunk)
        code, output, _ = tokenlight("explain", "--file", path, "-m", classifier)
    assert code == 0
    assert chunk_sizes == [1, 7, 12]
    assert output.count("of many.txt") == 20


def test_no_output_overwrites_the_input_file(tokenlight, reviews):
    code, _, errors = tokenlight("explain", "--file", reviews, "--csv", reviews)
    assert code == 2
    assert "would overwrite --file" in errors
    assert reviews.read_text() == ROWS


def test_the_best_method_is_chosen_once(tokenlight, classifier, reviews, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr("tokenlight.evaluation.choose.DEFAULT_CANDIDATES", ("cat", "gae"))
    code, output, _ = tokenlight(
        "explain", "--file", reviews, "-m", classifier, "--method", "best", "--json", "-"
    )
    assert code == 2
    entries = json.loads(output)
    assert len({entry["method"] for entry in entries}) == 1
    assert all("method='best'" in entry["notes"][-1] for entry in entries)


def test_evaluate_names_the_columns_it_reads(tokenlight, classifier, reviews, tmp_path):
    arguments = ("evaluate", reviews, "-m", classifier, "--limit", 1, "--metric", "aopc")
    code, _, errors = tokenlight(*arguments, "-o", tmp_path / "out")
    assert code == 0
    words = "text from review, no label; not read: stars"
    assert errors.splitlines()[0] == f"reviews.csv: {words}"
    about = json.loads((tmp_path / "out" / "summary.json").read_text())["metadata"]
    assert list(about)[:3] == ["model", "data", "columns"]
    assert about["columns"] == words
    assert f"<dd>{words}</dd>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    errors = tokenlight(*arguments, "--label", "stras", "-o", tmp_path / "other")[2]
    assert "Did you mean 'stars'? Name the column of the label with --label COLUMN." in errors


def test_a_file_of_lines_has_no_columns_to_name(tokenlight, classifier, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a good film\n")
    errors = tokenlight("evaluate", path, "-m", classifier, "-o", tmp_path / "out")[2]
    assert "text from" not in errors


def test_evaluate_looks_for_the_file_before_it_imports_torch():

    code = (
        "import sys\n"
        "from tokenlight.cli import main\n"
        "try:\n    main(['evaluate', 'no-such.csv', '-o', 'out'])\n"
        "except SystemExit as end:\n    assert end.code == 2\n"
        "assert not {'torch', 'transformers', 'scipy'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stderr == "error: no-such.csv does not exist. Check its name.\n"


def test_missing_labels_are_reported_with_the_flag_to_give(
    tokenlight, classifier, reviews, tmp_path
):
    code, _, errors = tokenlight(
        "evaluate", reviews, "-m", classifier, "--metric", "hiding_game", "-o", tmp_path / "out"
    )
    assert code == 2
    assert "Give --label COLUMN, or its option target=predicted to compare" in errors
    assert "labels=" not in errors
    errors = tokenlight(
        "evaluate", reviews, "-m", classifier, "--metric", "rationale", "-o", tmp_path / "out"
    )[2]
    assert "Give a file with a column 'spans'" in errors


def test_resuming_with_other_texts_or_labels_is_refused(tokenlight, classifier, tmp_path):
    path = tmp_path / "a.jsonl"
    out = tmp_path / "out"
    arguments = ("evaluate", path, "-m", classifier, "--metric", "aopc", "-o", out)

    def evaluate_rows(*rows):
        path.write_text("\n".join(map(json.dumps, rows)))
        return tokenlight(*arguments)

    assert evaluate_rows({"text": "a good film"})[0] == 0
    labels = evaluate_rows({"text": "a good film", "label": 1})[2]
    assert "other settings: true labels and marks (was " in labels
    assert "other settings: words of the texts (was " in evaluate_rows({"text": "a bad film"})[2]
    more = evaluate_rows({"text": "a good film"}, {"text": "a bad film"})[2]
    assert "other settings: texts (was 1, now 2)" in more


def test_a_number_that_rounds_to_zero_has_no_sign():
    from tokenlight.evaluation.aggregate import format_cell

    numbers = {"mean": -0.0001, "low": -0.0004, "high": -0.0, "count": 3}
    assert format_cell(numbers) == "0.000 [0.000, 0.000]"
    assert format_cell({**numbers, "low": -0.0006}) == "0.000 [-0.001, 0.000]"
