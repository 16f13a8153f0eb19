"""Read texts with labels and annotations from files: jsonl, json, csv, tsv, parquet and plain text.

All formats but parquet may also be packed as .gz.
"""

import csv
import importlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from tokenlight.data.span_target import SpanTarget
from tokenlight.data.tokens import Question, TextInput
from tokenlight.errors import BadInput, DamagedFile, MissingExtra, MissingFile, TokenlightError
from tokenlight.errors.arguments import Range, checked
from tokenlight.files.columns import Columns, parse_annotated_spans, parse_squad_answers, parse_text
from tokenlight.files.parsing import (
    MAX_DOCUMENT_BYTES,
    MAX_LINE_BYTES,
    open_decompressed,
    parse_json,
    read_lines,
)

MISSING_LABEL = -1
# A generator that holds a file open is closed by the code that iterates over it, by ``with closing(…)``: the
# traceback of an error keeps the generators it passed through alive, and with them their files.
NumberedRows = Generator[tuple[int, Mapping[str, Any]], None, None]


class RowLocation(NamedTuple):
    """Where a row stands; as text ``row 3 of reviews.csv``.

    Attributes:
        unit: ``"row"`` or ``"line"``.
        number: Its number, counted from 1.
        source: The name of the file, or another name of the table.
    """

    unit: str
    number: int
    source: str

    def __str__(self) -> str:
        return f"{self.unit} {self.number} of {self.source}"


@dataclass(frozen=True, slots=True)
class Example:
    """One text with what people know about it.

    Two examples are equal if text, label and spans are.

    Args:
        text: The text, pair or question.
        label: The true label.
        spans: Annotated spans, (first, after the last) character of the last text.
        location: Where it stands in its file, for messages.
        row_number: Its number in the file, counted from 1; None if it was not read from one.
        columns: The columns it was read from.
        extra_columns: The cells of all other columns, such as an id.
    """

    text: TextInput
    label: str | int | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    location: str = field(default="", compare=False, repr=False)
    row_number: int | None = field(default=None, compare=False, repr=False)
    columns: Columns = field(default=Columns(), compare=False, repr=False)
    extra_columns: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def true_target(self) -> str | int | SpanTarget | None:
        """The expected prediction: the label, or the first annotated answer to a question."""
        if not isinstance(self.text, Question):
            return self.label
        answer_spans: Sequence[tuple[int, int]] | None = self.spans
        answers = self.extra_columns.get("answers")
        # The spans may come from another column than the answers, such as evidence for the answer.
        if answers and self.columns.annotation != "answers":
            answer_spans = parse_squad_answers(answers)
        if answer_spans is None:
            return None
        return (
            SpanTarget(characters=answer_spans[0]) if answer_spans else SpanTarget(no_answer=True)
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """Location, label and other columns as JSON values, for ``extras`` of the explanations."""
        columns = {name: convert_cell_to_json(value) for name, value in self.extra_columns.items()}
        values = {
            "location": self.location,
            "row_number": self.row_number,
            "label": convert_cell_to_json(self.label),
            "columns": columns,
        }
        return {name: value for name, value in values.items() if value not in (None, "", {})}


@checked
def read_examples(
    source: str | os.PathLike[str],
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: Annotated[int, Range(0, sys.maxsize)] | None = None,
    split: str | None = None,
    with_annotations: bool = True,
) -> list[Example]:
    """Read the examples of a file, or of a data set of the ``datasets`` library.

    Columns are found by their usual names (text, sentence, …; question and context; premise and
    hypothesis; label; spans, rationales or answers). If all labels are −1, there are none: data sets hide
    the labels of their test split this way. Among other labels, −1 is a label.

    Args:
        source: The file, or the name of a data set.
        text_column: The column of the text, two joined by ``+`` for a pair.
        label_column: The column of the label.
        limit: Read at most this many rows.
        split: The split of a data set; ``"validation"`` by default.
        with_annotations: Whether annotated spans are needed; otherwise they are not parsed.

    Raises:
        BadInput: There are no rows, or a column is missing or malformed.
        MissingFile: The file does not exist.
        DamagedFile: The file cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from tokenlight.files.tables import read_examples
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "reviews.csv"
        >>> _ = path.write_text("text,label\\ngreat,1\\n")
        >>> read_examples(path)
        [Example(text='great', label=1, spans=None)]
    """
    examples = []
    with closing(iter_rows(source, split)) as rows:
        for location, row in islice(rows, limit):
            example = parse_example(
                row,
                location,
                text_column=text_column,
                label_column=label_column,
                with_annotations=with_annotations,
            )
            examples.append(example)
    if not examples:
        raise BadInput(
            f"{Path(source).name} contains no text. Give a file with at least one row.",
            code="file-without-rows",
        )
    if all(example.label == MISSING_LABEL for example in examples):
        return [replace(example, label=None) for example in examples]
    return examples


def parse_example(
    row: Mapping[str, Any],
    location: RowLocation | str,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    with_annotations: bool = True,
) -> Example:
    """Return the example of a row; keywords as in :func:`read_examples`.

    Args:
        row: The cells by column name.
        location: Where the row stands, for messages and for ``extras``.
        text_column: The column of the text, two joined by ``+`` for a pair; None to find it by its name.
        label_column: The column of the label; None to find it by its name.
        with_annotations: Whether annotated spans are parsed.
    """
    location_text = str(location)
    columns = Columns.from_row(
        row, text_column, label_column, location_text, with_annotations=with_annotations
    )
    true_label = None if columns.label is None else row[columns.label]
    if true_label == "":
        true_label = None
    elif isinstance(true_label, str) and re.fullmatch(r"-?[0-9]{1,18}", true_label):
        true_label = int(true_label)
    parsed_text = parse_text(row, columns, is_named=text_column is not None, location=location_text)
    spans = parse_annotated_spans(row, columns, parsed_text, location_text)
    extra_columns = {str(name): row[name] for name in row if str(name) in columns.unread}
    return Example(
        text=parsed_text,
        label=true_label,
        spans=spans,
        location=location_text,
        row_number=location.number if isinstance(location, RowLocation) else None,
        columns=columns,
        extra_columns=extra_columns,
    )


def convert_cell_to_json(value: Any) -> Any:
    """Convert a cell to a JSON value: NaN and infinity to None, other unknown values to their text."""
    if isinstance(value, Mapping):
        return {str(name): convert_cell_to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [convert_cell_to_json(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def iter_rows(
    source: str | os.PathLike[str], split: str | None = None
) -> Generator[tuple[RowLocation, Mapping[str, Any]], None, None]:
    """Yield the rows of a file or data set, each with its location.

    Raises:
        MissingFile: The file does not exist.
        DamagedFile: The file cannot be read.
    """
    path = Path(source)
    # Path.exists raises for a name that is too long for the file system; os.path returns False.
    exists = os.path.exists(path)
    is_file_name = get_extension(path) in EXTENSIONS or exists
    if is_file_name and not exists:
        raise MissingFile(f"{path} does not exist. Check its name.", code="table-missing")
    if is_file_name and not os.path.isfile(path):
        raise DamagedFile(f"{path} is a folder or a device. Give a file.", code="table-not-a-file")
    unit = "line" if get_extension(path) in (".jsonl", ".txt") else "row"
    numbered = iter_numbered_rows(path) if is_file_name else _load_hf_dataset(str(source), split)
    with closing(numbered) as rows:
        for number, row in rows:
            yield RowLocation(unit, number, path.name), row


def get_extension(path: Path) -> str:
    """Return the extension in lower case; a ``.gz`` after it does not count."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def iter_numbered_rows(path: Path) -> NumberedRows:
    """Yield the rows of a file with their numbers, counted from 1; empty lines count.

    Raises:
        BadInput: The extension is unknown, or a row is malformed.
        DamagedFile: The file cannot be read.
    """
    extension = get_extension(path)
    reader = READERS.get(extension)
    if reader is None:
        raise BadInput(
            f"Cannot read {path.name}: the extension {extension!r} is not one of {', '.join(EXTENSIONS)} "
            "(each but .parquet may be followed by .gz).",
            code="table-extension",
        )
    try:
        yield from reader(path)
    except TokenlightError:
        raise
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DamagedFile(
            f"{path.name} cannot be read: {error}.", code="table-unreadable"
        ) from error


def _read_lines_as_rows(path: Path) -> NumberedRows:
    """Yield the lines that are not empty."""
    with closing(read_lines(path)) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, {"text": line.rstrip("\r\n")}


def _read_texts(path: Path) -> NumberedRows:
    """Yield one text per line."""
    with closing(_read_lines_as_rows(path)) as lines:
        for number, row in lines:
            # Other programs take a bare carriage return for the end of a line, and count differently.
            if "\r" in row["text"]:
                raise DamagedFile(
                    f"Line {number} of {path.name} holds a carriage return without a line feed. Save the "
                    "file with one kind of line ending.",
                    code="line-carriage-return",
                )
            yield number, row


def _read_json_lines(path: Path) -> NumberedRows:
    with closing(_read_lines_as_rows(path)) as lines:
        for number, line in lines:
            try:
                row = parse_json(line["text"])
            except ValueError as error:
                raise DamagedFile(
                    f"Line {number} of {path.name} is not valid JSON: {error}.",
                    code="line-not-json",
                ) from error
            if not isinstance(row, dict):
                raise BadInput(
                    f"Line {number} of {path.name} is not a JSON object. Write one object per line.",
                    code="line-not-object",
                )
            yield number, row


def _read_json_list(path: Path) -> NumberedRows:
    with open_decompressed(path) as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DamagedFile(
            f"{path.name} has more than {MAX_DOCUMENT_BYTES:,} bytes. Write one object per line, as .jsonl.",
            code="json-too-large",
        )
    try:
        rows = parse_json(content.decode("utf-8-sig"))
    except ValueError as error:
        raise DamagedFile(f"{path.name} is not valid JSON: {error}.", code="not-json") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(
            f"{path.name} is not a list of JSON objects. If each line is an object, name it .jsonl.",
            code="json-not-a-list",
        )
    yield from enumerate(rows, 1)


def _read_delimited(path: Path, delimiter: str) -> NumberedRows:
    """Yield the rows of a .csv or .tsv under the names of its first line; a missing cell is None."""
    with closing(read_lines(path)) as lines:
        rows = _read_cells(path, lines, delimiter)
        names = next(rows, [])
        _check_unique_columns(names, path)
        for number, row in enumerate(rows, 1):
            if len(row) > len(names):
                separators = "tabs" if delimiter == "\t" else "commas"
                raise BadInput(
                    f"Row {number} of {path.name} has {len(row)} cells, but the header has {len(names)}. Put "
                    f"quotes around a text with {separators}.",
                    code="row-too-long",
                )
            yield number, dict(zip_longest(names, row))


def _read_cells(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    """Yield the cells of each row that is not empty."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    row: list[str] | None = []
    while row is not None:
        first_line = reader.line_num + 1
        # The limit is global to the process, so it is set for one row only.
        previous_limit = csv.field_size_limit(MAX_LINE_BYTES)
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DamagedFile(
                f"The row of {path.name} that begins in line {first_line} cannot be read: {error}. Put the "
                'whole text in quotes, and write a quote inside it twice ("").',
                code="row-unreadable",
            ) from error
        finally:
            csv.field_size_limit(previous_limit)
        if row:
            yield row


def _check_unique_columns(names: Sequence[str], path: Path) -> None:
    duplicates = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if duplicates:
        raise BadInput(
            f"{path.name} has more than one column named {', '.join(map(repr, duplicates))}. Rename one.",
            code="column-duplicate",
        )


def _read_parquet(path: Path) -> NumberedRows:
    if path.name.lower().endswith(".gz"):
        raise BadInput(
            f"Cannot read {path.name}: Parquet in .gz is not supported. Unpack it with gunzip first.",
            code="parquet-gz",
        )
    parquet = MissingExtra.import_or_raise("pyarrow.parquet", "bench", "a Parquet file")
    import pyarrow

    try:
        # The file is opened here, because pyarrow does not close a file that it opened and cannot read.
        with pyarrow.OSFile(str(path)) as raw, parquet.ParquetFile(raw) as opened:
            _check_unique_columns(opened.schema_arrow.names, path)
            batches = (batch.to_pylist() for batch in opened.iter_batches(1024))
            yield from enumerate(chain.from_iterable(batches), 1)
    except TokenlightError:
        raise
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        # The last two are raised for dates that Python's calendar does not have.
        raise OSError(
            f"it is not a Parquet file, or holds a value that cannot be read: {error}"
        ) from error


def _load_hf_dataset(name: str, split: str | None) -> NumberedRows:
    """Yield the rows of a data set, named ``PATH`` or ``PATH:CONFIGURATION``."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise BadInput(
            f"{name!r} is not a file. Names of data sets need the library 'datasets', which is not "
            "installed. Give a file (.jsonl, .csv, .parquet), or: pip install datasets",
            code="datasets-missing",
        ) from error
    path, _, configuration = name.partition(":")
    rows = datasets.load_dataset(path, configuration or None, split=split or "validation")
    yield from enumerate(rows, 1)


READERS: dict[str, Callable[[Path], NumberedRows]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json_list,
    ".csv": partial(_read_delimited, delimiter=","),
    ".tsv": partial(_read_delimited, delimiter="\t"),
    ".parquet": _read_parquet,
    ".txt": _read_texts,
}
EXTENSIONS = tuple(READERS)
