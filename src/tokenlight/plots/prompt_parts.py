"""Which part of a prompt decided: the document, or the turn of a chat, with the largest sum of scores."""

from collections.abc import Sequence
from typing import Any

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.data.units import (
    CONTINUATION_SEGMENT,
    QUESTION_SEGMENT,
    THINKING_SEGMENT,
    TOOL_CALL_SEGMENT,
    UnitScore,
)
from tokenlight.plots.continuations import is_continuation
from tokenlight.plots.descriptions import format_score, round_to_percents

MIN_LEAD = 1.5  # how many times the second sum the first must be, to be said to have decided
ROLE_NAMES = frozenset(
    {"system", "developer", "user", "assistant", "tool", THINKING_SEGMENT, TOOL_CALL_SEGMENT}
)


def describe_deciding_part(attribution: Attribution) -> str:
    """Name the document or turn that an answer came from; empty for a prompt without several parts.

    The parts of a prompt are compared by their sums of scores. What the model wrote is no part, nor is a
    question about documents.

    Args:
        attribution: The explanation of a next token or of a whole answer. A single token of a continuation
            has no such line, since pictures show many of them.

    Returns:
        A line such as ``decided by document 3 (+4.1), then document 1 (+0.2)``.
    """
    if not _explains_whole_prompt(attribution):
        return ""
    parts = []
    for part in attribution.group_by("document"):
        if part.name not in (CONTINUATION_SEGMENT, QUESTION_SEGMENT):
            parts.append(part)
    if len(parts) < 2:
        return ""
    is_chat = all(part.name in ROLE_NAMES for part in parts)
    line = _name_leading_parts(attribution, parts, is_chat=is_chat)
    if is_chat and max(part.total for part in parts) > 0:
        line += f"; {_describe_roles(parts)}"
    return line


def _explains_whole_prompt(attribution: Attribution) -> bool:
    """Return whether this explains a next token or a whole answer after a prompt whose parts have names."""
    if not attribution.row.segment_names or "difference" in attribution.steps:
        return False
    if is_continuation(attribution):
        return attribution.target.index is None  # a whole answer, not one of its tokens
    return bool(attribution.prediction.ids)


def _name_leading_parts(
    attribution: Attribution, parts: Sequence[UnitScore], *, is_chat: bool
) -> str:
    """Name the two parts with the largest sums, and say whether the first one leads clearly."""
    noun = "turn" if is_chat else "document"
    first, second = sorted(parts, key=lambda part: -part.total)[:2]
    if first.total <= 0:
        return f"no {noun} has a sum above 0"
    named = []
    for part in (first, second):
        number = f"turn {parts.index(part) + 1}, " if is_chat else ""
        named.append(f"{number}{part.name} ({_format_total(attribution, part)})")
    if first.total < MIN_LEAD * second.total:
        return f"no {noun} stands out: {', '.join(named)}"
    return f"decided by {', then '.join(named)}"


def _format_total(attribution: Attribution, part: UnitScore) -> str:
    """Format a sum, without a sign if the method has none."""
    if registry.is_available("methods", attribution.method):
        method: Any = registry.load_class("methods", attribution.method)
        if not getattr(method, "signed", True):
            return f"{part.total:.3g}"
    return format_score(part.total)


def _describe_roles(parts: Sequence[UnitScore]) -> str:
    """List the share of each role in the scores of all turns, the largest first."""
    shares: dict[str, float] = {}
    for part in parts:
        shares[part.name] = shares.get(part.name, 0.0) + part.share
    total = sum(shares.values()) or 1.0
    names = sorted(shares, key=lambda name: -shares[name])
    percents = round_to_percents([shares[name] / total for name in names])
    listed = [f"{name} {percent} %" for name, percent in zip(names, percents, strict=True)]
    return f"share of the total score: {', '.join(listed)}"
