"""Which columns of a file are read, and what is said where they cannot be."""

import json

import pytest

from tokenlight.columns import taken
from tokenlight.datafiles import placed_rows, read
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.wording import in_flags


def written(folder, name, content):
    place = folder / name
    place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


@pytest.mark.parametrize(
    ("rows", "how", "words"),
    [
        ([{"review": "a", "stars": 1}], {}, "text from review, no label; not read: stars"),
        ([{"text": "a", "label": 1}], {}, "text from text, label from label"),
        (
            [{"review": "a", "stars": 1, "id": 3}],
            {"label": "stars"},
            "text from review, label from stars; not read: id",
        ),
        ([{"x": "a", "y": "b"}], {"text": "x+y"}, "text from x + y, no label"),
        (
            [{"question": "a", "context": "b", "answers": []}],
            {},
            "text from question + context, no label, marks from answers",
        ),
        (
            [{"text": "a"}, {"sentence": "b", "label": 1}],
            {},
            "text from text or sentence, label from label",
        ),
    ],
)
def test_the_columns_that_are_read_are_told(tmp_path, rows, how, words):
    place = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert taken(one.columns for one in read(place, **how)) == words


def test_without_use_for_labels_they_are_not_read(tmp_path):
    place = written(tmp_path, "a.csv", "text,label\na,1\n")
    assert taken([read(place)[0].columns], labels=False) == "text from text; not read: label"


@pytest.mark.parametrize(
    ("name", "content", "how", "message"),
    [
        ("a.csv", "review,stars\na,1\n", {"text": "reveiw"}, "Did you mean 'review'? Name the column "
         "of the text with text='COLUMN' (two joined by + for a pair)."),
        ("a.csv", "review,stars\na,1\n", {"label": "star"}, "Did you mean 'stars'? Name the column of "
         "the label with label='COLUMN'."),
        ("a.csv", "review,stars\na,1\n", {"text": "zzz"}, "only review, stars. Name the column"),
        ("a.csv", "review;label\na;1\n", {}, "only review;label. Its columns look separated by "
         "semicolons (';'): save it with commas"),
        ("a.csv", "review\tlabel\na\t1\n", {}, "separated by tabs ('\\t'): give it the ending .tsv."),
        ("a.tsv", "review,label\na,1\n", {}, "separated by commas (','): give it the ending .csv."),
        ("a.csv", "a,b,c\nx,y,z\n", {"text": "a+b+c"}, "a + b + c are 3 columns"),
    ],
)  # fmt: skip
def test_a_column_that_is_not_there_is_told_with_the_remedy(tmp_path, name, content, how, message):
    with pytest.raises(BadInput) as refused:
        read(written(tmp_path, name, content), **how)
    assert message in str(refused.value)


def test_on_the_command_line_the_flags_are_named(tmp_path):
    place = written(tmp_path, "a.csv", "review,stars\na,1\n")
    with in_flags():
        with pytest.raises(BadInput, match="with --text COLUMN"):
            read(place, text="x")
        with pytest.raises(BadInput, match="with --label COLUMN"):
            read(place, label="x")


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.tsv", "a.jsonl"])
def test_a_file_in_another_encoding_names_the_line_and_the_remedy(tmp_path, name):
    lines = b"\n".join([b'{"text": "text"}', b'{"text": "fine"}', b'{"text": "Un caf\xe9 noir"}'])
    with pytest.raises(DamagedFile) as refused:
        read(
            written(tmp_path, name, lines),
            text='{"text": "text"}' if name[2:] in "csv tsv" else None,
        )
    assert f"line 3 of {name} is not UTF-8: byte 0xe9 behind " in str(refused.value)
    assert "Un caf'" in str(refused.value)
    assert "iconv -f latin1 -t utf-8 OLD > NEW" in str(refused.value)


def test_utf16_is_told_apart_and_so_is_a_cut_file(tmp_path):
    with pytest.raises(DamagedFile, match="iconv -f utf-16 "):
        read(written(tmp_path, "a.txt", "text\n".encode("utf-16")))
    with pytest.raises(DamagedFile, match="line 2 of b.txt is not UTF-8"):
        read(written(tmp_path, "b.txt", "fine\ncafé".encode()[:-1]))


def test_a_misspelt_file_offers_the_near_one(tmp_path):
    written(tmp_path, "reviews.csv", "text\na\n")
    with pytest.raises(
        DamagedFile, match=r"revews.csv does not exist. Did you mean .*reviews.csv\?"
    ):
        read(tmp_path / "revews.csv")
    with pytest.raises(DamagedFile, match=r"zzz.csv does not exist.$"):
        read(tmp_path / "zzz.csv")
    with pytest.raises(DamagedFile, match="is a folder; give a file in it"):
        read(tmp_path)


def test_a_misspelt_ending_offers_the_near_file(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    written(tmp_path, "reviews.csv", "text\na\n")
    with pytest.raises(BadInput, match=r"is no file. Did you mean .*reviews.csv\?"):
        read(tmp_path / "reviews.cvs")


def test_rows_are_read_one_by_one(tmp_path):
    place = written(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n{half')
    rows = placed_rows(place)
    assert next(rows) == ("line 1 of a.jsonl", {"text": "a"})
    assert next(rows) == ("line 3 of a.jsonl", {"text": "b"})
    with pytest.raises(DamagedFile, match="line 4"):
        next(rows)


def test_lines_of_plain_text_have_the_numbers_an_editor_shows(tmp_path):
    place = written(tmp_path, "a.txt", "a\n\nb\n")
    assert [where for where, _ in placed_rows(place)] == ["line 1 of a.txt", "line 3 of a.txt"]
