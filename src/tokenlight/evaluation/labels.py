"""What people know of texts, true labels and marked spans, as the metrics read it."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from tokenlight.data.target import Head, is_number
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnknownName, few, way
from tokenlight.metrics._metric import CharacterSpan


def read_labels(
    labels: Sequence[str | int | None] | None, head: Head
) -> tuple[int | None, ...] | None:
    """Label names or numbers as numbers; None where a text has none."""
    if labels is None:
        return None
    return tuple(None if label is None else _true_label(label, head) for label in labels)


def _true_label(label: Any, head: Head) -> int:
    """Unlike a target, a true label is one of the labels: neither ``predicted`` nor ``all``."""
    if isinstance(label, bool) or not isinstance(label, str | Integral):
        raise BadInput(
            f"the true label {label!r} is a {type(label).__name__}; give one of the model's labels "
            f"({few(head.labels, 12)}), or its number."
        )
    if not isinstance(label, str) and label < 0:  # no label has such a number: it is a name
        if str(label) not in head.labels:
            raise BadInput(
                f"the true label {label} is not one of this model's ({few(head.labels, 12)}); give one of "
                "them, and leave the cell empty (None in Python) where a text has no label."
            )
        label = str(label)
    named = isinstance(label, str) and not head.writes and not is_number(label)
    if named and not head.labels:
        raise BadInput(f"the true label {label!r} has no use: {head.does}. Leave the labels out.")
    if named and label not in head.labels:
        empty = way("give None", "leave the cell empty")
        remedy = f"Rename it to one of these, or {empty} where a text has no label."
        raise UnknownName(f"{UnknownName.among('label', label, head.labels)} {remedy}")
    return head.label_index(label)


def read_spans(
    spans: Sequence[Any] | None, rows: Sequence[TokenRow]
) -> tuple[tuple[CharacterSpan, ...] | None, ...] | None:
    """For each text its marked spans as (segment, start, end); ``rows``: the texts as they were read.

    A span is (start, end) in the text's last part (the context of a question), or has the number of
    its part before it; a text has one span, a list of spans, or None.
    """
    if spans is None:
        return None
    found: list[tuple[CharacterSpan, ...] | None] = []
    for number, (entry, row) in enumerate(zip(spans, rows, strict=True)):
        if entry is None:
            found.append(None)
            continue
        where = f" of text {number}" if len(spans) > 1 else ""
        one = isinstance(entry, Sequence | np.ndarray) and len(entry) and _is_whole(entry[0])
        listed = [entry] if one or not isinstance(entry, Iterable) else entry
        found.append(tuple(_span(span, row, where) for span in listed))
    return tuple(found)


def _is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _span(span: Any, row: TokenRow, where: str) -> CharacterSpan:
    numbers = tuple(span) if isinstance(span, Iterable) else ()
    if len(numbers) not in (2, 3) or not all(map(_is_whole, numbers)):
        raise BadInput(
            f"span {span!r}{where} is none: give (first character, behind the last), or "
            "(part, first character, behind the last)."
        )
    told = tuple(map(int, numbers))
    *given, start, end = told
    part = given[0] if given else len(row.texts) - 1
    if not row.texts:
        raise BadInput(
            f"span {told}{where} counts characters, but the text was given as token ids; give the "
            "text itself."
        )
    lengths = dict(enumerate(map(len, row.texts)))
    if not 0 <= start < end <= lengths.get(part, -1):
        has = ", ".join(f"part {i} has {length}" for i, length in lengths.items())
        raise BadInput(
            f"span {told}{where} is empty or stands outside of the text: {has} characters."
        )
    return part, start, end
