"""Which columns of a table hold the text, the label and the spans that people annotated."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.data.tokens import Question, Span, TextInput
from tokenlight.errors import BadInput, format_suggestion, short_repr
from tokenlight.files.parsing import parse_json

QUESTION_COLUMNS = ("question", "context")
# Usual names, most specific first.
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    QUESTION_COLUMNS, ("question1", "question2"), ("premise", "hypothesis"), ("sentence1", "sentence2"),
    ("text_a", "text_b"), ("text",), ("sentence",), ("content",), ("review",), ("document",),
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "target", "sentiment", "category", "y")
# Name of the column → what a cell looks like.
ANNOTATION_COLUMNS = {
    "spans": "[[FIRST, END], …] in characters",
    "rationales": "[[FIRST, END], …] in words",
    "answers": '[{"text": …, "answer_start": …}, …]',
}
CELL_TYPE_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns of one row, by what they hold.

    Args:
        text: One column, or two of a pair or question.
        label: The column of the label.
        annotation: The column of annotated spans.
        unread: All other columns.
    """

    text: tuple[str, ...] = ()
    label: str | None = None
    annotation: str | None = None
    unread: tuple[str, ...] = ()

    @classmethod
    def from_row(
        cls,
        row: Mapping[str, Any],
        text_column: str | None,
        label_column: str | None,
        location: str,
        *,
        with_annotations: bool = True,
    ) -> "Columns":
        """Find the columns of a row.

        Args:
            row: The cells by column name.
            text_column: The column of the text, two joined by ``+`` for a pair; by default a usual name.
            label_column: The column of the label; by default a usual name.
            location: Where the row stands, for messages.
            with_annotations: Whether annotated spans are needed.

        Raises:
            BadInput: A column does not exist.
        """
        text_columns = _find_text_columns(row, text_column)
        _check_columns_exist(row, text_columns, label_column, location)
        if len(text_columns) > 2:
            raise BadInput(
                f"{text_column} names {len(text_columns)} columns, more than 2. Name 1 or 2 with "
                "text_column='COLUMN'.",
                code="too-many-text-columns",
            )
        if label_column is None:
            label_column = _find_first_name(LABEL_COLUMNS, row, text_columns)
        annotation = None
        if with_annotations:
            # An empty cell says nothing, so another column may hold the annotation.
            filled = [name for name in ANNOTATION_COLUMNS if row.get(name) not in (None, "")]
            annotation = _find_first_name(filled, row, (*text_columns, label_column))
        read_columns = (*text_columns, label_column, annotation)
        unread = tuple(str(name) for name in row if name not in read_columns)
        return cls(text_columns, label_column, annotation, unread)


def _find_text_columns(row: Mapping[str, Any], text_column: str | None) -> tuple[str, ...]:
    """Return the columns that a user named, or the first usual names that the row has."""
    if text_column is not None:
        # A name with a plus sign in it is possible, too.
        return (text_column,) if text_column in row else tuple(text_column.split("+"))
    for names in TEXT_COLUMNS:
        if all(name in row for name in names):
            return names
    return ("text",)


def _check_columns_exist(
    row: Mapping[str, Any], text_columns: Sequence[str], label: str | None, location: str
) -> None:
    if label is not None and label not in row:
        raise BadInput(
            f"There is no column {label!r} in {location}, only {', '.join(map(str, row))}."
            f"{format_suggestion(label, map(str, row), cutoff=0.6)} Name the column of the label with "
            "label_column='COLUMN'.",
            code="label-column-missing",
        )
    for name in text_columns:
        if name not in row:
            raise BadInput(
                f"There is no column {name!r} in {location}, only {', '.join(map(str, row))}."
                f"{format_suggestion(name, map(str, row), cutoff=0.6)} Name the column of the text with "
                "text_column='COLUMN' (two joined by + for a pair).",
                code="text-column-missing",
            )


def _find_first_name(
    names: Sequence[str], row: Mapping[str, Any], excluded: Sequence[str | None]
) -> str | None:
    """Return the first name that the row has and that is not excluded."""
    for name in names:
        if name in row and name not in excluded:
            return name
    return None


def describe_columns(columns: Iterable[Columns], *, keeps_unread: bool = False) -> str:
    """Describe the columns of all rows, such as ``text from review, no label; not read: stars``.

    Args:
        columns: The columns of each row.
        keeps_unread: Whether other columns are copied to the output; then a label is not expected.
    """
    # Most rows have the same columns.
    distinct_columns = list(dict.fromkeys(columns))
    texts = _unique(" + ".join(row_columns.text) for row_columns in distinct_columns)
    labels = _unique(row_columns.label for row_columns in distinct_columns)
    annotations = _unique(row_columns.annotation for row_columns in distinct_columns)
    parts = [
        _describe_source("text", texts),
        _describe_source("label", labels),
        _describe_source("annotations", annotations),
    ]
    if distinct_columns and not labels and not keeps_unread:
        parts[1] = "no label"
    description = ", ".join(filter(None, parts))
    unread = _find_unread(distinct_columns)
    if unread:
        verb = "kept columns" if keeps_unread else "not read"
        description += f"; {verb}: {', '.join(unread)}"
    return description


def _describe_source(content: str, column_names: Sequence[str]) -> str:
    """Say from which columns something is read; empty if from none."""
    return f"{content} from {' or '.join(column_names)}" if column_names else ""


def _unique(names: Iterable[str | None]) -> list[str]:
    """Return each name once, in order, without missing ones."""
    return [name for name in dict.fromkeys(names) if name]


def _find_unread(columns: Sequence[Columns]) -> list[str]:
    """Return the columns that are read from no row."""
    read_columns: set[str | None] = set()
    for row_columns in columns:
        read_columns.update(row_columns.text)
        read_columns.update((row_columns.label, row_columns.annotation))
    unread: dict[str, None] = {}
    for row_columns in columns:
        for name in row_columns.unread:
            if name not in read_columns:
                unread[name] = None
    return list(unread)


def parse_text(
    row: Mapping[str, Any], columns: Columns, *, is_named: bool, location: str
) -> TextInput:
    """Return the text, pair or question of a row.

    Args:
        row: The cells by column name.
        columns: The columns to read.
        is_named: Whether the user named the columns; two named columns are always a pair.
        location: Where the row stands, for messages.

    Raises:
        BadInput: A cell is not a text.
    """
    for name in columns.text:
        cell = row[name]
        if cell is None:
            raise BadInput(
                f"There is no text in {location}: its {name!r} is null. Add one, or remove the row.",
                code="text-null",
            )
        if not isinstance(cell, str):
            cell_type = CELL_TYPE_NAMES.get(type(cell), f"of type {type(cell).__name__}")
            raise BadInput(
                f"In {location}, {name!r} is {cell_type} ({short_repr(cell)}), not a text. Name the "
                "column of the text with text_column='COLUMN'.",
                code="column-not-text",
            )
    if not is_named and columns.text == QUESTION_COLUMNS:
        return Question(question=row["question"], context=row["context"])
    if len(columns.text) == 1:
        text: str = row[columns.text[0]]
        return text
    first, second = columns.text
    return row[first], row[second]


def parse_annotated_spans(
    row: Mapping[str, Any], columns: Columns, text: TextInput, location: str
) -> tuple[Span, ...] | None:
    """Return the annotated spans of a row, in characters of the last text.

    They come from ``spans``, from ``rationales`` (words of ``text.split()``) or from SQuAD's ``answers``,
    each possibly as JSON in a string. An unanswerable question has an empty tuple.

    Args:
        row: The cells by column name.
        columns: The columns to read.
        text: The text of the row.
        location: Where the row stands, for messages.

    Raises:
        BadInput: The cell is malformed, or marks a part that the text does not have.
    """
    name = columns.annotation
    if name is None:
        return None
    try:
        spans = _parse_span_cell(name, row[name])
    except (TypeError, ValueError, LookupError) as error:
        raise BadInput(
            f"In {location}, {name!r} is {short_repr(row[name])}, not {ANNOTATION_COLUMNS[name]}. Correct "
            "or rename the column.",
            code="annotation-format",
        ) from error
    if spans is None:
        return None
    annotated_text = _get_last_text(text)
    if name != "rationales":
        _check_spans(spans, len(annotated_text), "characters", name, location)
        return tuple(spans)
    # Rationales count words, and may be empty.
    words = [match.span() for match in re.finditer(r"\S+", annotated_text)]
    spans = [(first, end) for first, end in spans if first < end]
    _check_spans(spans, len(words), "words", name, location)
    return tuple((words[first][0], words[end - 1][1]) for first, end in spans)


def _get_last_text(text: TextInput) -> str:
    """Return the text, the second of a pair, or the context of a question."""
    if isinstance(text, Question):
        return text.context
    return text if isinstance(text, str) else text[1]


def _parse_span_cell(name: str, cell: Any) -> list[Span] | None:
    """Return the spans in a cell; None if it is empty."""
    if isinstance(cell, str):
        cell = parse_json(cell)
    if cell is None:
        return None
    if name == "answers":
        return parse_squad_answers(cell)
    if isinstance(cell, Mapping):
        raise TypeError(cell)
    return [(_to_integer(first), _to_integer(end)) for first, end in cell]


def _check_spans(spans: Iterable[Span], length: int, units: str, name: str, location: str) -> None:
    for first, end in spans:
        if not 0 <= first <= end <= length:
            raise BadInput(
                f"In {location}, {name!r} marks {first} to {end}, but the text has {length} {units}. Count "
                "from 0; the end is one after the last.",
                code="annotation-range",
            )


def _to_integer(value: Any) -> int:
    # pandas writes a column of integers with gaps as floats.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return operator.index(value)


def parse_squad_answers(answers: Any) -> list[Span]:
    """Return SQuAD's answers as (first, after the last) character.

    Raises:
        TypeError: The answers are malformed; also a LookupError or a ValueError.
    """
    if isinstance(answers, Mapping):  # the column form of the datasets library
        pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
    else:
        pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
    spans = []
    for text, answer_start in pairs:
        if not isinstance(text, str):
            raise TypeError(answers)
        start = _to_integer(answer_start)
        spans.append((start, start + len(text)))
    return spans
