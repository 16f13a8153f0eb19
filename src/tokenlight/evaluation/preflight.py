"""What is asked for, and what people know of texts, true labels and marked spans: read, and where it would be
wrong for every text refused, before the first text is."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from tokenlight.data.target import Continuation, Head, TokenTarget, is_number
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, BadTarget, UnknownName, way
from tokenlight.evaluation.measure import check
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining import jobs
from tokenlight.explaining.default import sample
from tokenlight.explaining.token_labels import ENTITIES
from tokenlight.files.tables import Example
from tokenlight.metrics._metric import CharacterSpan, Metric

Marks = tuple[CharacterSpan, ...] | None  # of one text


def attempt(explainer: Explainer, method: MethodLike, **how: Any) -> tuple[Exception | None, float]:
    """What goes wrong when ``method`` (a name, or name and options) explains a short text without fault
    (None: nothing), and its seconds. ``how``: further keywords of explain()."""
    text, target = sample(explainer)
    given = {"long": "truncate", "progress": False, "target": target, **how}
    start = time.perf_counter()
    try:
        explainer.explain(text, method=method, **given)
    except Exception as refused:  # noqa: BLE001 - a doctor names every illness, known or not
        return refused, time.perf_counter() - start
    return None, time.perf_counter() - start


def refused_options(
    explainer: Explainer, methods: Iterable[MethodLike], seed: int
) -> list[BadInput]:
    """Why methods refuse even a short text: their options are wrong for every text. A method that does
    not fit the model is none of these; it is told where it is used."""
    tried = (attempt(explainer, method, seed=seed)[0] for method in methods)
    return [refused for refused in tried if isinstance(refused, BadInput)]


def check_metrics(metrics: Iterable[Metric], head: Head, examples: Sequence[Example]) -> None:
    """Refuse metrics that this head, or texts without labels or marks, can give no number for."""
    labelled = any(example.label is not None for example in examples)
    marked = any(example.spans is not None for example in examples)
    check(metrics, head, labelled=labelled, marked=marked)


def check_target(explainer: Explainer, target: Any) -> None:
    """Refuse a target that this model refuses for a short text, too; what depends on the text, such as an
    answer or the word that is asked about, is not looked at."""
    head = explainer.live.head
    jobs.check_target(explainer, target)
    text, usual = sample(explainer)
    if isinstance(target, TokenTarget) and isinstance(usual, TokenTarget):
        target = replace(usual, label=target.label)
    elif head.reads == "token" and target not in ("all", ENTITIES):
        every, one = way("target='all'", "--target all"), "--token WORD of tokenlight explain"
        raise BadTarget(
            f"{jobs.name_of(explainer)} labels each token, so say which: {every} explains every word, "
            f"{ENTITIES!r} every name, {way('TokenTarget(word)', one)} one."
        )
    elif target == usual or isinstance(target, Continuation | TokenTarget) or head.kind == "span":
        return
    # Behind a prompt that ends in a blank a word is another token.
    tries = (text, f"{text} ") if head.reads == "next" and isinstance(text, str) else (text,)
    how: dict[str, Any] = {"target": target, "long": "truncate", "progress": False}
    for one in tries:
        try:
            explainer.explain(one, method="random", **how)
            return
        except (BadTarget, UnknownName):
            if one is tries[-1]:
                raise


def read_labels(labels: Sequence[Any], head: Head) -> tuple[int | None, ...]:
    """Label names or numbers as numbers; None where a text has none."""
    return tuple(None if label is None else _true_label(label, head) for label in labels)


def _true_label(label: Any, head: Head) -> int:
    """Unlike a target, a true label is one of the labels: neither ``predicted`` nor ``all``."""
    if not head.labels:
        raise BadInput(f"the true label {label!r} has no use: {head.does}. Leave the labels out.")
    if _is_whole(label) and label < 0:  # no label has such a number: it is a name
        label = str(label)
    if isinstance(label, str):
        known = head.writes or label in head.labels or (is_number(label) and label[0] != "-")
    else:
        known = _is_whole(label)
    if not known:
        empty = way("give None", "leave the cell empty")
        remedy = f"Rename it to one of these, or {empty} where a text has no label."
        raise UnknownName(f"{UnknownName.among('label', str(label), head.labels)} {remedy}")
    return head.label_index(label)


def read_spans(spans: Sequence[Any], rows: Sequence[TokenRow]) -> tuple[Marks, ...]:
    """For each text its marked spans as (segment, start, end); ``rows``: the texts as they were read.

    A span is (start, end) in the text's last part (the context of a question), or has the number of
    its part before it; a text has one span, a list of spans, or None.
    """
    found: list[Marks] = []
    for number, (entry, row) in enumerate(zip(spans, rows, strict=True)):
        where = f" of text {number}" if len(spans) > 1 else ""
        one = isinstance(entry, Sequence | np.ndarray) and len(entry) and _is_whole(entry[0])
        listed = [entry] if one or not isinstance(entry, Iterable) else entry
        found.append(None if entry is None else tuple(_span(span, row, where) for span in listed))
    return tuple(found)


def _is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _span(span: Any, row: TokenRow, where: str) -> CharacterSpan:
    numbers = tuple(span) if isinstance(span, Iterable) else ()
    if len(numbers) not in (2, 3) or not all(map(_is_whole, numbers)):
        ways = "(first character, behind the last), or (part, first character, behind the last)"
        raise BadInput(f"span {span!r}{where} is none: give {ways}.")
    told = tuple(map(int, numbers))
    *given, start, end = told
    part = given[0] if given else len(row.texts) - 1
    lengths = dict(enumerate(map(len, row.texts)))
    if not 0 <= start < end <= lengths.get(part, -1):
        has = ", ".join(f"part {i} has {length}" for i, length in lengths.items())
        wrong = f"span {told}{where} is empty or stands outside of the text"
        raise BadInput(f"{wrong}: {has or 'token ids have no'} characters.")
    return part, start, end
