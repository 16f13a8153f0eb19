"""A file that is refused is closed at once, even while the error that refused it is held."""

import gzip
import json
import os
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tokenlight.cli.inputs import TextFile
from tokenlight.errors import TokenlightError
from tokenlight.evaluation.corpus import DocumentFrequencies
from tokenlight.files import parsing, tables
from tokenlight.files.saved import load
from tokenlight.files.write import write_parquet
from tokenlight.inputs import picture
from tokenlight.scale.text_files import FilePart, PartReader, TextFiles
from tokenlight.web import saved_files
from tokenlight.web.limits import ServerLimits

DESCRIPTORS = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="no /proc/self/fd to look at")


def list_open_paths(folder):
    """The files below ``folder`` that this process has open, without collecting any garbage."""
    result = []
    for descriptor in DESCRIPTORS.iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target.startswith(f"{folder.resolve()}{os.sep}"):
            result.append(target)
    return result


def write(folder, name, content):
    path = folder / name
    if isinstance(content, list):
        write_parquet(path, content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8")
    return path


def write_damaged_parquet(folder, name):
    """A Parquet file whose footer is whole, and whose pages are not."""
    path = write(folder, name, [{"text": f"{number} never dull"} for number in range(5000)])
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    return path


def write_doubled_parquet(folder, name):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder / name
    parquet.write_table(pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), path)
    return path


def write_odd_time_parquet(folder, name):
    """A time that Python's calendar does not have."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = folder / name
    times = pyarrow.array([2**62], pyarrow.timestamp("us"))
    parquet.write_table(pyarrow.table({"text": ["a"], "time": times}), path)
    return path


LONG_ROWS = 2 * parsing.MAX_DEPTH
# Each file is refused by whoever reads it: while its lines are read, or while its cells are understood.
REFUSED_FILES = {
    "stray quote": ("a.csv", 'text,label\n"Bad" film,0\n'),
    "stray quote in a tsv": ("a.tsv", 'text\tlabel\n"Bad" film\t0\n'),
    "quote that is never closed": ("a.csv", 'text,label\nfine,1\n"Bad,0\nmore,1\n'),
    "too many cells": ("a.csv", "text,label\nfine,1\na,b,c\nmore,1\n"),
    "double column": ("a.csv", "text,text\na,b\n"),
    "csv in latin-1": ("a.csv", b"text\nfine\ncaf\xe9\nmore\n"),
    "csv packed and cut": ("a.csv.gz", gzip.compress(b"text\nfine\n" * 400)[:-9]),
    "csv packed and damaged": ("a.csv.gz", gzip.compress(b"text\nfine\n" * 400)[:20] + b"zzz"),
    "not packed at all": ("a.csv.gz", b"text\nfine\n"),
    "json line that is half": ("a.jsonl", '{"text": "a"}\n{"text": \n{"text": "b"}\n'),
    "json line that is no object": ("a.jsonl", '{"text": "a"}\n[1]\n{"text": "b"}\n'),
    "json line too deep": ("a.jsonl", f'{{"text": {"[" * LONG_ROWS}{"]" * LONG_ROWS}}}\n{{}}\n'),
    "json line that is null": ("a.jsonl", '{"text": "a"}\nnull\n{"text": "b"}\n'),
    "json line that is NaN": ("a.jsonl", '{"text": "a"}\nNaN\n{"text": "b"}\n'),
    "json line in latin-1": ("a.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n{"text": "b"}\n'),
    "json list that is half": ("a.json", '[{"text": "a"}, {'),
    "json list that is no list": ("a.json", '{"text": "a"}'),
    "json list packed and cut": ("a.json.gz", gzip.compress(b'[{"text": "a"}]')[:-9]),
    "lone carriage return": ("a.txt", "a dull plot\rb\nmore\n"),
    "text in utf-16": ("a.txt", "fine\n".encode("utf-16")),
    "no Parquet": ("a.parquet", b"PAR1 no Parquet PAR1"),
    "empty Parquet": ("a.parquet", b""),
    "damaged Parquet": ("a.parquet", write_damaged_parquet),
    "double column in Parquet": ("a.parquet", write_doubled_parquet),
    "odd time in Parquet": ("a.parquet", write_odd_time_parquet),
    "packed Parquet": ("a.parquet.gz", b"\x1f\x8b"),
}
# Rows that can be read, and whose cells hold no text.
REFUSED_ROWS = {
    "text that is null": ("a.jsonl", '{"text": "a"}\n{"text": null}\n{"text": "b"}\n'),
    "text that is NaN": ("a.jsonl", '{"text": "a"}\n{"text": NaN}\n{"text": "b"}\n'),
    "text that is a number": ("a.parquet", [{"text": 1}, {"text": 2}]),
    "column that is missing": ("a.csv", "review;label\na;1\nb;2\n"),
    "column missing in a later row": ("a.jsonl", '{"text": "a"}\n{"x": "a"}\n{"text": "b"}\n'),
    "marks beyond the text": ("a.jsonl", '{"text": "a", "spans": [[0, 9]]}\n{"text": "b"}\n'),
    "marks that are none": ("a.jsonl", '{"text": "a", "spans": [[0]]}\n{"text": "b"}\n'),
}


def read_rows(path):
    return list(tables.iter_rows(path))


def read_as_a_job(path):
    """As workers do: gone through once, then block by block, the last one first."""
    texts = TextFiles.scan(str(path), None, (), None)
    rows = sum(source.num_rows for source in texts.sources)
    with closing(PartReader(texts)) as reader:
        reader.read(FilePart(0, 0, rows - 1, 1))
    raise AssertionError(f"{path} was not refused")


def refuse(folder, name, content, read):
    path = content(folder, name) if callable(content) else write(folder, name, content)
    with pytest.raises(TokenlightError) as refused:
        read(path)
    return refused.value  # with the traceback, and so all frames that the error went through


@pytest.mark.parametrize("read", [tables.read_examples, read_rows], ids=["read", "rows"])
@pytest.mark.parametrize("case", REFUSED_FILES)
def test_a_refused_file_is_closed_while_its_error_is_held(tmp_path, case, read):
    held = refuse(tmp_path, *REFUSED_FILES[case], read)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


@pytest.mark.parametrize("case", REFUSED_ROWS)
def test_a_file_with_a_refused_row_is_closed_while_its_error_is_held(tmp_path, case):
    held = refuse(tmp_path, *REFUSED_ROWS[case], tables.read_examples)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


@pytest.mark.parametrize("case", [*REFUSED_FILES, "column that is missing"])
def test_the_command_closes_a_refused_file(tmp_path, case):
    name, content = (REFUSED_FILES | REFUSED_ROWS)[case]
    held = refuse(tmp_path, name, content, lambda path: TextFile(str(path), None, None, None))
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


@pytest.mark.parametrize(
    "case", [case for case in REFUSED_FILES if "Parquet" not in case] + ["column that is missing"]
)
def test_a_job_closes_a_refused_file(tmp_path, case):
    held = refuse(tmp_path, *(REFUSED_FILES | REFUSED_ROWS)[case], read_as_a_job)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


@pytest.mark.parametrize(
    "case", ["no Parquet", "empty Parquet", "damaged Parquet", "packed Parquet"]
)
def test_a_job_closes_a_refused_parquet_file(tmp_path, case):
    held = refuse(tmp_path, *REFUSED_FILES[case], read_as_a_job)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


def test_a_job_closes_a_file_that_changed_or_ends_early(tmp_path):
    path = write(tmp_path, "a.csv", "text\n" + "fine\n" * 3000)
    texts = TextFiles.scan(str(path), None, (), None)
    for rows in (100, 3001):
        reader = PartReader(texts)
        write(tmp_path, "a.csv", "text\n" + "fine\n" * rows)
        with pytest.raises(TokenlightError, match="ends before row 2000|was changed") as refused:
            reader.read(FilePart(0, 0, 1000, 1000))
        assert list_open_paths(tmp_path) == []
        assert refused.value.__traceback__ is not None


def test_a_reader_that_stopped_half_way_can_be_closed(tmp_path):
    for name, content in [
        ("a.csv", "text\n" + "fine\n" * 3000),
        ("a.parquet", [{"text": "a"}] * 3000),
    ]:
        texts = TextFiles.scan(str(write(tmp_path, name, content)), None, (), None)
        with closing(PartReader(texts)) as reader:
            reader.read(FilePart(0, 0, 0, 10))
            assert list_open_paths(tmp_path)
        assert list_open_paths(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text\n" + "fine\n" * 3000),
        ("a.txt", "fine\n" * 3000),
        ("a.jsonl", '{"text": "fine"}\n' * 3000),
        ("a.parquet", [{"text": "fine"}] * 3000),
        ("a.csv.gz", gzip.compress(b"text\n" + b"fine\n" * 3000)),
    ],
    ids=[
        "csv",
        "txt",
        "jsonl",
        "parquet",
        "compressed csv",
    ],  # a compressed file holds the time of day
)
def test_rows_that_are_not_read_to_the_end_can_be_closed(tmp_path, name, content):
    path = write(tmp_path, name, content)
    with closing(tables.iter_rows(path)) as rows:
        assert len(list(islice(rows, 2))) == 2
        assert list_open_paths(tmp_path)
    assert list_open_paths(tmp_path) == []
    with closing(TextFile(str(path), None, None, None).read_examples()) as texts:
        next(texts)
        assert list_open_paths(tmp_path)
    assert list_open_paths(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("a.json", "{", load),
        ("a.json", '{"format": 9}', load),
        (
            "a.json",
            '{"counts": {"a": -1}}',
            lambda path: DocumentFrequencies.from_file(str(path), None),
        ),
        ("a.json", "{", lambda path: saved_files.open_paths([str(path)], ServerLimits())),
        ("run.json", "{", lambda path: saved_files.open_paths([str(path.parent)], ServerLimits())),
    ],
)
def test_a_saved_file_is_closed_when_it_is_refused(tmp_path, name, content, read):
    held = refuse(tmp_path, name, content, read)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


@pytest.mark.parametrize("cut", [0, 20, 60])
def test_a_refused_picture_is_closed(tmp_path, cut):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a.png"
    image.effect_noise((64, 64), 50).save(path)
    held = refuse(tmp_path, "a.png", path.read_bytes()[:cut], picture.read_image)
    assert list_open_paths(tmp_path) == []
    assert held.__traceback__ is not None


def test_the_check_for_open_files_sees_an_open_file(tmp_path):
    path = write(tmp_path, "a.txt", json.dumps("fine"))
    with path.open("rb"):
        assert list_open_paths(tmp_path) == [str(path.resolve())]
    assert list_open_paths(tmp_path) == []
