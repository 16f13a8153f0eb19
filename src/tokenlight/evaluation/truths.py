"""What people know of texts, true labels and marked spans, as the metrics read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from numbers import Integral
from typing import Any

from tokenlight.attribution import Attribution
from tokenlight.errors import BadInput, UnknownName
from tokenlight.metrics._metric import CharacterSpan
from tokenlight.target import Head


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
        known = f"{', '.join(islice(head.labels, 12))}{' …' * (len(head.labels) > 12)}"
        raise BadInput(
            f"the true label {label!r} is a {type(label).__name__}; give one of the model's labels "
            f"({known}), or its number."
        )
    named = isinstance(label, str) and not head.writes and not label.lstrip("-").isdigit()
    if named and label not in head.labels:
        raise UnknownName.among("label", label, head.labels)
    return head.label_index(label)


def read_spans(
    spans: Sequence[Any] | None,
    attributions: Sequence[Attribution],
    *,
    labels: Sequence[Any] | None = None,
) -> tuple[tuple[CharacterSpan, ...] | None, ...] | None:
    """For each text its marked spans as (segment, start, end).

    A span is (start, end) in the text's last part (the context of a question), or has the number of
    its part before it; a text has one span, a list of spans, or None.
    """
    if spans is None:
        return None
    if labels is not None and len(labels) != len(spans):
        raise BadInput(f"{len(labels)} labels but {len(spans)} entries of spans; give one a text.")
    share = max(1, len(attributions) // max(1, len(spans)))
    found: list[tuple[CharacterSpan, ...] | None] = []
    for number, entry in enumerate(spans):
        row = attributions[min(number * share, len(attributions) - 1)].row
        if entry is None:
            found.append(None)
            continue
        listed = [entry] if len(entry) and isinstance(entry[0], int) else entry
        found.append(tuple(_span(span, len(row.texts) - 1, number) for span in listed))
    return tuple(found)


def _span(span: Any, last_part: int, text: int) -> CharacterSpan:
    numbers = tuple(span)
    if len(numbers) not in (2, 3) or not all(isinstance(n, int) for n in numbers):
        raise BadInput(
            f"span {span!r} of text {text} is none: give (first character, behind the last), or "
            "(part, first character, behind the last)."
        )
    part, start, end = (last_part, *numbers) if len(numbers) == 2 else numbers
    if not 0 <= start < end:
        raise BadInput(f"span {span!r} of text {text} is empty or begins before the text.")
    return part, start, end
