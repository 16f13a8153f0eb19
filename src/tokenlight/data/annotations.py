"""Spans of characters that a person marked, and the tokens inside them."""

from collections.abc import Sequence

import numpy as np

from tokenlight.data.tokens import TokenRow

CharacterSpan = tuple[int, int, int]  # segment, first character, character after the last


def find_annotated_tokens(row: TokenRow, spans: Sequence[CharacterSpan]) -> np.ndarray:
    """Return a mask of shape ``token``: true where a token shares a character with a span."""
    is_annotated = np.zeros(len(row), dtype=bool)
    for i, (segment, token_span) in enumerate(zip(row.segments, row.spans, strict=True)):
        if token_span is None:
            continue
        token_start, token_end = token_span
        for span_segment, start, end in spans:
            if segment == span_segment and token_start < end and start < token_end:
                is_annotated[i] = True
                break
    return is_annotated


def compute_visible_share(row: TokenRow, spans: Sequence[CharacterSpan]) -> float:
    """Return the share of the marked characters that a truncated text still contains."""
    if not row.num_truncated:
        return 1.0
    # The last visible character of each segment.
    segment_ends: dict[int | None, int] = {}
    for segment, token_span in zip(row.segments, row.spans, strict=True):
        token_end = token_span[1] if token_span else 0
        segment_ends[segment] = max(segment_ends.get(segment, 0), token_end)
    num_marked = 0
    num_visible = 0
    for segment, start, end in spans:
        num_marked += end - start
        num_visible += max(0, min(end, segment_ends.get(segment, 0)) - start)
    return num_visible / num_marked if num_marked else 0.0
