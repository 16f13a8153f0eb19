"""Which columns of a table hold the text, the label, and what people marked."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.data.tokens import Question, TextInput
from tokenlight.errors import BadInput, meant, shown, way
from tokenlight.files.documents import json_of

QUESTION = ("question", "context")
PAIRS = (
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
)
TEXTS = ("text", "sentence", "content", "review", "document")
LABELS = ("label", "labels", "class", "target", "sentiment", "category", "y")
MARKS = ("spans", "rationales", "answers")
MARKS_FORM = {
    "spans": "[[FIRST, END], …] in characters",
    "rationales": "[[FIRST, END], …] in words",
    "answers": '[{"text": …, "answer_start": …}, …]',
}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one row that are read, by what they hold, and those that are not."""

    text: tuple[str, ...] = ()
    label: str | None = None
    marks: str | None = None
    unread: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        row: Mapping[str, Any],
        text: str | None,
        label: str | None,
        where: str,
        *,
        marks: bool = True,
    ) -> "Columns":
        """Found by their usual names, unless ``text`` (two joined by ``+``) and ``label`` name
        them. ``marks``: whether a column of marks is looked for."""
        if label is not None and label not in row:
            raise BadInput(_no_column(label, "label", row, where))
        names = _text_columns(row) if text is None else _named(text, row)
        usual = (name for name in LABELS if name in row and name not in names)
        truth = label or next(usual, None)
        for name in names:
            if name not in row:
                raise BadInput(_no_column(name, "text", row, where))
        if len(names) > 2:
            raise BadInput(
                f"{' + '.join(names)} are {len(names)} columns; a model reads a text or a pair. "
                f"Name one column, or two, with {_flag('text')}."
            )
        if where.lower().endswith(".parquet"):  # all rows of a column are of one kind
            _refuse_other_kinds(row, names, where)
        read = {*names} if truth is None else {*names, truth}
        free = [name for name in MARKS if marks and name not in read]
        found = next((name for name in free if row.get(name) not in (None, "")), None)
        unread = tuple(str(name) for name in row if name not in read and name != found)
        return cls(names, truth, found, unread)


def taken(found: Iterable[Columns], *, passed_on: bool = False) -> str:
    """The columns of all rows in words, such as ``text from review, no label; not read: stars``.

    ``passed_on``: what is not read goes along into the outputs, and a label may well be missing. Of no
    rows there is nothing to say.
    """
    kinds = list(dict.fromkeys(found))
    if not kinds:
        return ""
    texts = _joined(" + ".join(one.text) for one in kinds)
    read = {name for one in kinds for name in one.text}
    parts = [f"text from {texts}"]
    truths = [one.label for one in kinds if one.label is not None]
    marks = [one.marks for one in kinds if one.marks is not None]
    if truths or not passed_on:
        parts.append(f"label from {_joined(truths)}" if truths else "no label")
    parts += [f"marks from {_joined(marks)}"] if marks else []
    read |= {*truths, *marks}
    every = [
        name
        for one in kinds
        for name in (*one.text, one.label, one.marks, *one.unread)
        if name is not None and name not in read
    ]
    unread = ", ".join(dict.fromkeys(every))
    others = "passed on" if passed_on else "not read"
    return ", ".join(parts) + (f"; {others}: {unread}" if unread else "")


def given_text(row: Mapping[str, Any], columns: Columns, *, named: bool, where: str) -> TextInput:
    """The text, pair or question of a row. ``named``: a person named the columns, so two of them are
    a pair, whatever they are called."""
    for name in columns.text:
        if row[name] is None:
            raise BadInput(
                f"{where} has no text: its {name!r} is null. Write a text there, or take it out."
            )
    _refuse_other_kinds(row, columns.text, where)
    if not named and columns.text == QUESTION:
        return Question(question=row["question"], context=row["context"])
    first, *second = (row[name] for name in columns.text)
    return (first, second[0]) if second else first


def marked(
    row: Mapping[str, Any], columns: Columns, given: TextInput, where: str
) -> tuple[tuple[int, int], ...] | None:
    """Character spans from ``spans``, from ``rationales`` (words of ``text.split()``), or from
    SQuAD's ``answers``, each also as JSON in a string; an unanswerable question has an empty tuple."""
    name = columns.marks
    if name is None:
        return None
    try:
        cell = json_of(row[name]) if isinstance(row[name], str) else row[name]
        if cell is None:
            return None
        pairs = answers_of(cell) if name == "answers" else _pairs(cell)
    except (TypeError, ValueError, LookupError) as wrong:
        raise BadInput(
            f"{where}: its {name!r} is {shown(row[name])}, not {MARKS_FORM[name]}. Mend it, or give "
            "the column another name."
        ) from wrong
    last = _last_part(given)
    if name != "rationales":
        _refuse_beyond(pairs, len(last), "characters", f"{where}: its {name!r}")
        return pairs
    words = [match.span() for match in re.finditer(r"\S+", last)]
    kept = [(a, b) for a, b in pairs if a < b]
    _refuse_beyond(kept, len(words), "words", f"{where}: its {name!r}")
    return tuple((words[a][0], words[b - 1][1]) for a, b in kept)


def other_separator(there: Sequence[str], where: str) -> str:
    """What to do where the names of all columns stand in one."""
    if len(there) != 1 or not re.search(r"\.(csv|tsv)(\.gz)?$", where, flags=re.IGNORECASE):
        return ""
    sign = next((sign for sign in SEPARATORS if sign in there[0]), None)
    if sign is None:
        return ""
    ending = {"\t": ".tsv", ",": ".csv"}.get(sign)
    remedy = f"give it the ending {ending}" if ending else "save it with commas, as .csv"
    return f" Its columns look separated by {SEPARATORS[sign]} ({sign!r}): {remedy}."


def _last_part(given: TextInput) -> str:
    if isinstance(given, Question):
        return given.context
    return given if isinstance(given, str) else given[1]


def _pairs(cell: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(cell, Mapping):
        raise TypeError(cell)
    return tuple((_whole(a), _whole(b)) for a, b in cell)


def _whole(number: Any) -> int:
    if isinstance(number, float) and number.is_integer():  # a column that had gaps once
        return int(number)
    return operator.index(number)


def answers_of(answers: Any) -> tuple[tuple[int, int], ...]:
    """SQuAD's answers as (first character, behind the last)."""
    if isinstance(answers, Mapping):  # the datasets library's column form
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answers["text"], answers["answer_start"], strict=True)
        ]
    starts = [(_whole(one["answer_start"]), one["text"]) for one in answers]
    if not all(isinstance(text, str) for _, text in starts):
        raise TypeError(answers)
    return tuple((start, start + len(text)) for start, text in starts)


def _refuse_beyond(pairs: Iterable[tuple[int, int]], size: int, unit: str, what: str) -> None:
    for first, end in pairs:
        if not 0 <= first <= end <= size:
            raise BadInput(
                f"{what} marks {first} to {end}, but the text has {size} {unit}. Marks are counted "
                "from 0, the end one behind the last."
            )


def _refuse_other_kinds(row: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    """A number, a list or whatever else stands where a text should is not taken for one."""
    for name in names:
        if row[name] is not None and not isinstance(row[name], str):
            raise BadInput(
                f"{where}: its {name!r} is {_kind(row[name])} ({shown(row[name])}), not a text. Name "
                f"the column of the text with {_flag('text')}, or write a text there."
            )


def _kind(cell: Any) -> str:
    match cell:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
    return f"of type {type(cell).__name__}"


def _named(text: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The column of that name, or the two that a ``+`` joins."""
    return (text,) if text in row else tuple(text.split("+"))


def _text_columns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that usually hold the text; ``text`` where there are none."""
    for names in (QUESTION, *PAIRS, *((name,) for name in TEXTS)):
        if all(name in row for name in names):
            return names
    return ("text",)


def _flag(kind: str) -> str:
    return way(f"{kind}='COLUMN'", f"--{kind} COLUMN")


def _no_column(name: str, kind: str, row: Mapping[str, Any], where: str) -> str:
    there = [str(column) for column in row]
    hint = meant(name, there, likeness=0.6)
    remedy = (
        f" Name the column of the {kind} with {_flag(kind)}"
        f"{' (two joined by + for a pair)' if kind == 'text' else ''}."
    )
    return (
        f"{where} has no column {name!r}, only {', '.join(there)}."
        f"{other_separator(there, where) or hint + remedy}"
    )


def _joined(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))
