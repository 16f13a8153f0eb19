"""Check targets, metrics, labels and spans before the first text runs.

Anything that would be wrong for every text is refused here, not after hours of work. True labels and marked
spans are parsed into the form that metrics read.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from tokenlight.data.annotations import CharacterSpan
from tokenlight.data.head import Head, is_integer_text
from tokenlight.data.target import Continuation, TokenTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, BadTarget, UnknownName, format_suggestion
from tokenlight.evaluation.measure import check_requirements
from tokenlight.explainer import Explainer, MethodLike
from tokenlight.explaining import input_rows
from tokenlight.explaining.default_method import make_sample_input
from tokenlight.explaining.token_targets import ENTITIES
from tokenlight.files.tables import Example
from tokenlight.metrics.base import Metric

SpanAnnotations = tuple[CharacterSpan, ...] | None  # of one text


def try_explaining(
    explainer: Explainer, method: MethodLike, **options: Any
) -> tuple[Exception | None, float]:
    """Explain a short, valid input to see whether ``method`` works for this model.

    Args:
        explainer: The model.
        method: A method name, or a name with options.
        **options: Further keywords of ``explain()``.

    Returns:
        The exception that was raised (None if none was), and the seconds it took.
    """
    text, target = make_sample_input(explainer)
    keywords = {"long": "truncate", "progress": False, "target": target, **options}
    start = time.perf_counter()
    try:
        explainer.explain(text, method=method, **keywords)
    except Exception as error:  # noqa: BLE001 - a diagnosis reports every exception
        return error, time.perf_counter() - start
    return None, time.perf_counter() - start


def find_option_errors(
    explainer: Explainer, methods: Iterable[MethodLike], seed: int
) -> list[BadInput]:
    """Return the errors of methods with invalid options, which fail on every text.

    A method that does not support the model is not among them; it is reported where it is used.
    """
    errors = []
    for method in methods:
        error, _ = try_explaining(explainer, method, seed=seed)
        if isinstance(error, BadInput):
            errors.append(error)
    return errors


def check_metrics(metrics: Iterable[Metric], head: Head, examples: Sequence[Example]) -> None:
    """Raise if a metric can give no number for this head, or needs labels or spans that are missing."""
    has_labels = any(example.label is not None for example in examples)
    has_spans = any(example.spans is not None for example in examples)
    check_requirements(metrics, head, has_labels=has_labels, has_spans=has_spans)


def try_target(explainer: Explainer, target: Any) -> None:
    """Raise if this model refuses ``target`` for every text.

    What depends on the text, such as an answer or a word in it, is not checked.
    """
    head = explainer.runner.head
    input_rows.check_target_kind(explainer, target)
    text, sample_target = make_sample_input(explainer)
    if isinstance(target, TokenTarget) and isinstance(sample_target, TokenTarget):
        # The word of the target is not in the sample text; its label can be checked.
        target = replace(sample_target, label=target.label)
    elif head.task == "token-classification" and target not in ("all", ENTITIES):
        raise BadTarget(
            f"{input_rows.get_model_class_name(explainer)} labels each token, so say which. Use target='all' "
            f"for every word, target={ENTITIES!r} for every entity, or TokenTarget(word) for one.",
            code="token-target-required",
        )
    elif (
        target == sample_target
        or isinstance(target, Continuation | TokenTarget)
        or head.task == "question-answering"
    ):
        return
    _try_target(explainer, text, target)


def _try_target(explainer: Explainer, text: Any, target: Any) -> None:
    """Explain the sample text for ``target``; raise if it is refused."""
    texts = [text]
    if explainer.runner.head.task == "text-generation" and isinstance(text, str):
        # After a prompt that ends in a blank, the same word is another token.
        texts.append(f"{text} ")
    options: dict[str, Any] = {"target": target, "long": "truncate", "progress": False}
    for number, sample in enumerate(texts, start=1):
        try:
            explainer.explain(sample, method="random", **options)
            return
        except (BadTarget, UnknownName):
            if number == len(texts):
                raise


def parse_labels(labels: Sequence[Any], head: Head) -> tuple[int | None, ...]:
    """Convert label names or indices to indices; None stays None for a text without label.

    Raises:
        UnknownName: A label is not one of the model's.
        BadInput: The model has no labels.
    """
    indices = []
    for label in labels:
        indices.append(None if label is None else _parse_label(label, head))
    return tuple(indices)


def _parse_label(label: Any, head: Head) -> int:
    """Return the index of a true label. Unlike a target, it is neither ``predicted`` nor ``all``."""
    if not head.labels:
        raise BadInput(
            f"The true label {label!r} cannot be used: {head.usage}. Leave the labels out.",
            code="label-without-use",
        )
    if _is_integer(label) and label < 0:
        # No label has a negative index, so it must be a name.
        label = str(label)
    if not _is_known_label(label, head):
        names = sorted(head.labels)
        raise UnknownName(
            f"Unknown label {str(label)!r}.{format_suggestion(str(label), names)} Known: "
            f"{', '.join(names)}. Rename it to one of these, or give None where a text has no label.",
            code="unknown-true-label",
        )
    return head.find_label_index(label)


def _is_known_label(label: Any, head: Head) -> bool:
    """Return whether a label is a name or an index; whether an index is in range is checked later."""
    if not isinstance(label, str):
        return _is_integer(label)
    if head.is_language_model or label in head.labels:
        return True
    return is_integer_text(label) and label[0] != "-"


def parse_spans(spans: Sequence[Any], rows: Sequence[TokenRow]) -> tuple[SpanAnnotations, ...]:
    """Convert the marked spans of each text to (segment, start, end).

    Args:
        spans: For each text one span, a list of spans, or None. A span is (start, end) in the last part of
            the text (the context of a question), or (part, start, end).
        rows: The texts as token rows.

    Returns:
        For each text its spans, or None.

    Raises:
        BadInput: A span is not a pair of integers, is empty, or ends after the text.
    """
    # Each entry may be None, one span, or a list of spans.
    annotations: list[SpanAnnotations] = []
    for index, (entry, row) in enumerate(zip(spans, rows, strict=True)):
        if entry is None:
            annotations.append(None)
            continue
        location = f" of text {index}" if len(spans) > 1 else ""
        is_sequence = isinstance(entry, Sequence | np.ndarray)
        is_single_span = is_sequence and len(entry) > 0 and _is_integer(entry[0])
        text_spans = entry
        if is_single_span or not isinstance(entry, Iterable):
            text_spans = [entry]
        annotations.append(tuple(_parse_span(span, row, location) for span in text_spans))
    return tuple(annotations)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _parse_span(span: Any, row: TokenRow, location: str) -> CharacterSpan:
    values = tuple(span) if isinstance(span, Iterable) else ()
    if len(values) not in (2, 3) or not all(map(_is_integer, values)):
        raise BadInput(
            f"Span {span!r}{location} is not valid. Give (start, end), or (part, start, end): the index of "
            "the first character, and the index after the last.",
            code="span-format",
        )
    # Without a part, a span is in the last one.
    indices = tuple(map(int, values))
    start, end = indices[-2:]
    part = indices[0] if len(indices) == 3 else len(row.texts) - 1
    has_part = 0 <= part < len(row.texts)
    if not has_part or not 0 <= start < end <= len(row.texts[part]):
        lengths = ", ".join(f"part {i} has {len(text)}" for i, text in enumerate(row.texts))
        raise BadInput(
            f"Span {indices}{location} is empty or outside the text: {lengths or 'token ids have no'} "
            "characters. Give indices of characters inside it.",
            code="span-outside-text",
        )
    return part, start, end
