"""Which columns of a table hold the text, the label, and what people marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenlight.errors import BadInput, near_names
from tokenlight.tokens import Question, TextInput
from tokenlight.wording import way

QUESTION = ("question", "context")
PAIRS = (
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
)
TEXTS = ("text", "sentence", "content", "review", "document")
LABELS = ("label", "labels", "class", "target")
MARKS = ("spans", "rationales", "answers")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one row that are read, by what they hold, and those that are not."""

    text: tuple[str, ...] = ()
    label: str | None = None
    marks: str | None = None
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Mapping[str, Any], text: str | None, label: str | None, where: str) -> Columns:
        """Found by their usual names, unless ``text`` (two joined by ``+``) and ``label`` name
        them."""
        if label is not None and label not in row:
            raise BadInput(_no_column(label, "label", row, where))
        truth = label or next((name for name in LABELS if name in row), None)
        names = _text_columns(row) if text is None else tuple(text.split("+"))
        for name in names:
            if name not in row:
                raise BadInput(_no_column(name, "text", row, where))
        if len(names) > 2:
            raise BadInput(
                f"{' + '.join(names)} are {len(names)} columns; a model reads a text or a pair. "
                f"Name one column, or two, with {_flag('text')}."
            )
        marks = next((name for name in MARKS if row.get(name) is not None), None)
        read = {*names, truth, marks}
        return cls(names, truth, marks, tuple(str(name) for name in row if name not in read))


def taken(found: Iterable[Columns], *, labels: bool = True) -> str:
    """The columns of all rows in words, such as ``text from review, no label; not read: stars``.

    ``labels``: whether labels and marks are of use; else they count as not read.
    """
    kinds = list(dict.fromkeys(found))
    texts = _joined(" + ".join(one.text) for one in kinds)
    read = {name for one in kinds for name in one.text}
    parts = [f"text from {texts}"]
    if labels:
        truths = [one.label for one in kinds if one.label is not None]
        marks = [one.marks for one in kinds if one.marks is not None]
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
    return ", ".join(parts) + (f"; not read: {unread}" if unread else "")


def given_text(row: Mapping[str, Any], columns: Columns, *, named: bool, where: str) -> TextInput:
    """The text, pair or question of a row. ``named``: a person named the columns, so two of them are
    a pair, whatever they are called."""
    for name in columns.text:
        if row[name] is None:
            raise BadInput(
                f"{where} has no text: its {name!r} is null. Write a text there, or take it out."
            )
    if not named and columns.text == QUESTION:
        return Question(question=row["question"], context=row["context"])
    first, *second = (row[name] for name in columns.text)
    return (first, second[0]) if second else first


def marked(
    row: Mapping[str, Any], columns: Columns, given: TextInput
) -> tuple[tuple[int, int], ...] | None:
    """Character spans from ``spans``, from ``rationales`` (words of ``text.split()``), or from the
    first of SQuAD's ``answers``; an unanswerable question has an empty tuple."""
    match columns.marks:
        case "spans":
            return tuple((int(a), int(b)) for a, b in row["spans"])
        case "rationales":
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
        case "answers":
            return _answers(row["answers"])
    return None


def _answers(answers: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(answers, Mapping):  # the datasets library's column form
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answers["text"], answers["answer_start"], strict=True)
        ]
    return tuple((one["answer_start"], one["answer_start"] + len(one["text"])) for one in answers)


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
    meant = near_names(name, there, likeness=0.6)
    hint = f" Did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    remedy = (
        f" Name the column of the {kind} with {_flag(kind)}"
        f"{' (two joined by + for a pair)' if kind == 'text' else ''}."
    )
    return (
        f"{where} has no column {name!r}, only {', '.join(there)}."
        f"{_other_separator(there, where) or hint + remedy}"
    )


def _other_separator(there: list[str], where: str) -> str:
    """What to do where the names of all columns stand in one."""
    if len(there) != 1 or not re.search(r"\.(csv|tsv)(\.gz)?$", where, flags=re.IGNORECASE):
        return ""
    sign = next((sign for sign in SEPARATORS if sign in there[0]), None)
    if sign is None:
        return ""
    ending = {"\t": ".tsv", ",": ".csv"}.get(sign)
    remedy = f"give it the ending {ending}" if ending else "save it with commas, as .csv"
    return f" Its columns look separated by {SEPARATORS[sign]} ({sign!r}): {remedy}."


def _joined(names: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(names))
