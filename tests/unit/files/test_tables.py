"""Data files of every format, read as examples."""

from __future__ import annotations

import gzip
import json

import pytest

from tokenlight import Question
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.tables import Example, read_examples

COVERED_MODULES = ("datafiles",)


def write(folder, name, text):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "good", "label": 1}\n\n{"text": "bad", "label": 0}\n'),
        ("a.jsonl.gz", '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n'),
        ("a.json", '[{"text": "good", "label": 1}, {"text": "bad", "label": 0}]'),
        ("a.csv", "text,label\ngood,1\nbad,0\n"),
        ("a.csv.gz", "sentence,label\ngood,1\nbad,0\n"),
        ("a.tsv", "text\tlabel\ngood\t1\nbad\t0\n"),
    ],
)
def test_texts_and_labels_are_read_from_every_format(tmp_path, name, text):
    assert read_examples(write(tmp_path, name, text)) == [Example("good", 1), Example("bad", 0)]
    assert len(read_examples(tmp_path / name, limit=1)) == 1


def test_parquet_and_plain_text_are_read(tmp_path):
    from tokenlight.files.write import write_parquet

    write_parquet(tmp_path / "a.parquet", [{"text": "good", "label": "yes"}])
    assert read_examples(tmp_path / "a.parquet") == [Example("good", "yes")]
    assert read_examples(write(tmp_path, "a.txt", "one\n\ntwo\n")) == [
        Example("one"),
        Example("two"),
    ]


def test_a_line_of_plain_text_ends_where_the_line_ends(tmp_path):
    path = write(tmp_path, "d.txt", "good\u2028film\u0085here\r\n\nbad\n")
    assert [example.text for example in read_examples(str(path))] == [
        "good\u2028film\u0085here",
        "bad",
    ]


def test_pairs_questions_and_marks_are_found_by_their_names(tmp_path):
    rows = [
        {"premise": "a", "hypothesis": "b", "label": "2"},
        {"question": "who", "context": "red cat", "answers": [{"text": "cat", "answer_start": 4}]},
        {"question": "who", "context": "red", "answers": {"text": [], "answer_start": []}},
        {"text": "one two  three", "rationales": [[1, 3]]},
        {"text": "one two", "spans": [[0, 3]]},
        {"text": "one", "label": -1},
    ]
    examples = read_examples(write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))))
    assert examples[0] == Example(("a", "b"), 2)
    assert examples[1] == Example(Question("who", "red cat"), None, ((4, 7),))
    assert examples[2].spans == ()
    assert examples[3].spans == ((4, 14),)
    assert examples[4].spans == ((0, 3),)
    assert examples[5].label == -1  # among others it is a label
    columns = write(tmp_path, "b.csv", "x,y,z\ngood,bad,1\n")
    assert read_examples(columns, text_column="x", label_column="z") == [Example("good", 1)]
    assert read_examples(columns, text_column="x+y") == [Example(("good", "bad"))]


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.jsonl", "{half", DamagedFile, "Line 1 of a.jsonl is not valid JSON"),
        ("a.jsonl", "[1]", BadInput, "Line 1 of a.jsonl is not a JSON object"),
        ("a.json", "{}", BadInput, "not a list of JSON objects"),
        ("a.jsonl", '{"x": 1}', BadInput, "no column 'text' in line 1 of a.jsonl, only x"),
        (
            "a.jsonl",
            '{"text": "b"}\n\n{"text": null}',
            BadInput,
            "no text in line 3 of a.jsonl",
        ),
        (
            "a.csv",
            "premise,hypothesis\na,b\nc\n",
            BadInput,
            "no text in row 2 of a.csv: its 'hypo",
        ),
        ("a.jsonl", "", BadInput, "contains no text"),
        ("a.parquet", "no", DamagedFile, "not a Parquet file"),
        ("a.xlsx", "no", BadInput, "the extension '.xlsx' is not one of"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, name, text, error, message):
    with pytest.raises(error, match=message):
        read_examples(write(tmp_path, name, text))


def test_a_cut_gz_file_and_a_missing_file_are_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "good"}\n' * 50)[:30])
    with pytest.raises(DamagedFile, match="cannot be read"):
        read_examples(path)
    with pytest.raises(DamagedFile, match="does not exist"):
        read_examples(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="no column 'z' in row 1 of b.csv"):
        read_examples(write(tmp_path, "b.csv", "text\ngood\n"), label_column="z")
