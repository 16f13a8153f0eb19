"""Omissions of an evaluation: texts truncated, not explained, or not measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenlight.evaluation.measurement_records import Failure, Record

# Words in quotes as repr() or our messages write them. An apostrophe inside a word opens no quote.
QUOTED_PATTERN = re.compile(
    r"""(?<!\w)(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")(?!\w)|‘[^’]*’""", re.DOTALL
)
ANY_METRIC = "any metric"  # named as the metric of a text if measuring itself failed


@dataclass(frozen=True, slots=True)
class Omission:
    """Texts for which some methods have no number, and why.

    Attributes:
        methods: Names of the methods.
        metric: The metric that did not measure them; None if they were not explained at all.
        texts: Indices of the texts.
        num_texts: Number of texts in the evaluation.
        reason: Why, as one sentence.
        is_partial: Whether other explanations of these texts, say for another class, were measured.
    """

    methods: tuple[str, ...]
    metric: str | None
    texts: frozenset[int]
    num_texts: int
    reason: str
    is_partial: bool = False

    def __str__(self) -> str:
        names = ", ".join(self.methods)
        action = f"explained by {names}"
        if self.metric:
            action = f"measured by {self.metric} ({names})"
        extent = "only in part" if self.is_partial else "not"
        subject = _format_count(len(self.texts), self.num_texts)
        return f"{subject} {extent} {action}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, for an omission of one method."""
        return {
            "method": self.methods[0],
            "metric": self.metric,
            "num_omitted": len(self.texts),
            "num_texts": self.num_texts,
            "is_partial": self.is_partial,
            "reason": self.reason,
        }


def summarize_truncation(records: Sequence[Record], failures: Sequence[Failure]) -> dict[str, Any]:
    """Count the texts that no method saw to the end (a prompt: from its beginning).

    Returns:
        ``num_truncated``, the number of truncated texts; ``num_texts``, that of all texts; and ``lengths``,
        the sorted numbers of tokens that were left.
    """
    truncated = [record for record in records if record.num_truncated]
    lengths = sorted({record.num_tokens for record in truncated})
    texts = {record.text_index for record in truncated}
    return {
        "num_truncated": len(texts),
        "num_texts": _count_texts(records, failures),
        "lengths": lengths,
    }


def describe_truncation(truncation: Mapping[str, Any]) -> str:
    """Return one sentence about truncated texts, or an empty string if there are none."""
    if not truncation["num_truncated"]:
        return ""
    shortest = truncation["lengths"][0]
    longest = truncation["lengths"][-1]
    length = f"{shortest} to {longest}" if shortest < longest else str(longest)
    subject = _format_count(truncation["num_truncated"], truncation["num_texts"])
    return f"{subject} truncated to {length} tokens (long=truncate)."


def collect_omissions(records: Sequence[Record], failures: Sequence[Failure]) -> list[Omission]:
    """Return one omission for each method, metric and reason."""
    # (method, metric, reason, whether it is partial) to the indices of the texts.
    texts_by_case: dict[tuple[str, str | None, str, bool], set[int]] = {}
    for failure in failures:
        metric = None if failure.stage == "explained" else ANY_METRIC
        case = (failure.method, metric, failure.reason, False)
        texts_by_case.setdefault(case, set()).add(failure.text_index)

    # A skipped explanation is partial if another one of the same text and method was measured.
    measured = set()
    for record in records:
        for key in record.measurements:
            measured.add((record.method, key, record.text_index))
    for record in records:
        for key, reason in record.skip_reasons.items():
            is_partial = (record.method, key, record.text_index) in measured
            skipped = (record.method, key, reason, is_partial)
            texts_by_case.setdefault(skipped, set()).add(record.text_index)

    num_texts = _count_texts(records, failures)
    omissions = []
    for (method, metric, reason, is_partial), texts in texts_by_case.items():
        omission = Omission(
            methods=(method,),
            metric=metric,
            texts=frozenset(texts),
            num_texts=num_texts,
            reason=reason,
            is_partial=is_partial,
        )
        omissions.append(omission)
    return omissions


def merge_omissions(omissions: Sequence[Omission]) -> list[Omission]:
    """Merge similar omissions, so that a report lists few.

    Reasons of one method that differ only in numbers and quoted words become one, with the first as an
    example. Then methods that omit the same texts for the same reason share one entry.
    """
    # First merge the reasons of one method that follow the same pattern.
    groups: dict[Any, list[Omission]] = {}
    for omission in omissions:
        pattern = re.sub(r"\d+", "#", QUOTED_PATTERN.sub("'…'", omission.reason))
        key = (omission.methods, omission.metric, omission.is_partial, pattern)
        groups.setdefault(key, []).append(omission)

    # Then merge methods: omissions that are equal without their methods share an entry.
    methods_by_omission: dict[Omission, tuple[str, ...]] = {}
    for group in groups.values():
        first = group[0]
        texts = frozenset[int]().union(*(omission.texts for omission in group))
        reason = f"for example: {first.reason}" if len(group) > 1 else first.reason
        merged = replace(first, methods=(), texts=texts, reason=reason)
        methods = methods_by_omission.get(merged, ())
        methods_by_omission[merged] = (*methods, *first.methods)
    return [replace(merged, methods=methods) for merged, methods in methods_by_omission.items()]


def _count_texts(records: Sequence[Record], failures: Sequence[Failure]) -> int:
    texts = {record.text_index for record in records}
    texts |= {failure.text_index for failure in failures}
    return len(texts)


def _format_count(count: int, total: int) -> str:
    """Return the subject of a sentence: ``1 of 3 texts was``."""
    noun = "text" if total == 1 else "texts"
    verb = "was" if count == 1 else "were"
    return f"{count} of {total} {noun} {verb}"
