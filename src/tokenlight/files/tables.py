"""Texts with labels and marks from files: jsonl, csv, tsv, parquet, plain text; all but parquet also .gz."""

import csv
import importlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from tokenlight.data.answers import SpanTarget
from tokenlight.data.tokens import Question, TextInput
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, TokenlightError
from tokenlight.files.columns import Columns, answers_of, given_text, marked
from tokenlight.files.documents import BYTES, LONGEST, json_of, lines_of, unpacked

HIDDEN = -1
Numbered = Iterator[tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Example:
    """One text with what people know of it.

    ``spans``: marked (first character, behind the last) in the text's last part. ``place``: where it
    stands in its file, for messages; two texts are equal wherever they stand. ``columns``: those it was
    read from; ``others``: what stands in those that are not read, such as an id.
    """

    text: TextInput
    label: str | int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    place: str = field(default="", compare=False, repr=False)
    columns: Columns = field(default=Columns(), compare=False, repr=False)
    others: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def truth(self) -> str | int | SpanTarget | None:
        """What a model should say: the label, or the first answer that people gave to a question."""
        if not isinstance(self.text, Question):
            return self.label
        told = self.others.get("answers") if self.columns.marks != "answers" else None
        found = answers_of(told) if told else self.spans
        if found is None:
            return None
        return SpanTarget(characters=found[0]) if found else SpanTarget(no_answer=True)

    @property
    def known(self) -> dict[str, Any]:
        """What is known of the text beside it, as ``extras`` of its explanations: JSON values."""
        others = {name: plain(value) for name, value in self.others.items()}
        found = {"place": self.place, "label": plain(self.label), "columns": others}
        return {name: value for name, value in found.items() if value not in (None, "", {})}


def read(
    source: str | os.PathLike[str],
    *,
    text: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    split: str | None = None,
    marks: bool = True,
) -> list[Example]:
    """Examples of a file, or of a data set that the ``datasets`` library knows by name.

    Columns are found by their usual names (text, sentence, …; question and context; premise and
    hypothesis; label; spans, rationales or answers) unless ``text`` (two joined by ``+`` for a pair)
    and ``label`` name them. Labels that are all −1 are none: data sets hide those of their test half
    so; among others −1 is a label. ``marks``: whether what people marked is of use; else it is not read.
    """
    found = [
        example(row, where, text=text, label=label, marks=marks)
        for where, row in islice(placed_rows(source, split), limit)
    ]
    if not found:
        raise BadInput(f"{Path(source).name} holds no text; give a file with at least one row.")
    if all(one.label == HIDDEN for one in found):
        return [replace(one, label=None) for one in found]
    return found


def example(
    row: Mapping[str, Any],
    where: str,
    *,
    text: str | None = None,
    label: str | None = None,
    marks: bool = True,
) -> Example:
    """The text, label and, with ``marks``, the marks of a row that stands at ``where``."""
    columns = Columns.of(row, text, label, where, marks=marks)
    truth = None if columns.label is None else row[columns.label]
    if isinstance(truth, str) and re.fullmatch(r"-?[0-9]{1,18}", truth):
        truth = int(truth)
    given = given_text(row, columns, named=text is not None, where=where)
    marks_ = marked(row, columns, given, where)
    others = {str(name): row[name] for name in row if str(name) in columns.unread}
    return Example(given, None if truth == "" else truth, marks_, where, columns, others)


def plain(value: Any) -> Any:
    """A cell as a JSON value: numbers of numpy as Python's, what JSON has no word for as its text."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def placed_rows(
    source: str | os.PathLike[str], split: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file or data set one by one, each with its place in words."""
    place = Path(source)
    is_file = ending_of(place) in ENDINGS or place.exists()
    if is_file and not place.is_file():
        other, gone = "is a folder or a device; give a file", "does not exist; check its name"
        raise DamagedFile(f"{place} {other if place.exists() else gone}.")
    rows = numbered_rows(place) if is_file else enumerate(_from_datasets(str(source), split), 1)
    kind = "line" if ending_of(place) in (".jsonl", ".txt") else "row"
    for number, row in rows:
        yield f"{kind} {number} of {place.name}", row


def ending_of(place: Path) -> str:
    """What the name ends in, in small letters; a ``.gz`` behind it does not count."""
    return Path(place.name.lower().removesuffix(".gz")).suffix


def numbered_rows(place: Path) -> Numbered:
    """The rows of a file, each with its number counted from 1; empty lines count."""
    reader = READERS.get(ending_of(place))
    if reader is None:
        known = f"{', '.join(ENDINGS)} (each but .parquet may be followed by .gz)"
        wrong = f"the ending {ending_of(place)!r} is not one of {known}"
        raise BadInput(f"cannot read {place.name}: {wrong}.")
    troubles = OSError, EOFError, zlib.error, csv.Error
    with DamagedFile.telling(f"{place.name} cannot be read: ", *troubles):
        yield from reader(place)


def _lines(place: Path) -> Numbered:
    for number, line in enumerate(lines_of(place), 1):
        if line.strip():
            yield number, {"text": line.rstrip("\r\n")}


def _texts(place: Path) -> Numbered:
    """A text a line; other programs take a bare carriage return for the end of one."""
    for number, row in _lines(place):
        if "\r" in row["text"]:
            odd = f"line {number} of {place.name} holds a carriage return without a line feed"
            raise DamagedFile(f"{odd}; save the file with one kind of line end.")
        yield number, row


def _json_lines(place: Path) -> Numbered:
    for number, line in _lines(place):
        where = f"line {number} of {place.name}"
        with DamagedFile.telling(f"{where} is not valid JSON: ", ValueError):
            row = json_of(line["text"])
        if not isinstance(row, dict):
            raise BadInput(f"{where} is not a JSON object.")
        yield number, row


def _json_list(place: Path) -> Numbered:
    with unpacked(place) as stream:
        text = stream.read(BYTES + 1)
    with DamagedFile.telling(f"{place.name} is not valid JSON: ", ValueError):
        if len(text) > BYTES:
            raise ValueError(f"it has more than {BYTES:,} bytes; one object a line is .jsonl")
        content = json_of(text.decode("utf-8-sig"))
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise BadInput(f"{place.name} is not a list of JSON objects; one object a line is .jsonl.")
    yield from enumerate(content, 1)


def _separated(place: Path, sign: str) -> Numbered:
    """The rows of a .csv or .tsv under the names of its first line; a cell that is not there is None."""
    rows = _cells(place, sign)
    names = next(rows, [])
    _refuse_doubles(names, place)
    for number, row in enumerate(rows, 1):
        if len(row) > len(names):
            kind = "tabs" if sign == "\t" else "commas"
            where = f"row {number} of {place.name} has {len(row)} cells, the header {len(names)}"
            raise BadInput(f"{where}; put quotes around a text with {kind}.")
        yield number, dict(zip_longest(names, row))


def _cells(place: Path, sign: str) -> Iterator[list[str]]:
    reader = csv.reader(lines_of(place), delimiter=sign, strict=True)
    row: list[str] | None = []
    while row is not None:
        first = reader.line_num + 1
        before = csv.field_size_limit(LONGEST)  # holds for the process: for one row only
        try:
            row = next(reader, None)
        except csv.Error as broken:
            where = f"the row of {place.name} that begins in line {first} cannot be read: {broken}"
            mend = 'Put the whole text in quotes, and write a quote within it twice ("")'
            raise DamagedFile(f"{where}. {mend}.") from broken
        finally:
            csv.field_size_limit(before)
        if row:
            yield row


def _refuse_doubles(names: Sequence[str], place: Path) -> None:
    if doubles := [one for one in dict.fromkeys(names) if one and names.count(one) > 1]:
        told = ", ".join(map(repr, doubles))
        raise BadInput(f"{place.name} has more than one column named {told}; rename one.")


def _parquet(place: Path) -> Numbered:
    if place.name.lower().endswith(".gz"):
        raise BadInput(f"cannot read {place.name}: Parquet is not read from .gz; gunzip it first.")
    parquet = MissingExtra.importing("pyarrow.parquet", "bench", "a Parquet file")
    import pyarrow

    try:
        with parquet.ParquetFile(place) as opened:
            _refuse_doubles(opened.schema_arrow.names, place)
            batches = (batch.to_pylist() for batch in opened.iter_batches(1024))
            yield from enumerate(chain.from_iterable(batches), 1)
    except TokenlightError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError) as broken:
        # The last two: times that Python's calendar does not have.
        raise OSError(f"it is not a Parquet file, or a value of it is odd: {broken}") from broken


def _from_datasets(name: str, split: str | None) -> Iterator[Mapping[str, Any]]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as missing:
        raise BadInput(
            f"{name!r} is not a file. Names of data sets need the library 'datasets', which is not "
            "installed; give a file (.jsonl, .csv, .parquet), or: pip install datasets"
        ) from missing
    path, _, part = name.partition(":")
    return iter(datasets.load_dataset(path, part or None, split=split or "validation"))


READERS: dict[str, Callable[[Path], Numbered]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".csv": partial(_separated, sign=","),
    ".tsv": partial(_separated, sign="\t"),
    ".parquet": _parquet,
    ".txt": _texts,
}
ENDINGS = tuple(READERS)
