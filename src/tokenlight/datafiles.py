"""Texts with labels and marks from files: jsonl, csv, tsv, parquet, plain text, each also .gz.

Also the two ways results are written: beside and renamed, so that no half file is ever left.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.tokens import Question, TextInput

QUESTION = ("question", "context")
PAIRS = (
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
)
TEXTS = ("text", "sentence", "content", "review", "document")
LABELS = ("label", "labels", "class", "target")
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")


@dataclass(frozen=True, slots=True)
class Example:
    """One text with what people know of it.

    ``spans``: marked (first character, behind the last) in the text's last part.
    """

    text: TextInput
    label: str | int | None = None
    spans: tuple[tuple[int, int], ...] | None = None


def read(
    source: str | os.PathLike[str],
    *,
    text: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    split: str | None = None,
) -> list[Example]:
    """Examples of a file, or of a data set that the ``datasets`` library knows by name.

    Columns are found by their usual names (text, sentence, …; question and context; premise and
    hypothesis; label; spans, rationales or answers) unless ``text`` (two joined by ``+`` for a pair)
    and ``label`` name them.
    """
    place = Path(source)
    is_file = _ending(place) in ENDINGS or place.exists()
    rows = numbered_rows(place) if is_file else enumerate(_from_datasets(str(source), split), 1)
    # The number of a line is where an editor finds it: empty lines count.
    kind = "line" if _ending(place) == ".jsonl" else "row"
    found = [
        _example(row, f"{kind} {number} of {place.name}", text, label)
        for number, row in islice(rows, limit)
    ]
    if not found:
        raise BadInput(f"{place.name} holds no text; give a file with at least one row.")
    return found


def _ending(place: Path) -> str:
    name = place.name.lower().removesuffix(".gz")
    return Path(name).suffix


def numbered_rows(place: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a file, each with its number (of a .jsonl: of its line), counted from 1."""
    if not place.is_file():
        raise DamagedFile(f"{place} does not exist or is no file.")
    try:
        if _ending(place) == ".jsonl":
            yield from _json_lines(place)
        else:
            yield from enumerate(_table(place), 1)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as broken:
        raise DamagedFile(f"{place.name} cannot be read: {broken}.") from broken


def _table(place: Path) -> Iterator[Mapping[str, Any]]:
    match _ending(place):
        case ".json":
            yield from _json_list(place)
        case ".csv":
            yield from csv.DictReader(io.StringIO(_text(place)))
        case ".tsv":
            yield from csv.DictReader(io.StringIO(_text(place)), delimiter="\t")
        case ".txt":
            lines = io.StringIO(_text(place), newline=None)  # cuts at ends of lines only
            yield from ({"text": line.rstrip("\n")} for line in lines if line.strip())
        case ".parquet":
            yield from _parquet(place)
        case ending:
            raise BadInput(
                f"cannot read {place.name}: the ending {ending!r} is none of "
                f"{', '.join(ENDINGS)} (each may be followed by .gz)."
            )


def _text(place: Path) -> str:
    content = place.read_bytes()
    if place.name.lower().endswith(".gz"):
        content = gzip.decompress(content)
    return content.decode("utf-8-sig")


def _json_lines(place: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # splitlines() would also cut at characters such as U+0085, which JSON strings may hold.
    for number, line in enumerate(_text(place).split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as broken:
                raise DamagedFile(
                    f"line {number} of {place.name} is no JSON: {broken}."
                ) from broken
            if not isinstance(row, dict):
                raise BadInput(f"line {number} of {place.name} is no JSON object.")
            yield number, row


def _json_list(place: Path) -> Iterator[Mapping[str, Any]]:
    try:
        content = json.loads(_text(place))
    except json.JSONDecodeError as broken:
        raise DamagedFile(f"{place.name} is no JSON: {broken}.") from broken
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise BadInput(f"{place.name} is no list of JSON objects; one object a line is .jsonl.")
    yield from content


def _parquet(place: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise MissingExtra.naming("pyarrow", "bench", "a Parquet file") from missing
    try:
        table = pyarrow.parquet.read_table(place)
    except pyarrow.ArrowInvalid as broken:
        raise DamagedFile(f"{place.name} is no Parquet file: {broken}.") from broken
    yield from table.to_pylist()


def _from_datasets(name: str, split: str | None) -> Iterator[Mapping[str, Any]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as missing:
        raise BadInput(
            f"{name!r} is no file, and names of data sets need the library 'datasets', which is not "
            "installed; give a file (.jsonl, .csv, .parquet), or: pip install datasets"
        ) from missing
    path, _, part = name.partition(":")
    loaded = datasets.load_dataset(path, part or None, split=split or "validation")
    return iter(loaded)


def _example(row: Mapping[str, Any], where: str, text: str | None, label: str | None) -> Example:
    named = _label_column(row, label, where)
    truth = None if named is None else row[named]
    if isinstance(truth, str) and truth.lstrip("-").isdigit():
        truth = int(truth)
    given = _input(row, text, where)
    return Example(given, None if truth in (-1, "") else truth, _spans(row, given))


def _label_column(row: Mapping[str, Any], label: str | None, where: str) -> str | None:
    if label is not None:
        if label not in row:
            raise BadInput(_no_column(label, row, where))
        return label
    return next((name for name in LABELS if name in row), None)


def _input(row: Mapping[str, Any], text: str | None, where: str) -> TextInput:
    names = _text_columns(row) if text is None else tuple(text.split("+"))
    for name in names:
        if name not in row:
            raise BadInput(_no_column(name, row, where))
        if row[name] is None:
            raise BadInput(
                f"{where} has no text: its {name!r} is null. Write a text there, or take it out."
            )
    if text is None and names == QUESTION:
        return Question(question=row["question"], context=row["context"])
    return row[names[0]] if len(names) == 1 else (row[names[0]], row[names[1]])


def _text_columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that usually hold the text; ``text`` where there are none."""
    for names in (QUESTION, *PAIRS, *((name,) for name in TEXTS)):
        if all(name in row for name in names):
            return names
    return ("text",)


def _no_column(name: str, row: Mapping[str, Any], where: str) -> str:
    return (
        f"{where} has no column {name!r}, only {', '.join(map(str, row))}; name the column of "
        "the text (two joined by '+' for a pair) and of the label."
    )


def _spans(row: Mapping[str, Any], given: TextInput) -> tuple[tuple[int, int], ...] | None:
    """Character spans from ``spans``, from ``rationales`` (words of ``text.split()``), or from the
    first of SQuAD's ``answers``; an unanswerable question has an empty tuple."""
    if row.get("spans") is not None:
        return tuple((int(a), int(b)) for a, b in row["spans"])
    if row.get("rationales") is not None:
        last = (
            given
            if isinstance(given, str)
            else given.context
            if isinstance(given, Question)
            else given[1]
        )
        words = [match.span() for match in re.finditer(r"\S+", last)]
        kept = [(int(a), int(b)) for a, b in row["rationales"] if a < b]
        return tuple((words[a][0], words[b - 1][1]) for a, b in kept)
    if row.get("answers") is not None:
        return _answers(row["answers"])
    return None


def _answers(answers: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(answers, Mapping):  # the datasets library's column form
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answers["text"], answers["answer_start"], strict=True)
        ]
    return tuple((one["answer_start"], one["answer_start"] + len(one["text"])) for one in answers)


def write_bytes(place: Path, content: bytes, *, durable: bool = False) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never half of it.

    ``durable``: the content is on the disk before the name is, so that a power cut leaves no empty
    file under it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def write_text(place: Path, text: str, *, durable: bool = False) -> None:
    """Text as UTF-8, written beside and renamed."""
    write_bytes(place, text.encode("utf-8"), durable=durable)


def write_parquet(
    place: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    kinds: Mapping[str, str] | None = None,
    durable: bool = False,
) -> bytes:
    """Rows as a Parquet file, written beside and renamed; its bytes are handed back.

    The columns are those that any row has. ``kinds``: column to int64, double, string or
    list<double>, so that the file is the same whichever values are missing.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise MissingExtra.naming("pyarrow", "bench", "Parquet output") from missing
    columns = kinds or dict.fromkeys(name for row in rows for name in row)
    types = {
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "string": pyarrow.string(),
        "list<double>": pyarrow.list_(pyarrow.float64()),
    }
    table = pyarrow.table(
        {
            name: pyarrow.array(
                [row.get(name) for row in rows], types[kinds[name]] if kinds else None
            )
            for name in columns
        }
    )
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    write_bytes(place, content, durable=durable)
    return content
