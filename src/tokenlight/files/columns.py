"""Which columns of a table hold the text, the label, and what people marked."""

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenlight.data.tokens import Question, TextInput
from tokenlight.errors import BadInput, meant, shown, way
from tokenlight.files.documents import json_of

QUESTION = ("question", "context")
TEXTS: tuple[tuple[str, ...], ...] = (
    QUESTION, ("question1", "question2"), ("premise", "hypothesis"), ("sentence1", "sentence2"),
    ("text_a", "text_b"), ("text",), ("sentence",), ("content",), ("review",), ("document",),
)  # fmt: skip
LABELS = ("label", "labels", "class", "target", "sentiment", "category", "y")
MARKS = {
    "spans": "[[FIRST, END], …] in characters",
    "rationales": "[[FIRST, END], …] in words",
    "answers": '[{"text": …, "answer_start": …}, …]',
}
KINDS = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}


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
        """Those with usual names, unless ``text`` (two joined by ``+``) and ``label`` name them."""
        usual = (names for names in TEXTS if all(name in row for name in names))
        names = next(usual, ("text",))
        if text is not None:
            names = (text,) if text in row else tuple(text.split("+"))
        for name, kind in [(label, "label"), *((name, "text") for name in names)]:
            if name is not None and name not in row:
                pair = " (two joined by + for a pair)" if kind == "text" else ""
                raise BadInput(
                    f"{where} has no column {name!r}, only {', '.join(map(str, row))}."
                    f"{meant(name, map(str, row), likeness=0.6)} Name the column of the {kind} with "
                    f"{_flag(kind)}{pair}."
                )
        if len(names) > 2:
            raise BadInput(f"{text} are {len(names)} columns; name 1 or 2 with {_flag('text')}.")
        truth = label or next((name for name in LABELS if name in row and name not in names), None)
        free = [name for name in MARKS if marks and name not in (*names, truth)]
        marked = next((name for name in free if row.get(name) not in (None, "")), None)
        unread = (str(name) for name in row if name not in (*names, truth, marked))
        return cls(names, truth, marked, tuple(unread))


def taken(found: Iterable[Columns], *, passed_on: bool = False) -> str:
    """The columns of all rows in words, such as ``text from review, no label; not read: stars``.
    ``passed_on``: what is not read goes along into the outputs, and a label may well be missing."""
    kinds = list(dict.fromkeys(found))
    texts = list(dict.fromkeys(" + ".join(one.text) for one in kinds))
    truths = list(dict.fromkeys(one.label for one in kinds if one.label))
    marks = list(dict.fromkeys(one.marks for one in kinds if one.marks))
    parts = [f"text from {' or '.join(texts)}"] if texts else []
    if truths or (texts and not passed_on):
        parts.append(f"label from {' or '.join(truths)}" if truths else "no label")
    parts += [f"marks from {' or '.join(marks)}"] if marks else []
    read = {*truths, *marks, *(name for one in kinds for name in one.text)}
    others = dict.fromkeys(name for one in kinds for name in one.unread if name not in read)
    kept = f"; {'passed on' if passed_on else 'not read'}: {', '.join(others)}" if others else ""
    return ", ".join(parts) + kept


def given_text(row: Mapping[str, Any], columns: Columns, *, named: bool, where: str) -> TextInput:
    """The text, pair or question of a row. ``named``: two columns that a person named are a pair."""
    for name, cell in ((name, row[name]) for name in columns.text):
        if cell is None:
            raise BadInput(f"{where} has no text: its {name!r} is null. Write one, or take it out.")
        if not isinstance(cell, str):  # a number, a list or whatever else is not taken for one
            kind = KINDS.get(type(cell), f"of type {type(cell).__name__}")
            given = f"its {name!r} is {kind} ({shown(cell)}), not a text"
            raise BadInput(f"{where}: {given}. Name the column of the text with {_flag('text')}.")
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
        if name != "answers" and isinstance(cell, Mapping):
            raise TypeError(cell)
        pairs = answers_of(cell) if name == "answers" else [(_whole(a), _whole(b)) for a, b in cell]
    except (TypeError, ValueError, LookupError) as wrong:
        said = f"its {name!r} is {shown(row[name])}, not {MARKS[name]}"
        raise BadInput(f"{where}: {said}. Mend or rename it.") from wrong
    last = given.context if isinstance(given, Question) else given
    last = last if isinstance(last, str) else last[1]
    size, unit, words = len(last), "characters", list[tuple[int, int]]()
    if name == "rationales":
        words = [match.span() for match in re.finditer(r"\S+", last)]
        size, unit, pairs = len(words), "words", [(a, b) for a, b in pairs if a < b]
    for first, end in pairs:
        if not 0 <= first <= end <= size:
            said = f"its {name!r} marks {first} to {end}, but the text has {size} {unit}"
            raise BadInput(f"{where}: {said}. Count from 0, the end one behind the last.")
    return tuple((words[a][0], words[b - 1][1]) if words else (a, b) for a, b in pairs)


def _whole(number: Any) -> int:
    if isinstance(number, float) and number.is_integer():  # a column that had gaps once
        return int(number)
    return operator.index(number)


def answers_of(answers: Any) -> list[tuple[int, int]]:
    """SQuAD's answers as (first character, behind the last)."""
    if isinstance(answers, Mapping):  # the datasets library's column form
        found = list(zip(answers["text"], answers["answer_start"], strict=True))
    else:
        found = [(one["text"], one["answer_start"]) for one in answers]
    if not all(isinstance(text, str) for text, _ in found):
        raise TypeError(answers)
    return [(_whole(start), _whole(start) + len(text)) for text, start in found]


def _flag(kind: str) -> str:
    return way(f"{kind}='COLUMN'", f"--{kind} COLUMN")
