"""Which tokens a person marked: character spans laid over the tokens of a text."""

from collections.abc import Sequence

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.metrics._metric import CharacterSpan


def marked_tokens(row: TokenRow, spans: Sequence[CharacterSpan]) -> np.ndarray:
    """``token``: true where a token shares a character with a span."""
    marks = np.zeros(len(row), dtype=bool)
    for position, (segment, place) in enumerate(zip(row.segments, row.spans, strict=True)):
        if place is not None:
            marks[position] = any(
                segment == part and place[0] < end and start < place[1]
                for part, start, end in spans
            )
    return marks


def seen_share(row: TokenRow, spans: Sequence[CharacterSpan]) -> float:
    """The share of the marked characters that stand before the cut of a truncated text."""
    if not row.cut:
        return 1.0
    ends = {part: 0 for part in range(len(row.texts))}
    for segment, place in zip(row.segments, row.spans, strict=True):
        if segment is not None and place is not None:
            ends[segment] = max(ends[segment], place[1])
    total = sum(end - start for _, start, end in spans)
    seen = sum(max(0, min(end, ends.get(part, 0)) - start) for part, start, end in spans)
    return seen / total if total else 0.0
