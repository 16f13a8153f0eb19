"""Which columns of a file are read, and what is said where they cannot be."""

import csv
import gzip
import json

import pytest

from tests.helpers.expect import expect_error
from tokenlight.cli.flag_hints import format_for_command_line
from tokenlight.data.head import Head
from tokenlight.errors import BadInput, DamagedFile, UnknownName
from tokenlight.evaluation.preflight import parse_labels
from tokenlight.files.columns import Columns, describe_columns
from tokenlight.files.stores import find_files
from tokenlight.files.tables import iter_numbered_rows, iter_rows, read_examples
from tokenlight.files.write import write_parquet


def write_file(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"review": "a", "stars": 1}], {}, "text from review, no label; not read: stars"),
        ([{"text": "a", "label": 1}], {}, "text from text, label from label"),
        (
            [{"review": "a", "stars": 1, "id": 3}],
            {"label_column": "stars"},
            "text from review, label from stars; not read: id",
        ),
        ([{"x": "a", "y": "b"}], {"text_column": "x+y"}, "text from x + y, no label"),
        (
            [{"question": "a", "context": "b", "answers": []}],
            {},
            "text from question + context, no label, annotations from answers",
        ),
        (
            [{"text": "a"}, {"sentence": "b", "label": 1}],
            {},
            "text from text or sentence, label from label",
        ),
    ],
)
def test_the_columns_that_are_read_are_reported(tmp_path, rows, options, words):
    path = write_file(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert describe_columns(example.columns for example in read_examples(path, **options)) == words


def test_labels_are_not_read_if_nothing_uses_them(tmp_path):
    path = write_file(tmp_path, "a.csv", "text,label\na,1\n")
    examples = [read_examples(path)[0].columns]
    assert describe_columns(examples, keeps_unread=True) == "text from text, label from label"
    assert (
        describe_columns([Columns(("text",), unread=("id",))], keeps_unread=True)
        == "text from text; kept columns: id"
    )
    assert describe_columns([], keeps_unread=True) == ""


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "review,stars\na,1\n", {"text_column": "reveiw"}, "Did you mean 'review'? Name the column "
         "of the text with text_column='COLUMN' (two joined by + for a pair)."),
        ("a.csv", "review,stars\na,1\n", {"label_column": "star"}, "Did you mean 'stars'? Name the column of "
         "the label with label_column='COLUMN'."),
        ("a.csv", "review,stars\na,1\n", {"text_column": "zzz"}, "only review, stars. Name the column"),
        ("a.csv", "review;label\na;1\n", {},
         "There is no column 'text' in row 1 of a.csv, only review;label. Name the column"),
        ("a.csv", "a,b,c\nx,y,z\n", {"text_column": "a+b+c"}, "a+b+c names 3 columns"),
    ],
)  # fmt: skip
def test_a_missing_column_is_reported_with_the_remedy(tmp_path, name, content, options, message):
    with pytest.raises(BadInput) as refused:
        read_examples(write_file(tmp_path, name, content), **options)
    assert message in str(refused.value)


def test_on_the_command_line_the_flags_are_named(tmp_path):
    path = write_file(tmp_path, "a.csv", "review,stars\na,1\n")
    with expect_error(BadInput, "text-column-missing") as refused:
        read_examples(path, text_column="x")
    assert "with --text COLUMN" in format_for_command_line(refused.value)
    with expect_error(BadInput, "label-column-missing") as refused:
        read_examples(path, label_column="x")
    assert "with --label COLUMN" in format_for_command_line(refused.value)


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.tsv", "a.jsonl"])
def test_a_file_in_another_encoding_names_the_line_and_the_remedy(tmp_path, name):
    lines = b"\n".join([b'{"text": "text"}', b'{"text": "fine"}', b'{"text": "Un caf\xe9 noir"}'])
    with pytest.raises(DamagedFile) as refused:
        read_examples(
            write_file(tmp_path, name, lines),
            text_column='{"text": "text"}' if name[2:] in "csv tsv" else None,
        )
    assert f"Line 3 of {name} is not UTF-8 (invalid continuation byte, byte 16)" in str(
        refused.value
    )
    assert "iconv -f latin1 (or utf-16) -t utf-8 OLD > NEW" in str(refused.value)


def test_utf16_and_truncated_utf8_are_refused(tmp_path):
    with expect_error(DamagedFile, "line-not-utf8", mentions="Line 1 of a.txt"):
        read_examples(write_file(tmp_path, "a.txt", "text\n".encode("utf-16")))
    with expect_error(DamagedFile, "line-not-utf8", mentions="Line 2 of b.txt"):
        read_examples(write_file(tmp_path, "b.txt", "fine\ncafé".encode()[:-1]))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with expect_error(DamagedFile, "table-missing", mentions="zzz.csv"):
        read_examples(tmp_path / "zzz.csv")
    with expect_error(DamagedFile, "table-not-a-file"):
        read_examples(tmp_path)


def test_rows_are_read_one_by_one(tmp_path):
    path = write_file(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n{half')
    rows = iter_rows(path)
    assert next(rows) == (("line", 1, "a.jsonl"), {"text": "a"})
    assert next(rows) == (("line", 3, "a.jsonl"), {"text": "b"})
    with expect_error(DamagedFile, "line-not-json", mentions="Line 4"):
        next(rows)


def test_a_packed_file_is_read_wherever_it_is_stored(tmp_path):
    write_file(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text": "a"}'))
    (path,) = find_files(str(tmp_path), (".jsonl.gz",))
    assert list(iter_numbered_rows(path)) == [(1, {"text": "a"})]


def test_lines_of_plain_text_have_the_numbers_an_editor_shows(tmp_path):
    path = write_file(tmp_path, "a.txt", "a\n\nb\n")
    locations = [str(location) for location, _ in iter_rows(path)]
    assert locations == ["line 1 of a.txt", "line 3 of a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,answers\ngood film,yes\n", "In row 1 of a.csv, 'answers' is 'yes', not [{"),
        ("a.csv", "text,spans\ngood film,7\n", "In row 1 of a.csv, 'spans' is '7', not [[FIRST"),
        ("a.jsonl", '{"text": "a b", "spans": {}}', "In line 1 of a.jsonl, 'spans' is {}, not"),
        ("a.jsonl", '{"text": "a b", "spans": [[0, 9]]}', "marks 0 to 9, but the text has 3 char"),
        ("a.jsonl", '{"text": "a b", "spans": [[0.5, 1]]}', "not [[FIRST, END], …] in characters"),
        ("a.jsonl", '{"text": "dull film here", "rationales": [[0, 9]]}',
         "In line 1 of a.jsonl, 'rationales' marks 0 to 9, but the text has 3 words"),
        ("a.jsonl", '{"text": "a", "answers": [{"text": 3, "answer_start": 0}]}', "'answers' is"),
        ("a.jsonl", '{"text": "a", "answers": {"text": ["a"]}}', "'answers' is"),
        ("a.jsonl", '{"text": 12, "rationales": [[0, 1]]}', "'text' is a number (12), not a text"),
    ],
)  # fmt: skip
def test_marks_in_no_known_form_are_refused_by_row_and_column(tmp_path, name, content, message):
    with pytest.raises(BadInput) as refused:
        read_examples(write_file(tmp_path, name, content))
    assert message in str(refused.value)


def test_marks_that_no_metric_needs_are_never_parsed(tmp_path):
    (examples,) = read_examples(
        write_file(tmp_path, "a.csv", "text,answers\ngood film,yes\n"), with_annotations=False
    )
    assert (examples.text, examples.spans, examples.columns.unread) == (
        "good film",
        None,
        ("answers",),
    )


@pytest.mark.parametrize(
    ("column", "cell", "spans"),
    [
        ("spans", "[[0,4]]", ((0, 4),)),
        ("spans", "", None),
        ("spans", "null", None),
        ("spans", "[]", ()),
        ("rationales", "[[1, 2], [0, 0]]", ((5, 9),)),
        ("answers", '[{""text"": ""film"", ""answer_start"": 5}]', ((5, 9),)),
        ("answers", '{""text"": [""film""], ""answer_start"": [5.0]}', ((5, 9),)),
    ],
)
def test_marks_in_a_cell_of_a_csv_are_json(tmp_path, column, cell, spans):
    (examples,) = read_examples(
        write_file(tmp_path, "a.csv", f'text,{column}\ngood film,"{cell}"\n')
    )
    assert examples.spans == spans


def test_a_column_of_marks_that_is_named_as_the_text_is_the_text(tmp_path):
    (examples,) = read_examples(
        write_file(tmp_path, "a.csv", "id,answers\n1,yes\n"), text_column="answers"
    )
    assert (examples.text, examples.spans, examples.columns.unread) == ("yes", None, ("id",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\nBad, really bad film,0\n", "Row 1 of a.csv has 3 cells, but the header has 2. "
         "Put quotes around a text with commas."),
        ("a.tsv", "text\tlabel\nfine\t1\nBad\tfilm\t0\n", "Row 2 of a.tsv has 3 cells, but the header has 2. "
         "Put quotes around a text with tabs."),
        ("a.csv", "text,label,text,label\na,1,b,2\n", "more than one column named 'text', 'label'"),
    ],
)  # fmt: skip
def test_a_table_with_cells_too_many_or_names_twice_is_refused(tmp_path, name, content, message):
    with pytest.raises(BadInput) as refused:
        read_examples(write_file(tmp_path, name, content))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\nfine,1\n\n"Bad,0\nmore,1\n', "that begins in line 4 cannot be read: unexpected end"),
        ('text,label\n"Bad" film,0\n', "that begins in line 2 cannot be read: ',' expected after '\"'"),
        ('text,label\n"Bad,0\n"more",1\n', "The row of a.csv that begins in line 2 cannot be read"),
    ],
)  # fmt: skip
def test_quotes_that_do_not_match_name_their_line(tmp_path, content, message):
    with pytest.raises(DamagedFile) as refused:
        read_examples(write_file(tmp_path, "a.csv", content))
    assert message in str(refused.value)


def test_rows_of_a_csv_may_be_short_empty_or_span_lines(tmp_path):
    path = write_file(tmp_path, "a.csv", '\ntext,label,,\n"a\nb, ""c""",1,,\n\nd\n')
    assert [(example.text, example.label) for example in read_examples(path)] == [
        ('a\nb, "c"', 1),
        ("d", None),
    ]
    assert list(iter_rows(write_file(tmp_path, "b.csv", ""))) == []


def test_a_long_cell_is_read_and_the_limit_of_the_csv_module_stays(tmp_path):
    before = csv.field_size_limit()
    assert (
        len(read_examples(write_file(tmp_path, "a.csv", f"text\n{'a' * 200_000}\n"))[0].text)
        == 200_000
    )
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (12345, "a number (12345)"),
        (1.5, "a number (1.5)"),
        (True, "true or false (True)"),
        (["a", "b"], "a list (['a', 'b'])"),
        ({"a": 1}, "a table ({'a': 1})"),
    ],
)
def test_a_cell_that_is_not_text_is_not_read_as_text(tmp_path, cell, kind):
    path = write_file(tmp_path, "a.json", json.dumps([{"text": "fine"}, {"text": cell}]))
    with pytest.raises(BadInput) as refused:
        read_examples(path)
    assert f"In row 2 of a.json, 'text' is {kind}, not a text. " in str(refused.value)


def test_a_number_in_a_csv_is_a_text(tmp_path):
    assert read_examples(write_file(tmp_path, "a.csv", "text\n12345\n"))[0].text == "12345"


def test_a_parquet_column_of_numbers_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, [{"text": 1}, {"text": 2}])
    with expect_error(BadInput, "column-not-text", mentions="row 1 of a.parquet"):
        read_examples(path)


def test_a_parquet_file_with_a_name_twice_or_zipped_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    with expect_error(BadInput, "column-duplicate", mentions="'text'"):
        read_examples(path)
    with expect_error(BadInput, "parquet-gz"):
        read_examples(write_file(tmp_path, "b.parquet.gz", b""))
    with expect_error(BadInput, "table-extension"):
        read_examples(write_file(tmp_path, "a.doc", ""))


def test_a_plus_in_the_name_of_a_column_is_no_pair(tmp_path):
    path = write_file(tmp_path, "a.csv", "a+b,a,b\nx,y,z\n")
    assert [read_examples(path, text_column=name)[0].text for name in ("a+b", "b+a")] == [
        "x",
        ("z", "y"),
    ]


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ("a,-1\nb,1\n", [-1, 1]),
        ("a,-1\nb,\n", [-1, None]),
        ("a,-1\nb,-1\n", [None, None]),  # a test half whose labels are hidden
    ],
)
def test_minus_one_among_other_labels_is_a_label(tmp_path, rows, labels):
    examples = read_examples(write_file(tmp_path, "a.csv", f"text,label\n{rows}"))
    assert [example.label for example in examples] == labels


def test_minus_one_is_the_label_of_that_name_and_refused_where_there_is_none():
    assert parse_labels([-1, 1, None], Head("text-classification", ("-1", "1"))) == (0, 1, None)
    with pytest.raises(UnknownName, match="Unknown label '-1'. Known: bad, good. .*no label"):
        parse_labels([-1, 1], Head("text-classification", ("bad", "good")))


def test_a_text_file_with_only_carriage_returns_as_line_ends_is_refused(tmp_path):
    path = tmp_path / "old.txt"
    path.write_bytes(b"a dull plot\ra great film\r")
    with expect_error(DamagedFile, "line-carriage-return", mentions="Line 1 of old.txt"):
        list(iter_rows(path))
    path.write_bytes(b"a dull plot\r\na great film\r\n")
    assert [row["text"] for _, row in iter_rows(path)] == ["a dull plot", "a great film"]
