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
    """Name the document or turn behind an answer; empty for a text that is no prompt of several parts.

    The parts of a prompt are compared by their sums of scores. What the model wrote is no part, nor is a
    question about documents.

    Args:
        attribution: The explanation of a next token or of a whole answer. A single token of a continuation
            has no such line, since pictures show many of them.

    Returns:
        A line such as ``decided by document 3 (+4.1), then document 1 (+0.2)``.
    """
    has_names = bool(attribution.row.segment_names) and "difference" not in attribution.steps
    is_one_of_many = is_continuation(attribution) and attribution.target.index is not None
    is_prompt = bool(attribution.prediction.ids) or is_continuation(attribution)
    if not has_names or not is_prompt or is_one_of_many:
        return ""
    parts = []
    for part in attribution.group_by("document"):
        if part.name not in (CONTINUATION_SEGMENT, QUESTION_SEGMENT):
            parts.append(part)
    if len(parts) < 2:
        return ""
    is_chat = all(part.name in ROLE_NAMES for part in parts)
    best_first = sorted(parts, key=lambda part: -part.total)
    if best_first[0].total <= 0:
        return f"no {'turn' if is_chat else 'document'} has a sum above 0"
    named = []
    for part in best_first[:2]:
        number = f"turn {parts.index(part) + 1}, " if is_chat else ""
        named.append(f"{number}{part.name} ({_format_total(attribution, part)})")
    line = f"decided by {', then '.join(named)}"
    if best_first[0].total < MIN_LEAD * best_first[1].total:
        noun = "turn" if is_chat else "document"
        line = f"no {noun} stands out: {', '.join(named)}"
    if is_chat:
        line += f"; {_describe_roles(parts)}"
    return line


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
    return f"share of the weight: {', '.join(listed)}"
