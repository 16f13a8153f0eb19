"""Split the original text at token boundaries, so that each piece can be highlighted.

Every character of the text appears exactly once and in its original order. Tokens that share characters
(three tokens of one emoji, a letter and its accent) form one run. White space at the edge of a token is
not highlighted. Special tokens are shown as chips next to the text.
"""

from bisect import bisect
from collections.abc import Iterator
from typing import NamedTuple

from tokenlight.data.tokens import TokenRow
from tokenlight.inputs.combining_marks import is_mark_at


class TextRun(NamedTuple):
    """Consecutive characters of the text.

    Args:
        text: The characters, or the name of a special token.
        positions: Positions of the tokens on these characters; empty for text between tokens.
        is_special: Whether the run is a special token, which is no part of the text.
    """

    text: str
    positions: tuple[int, ...] = ()
    is_special: bool = False


class SegmentText(NamedTuple):
    """The runs of one segment, or of one sentence; without the special ones they join to its text."""

    segment: int | None
    runs: tuple[TextRun, ...]


class _Anchor(NamedTuple):
    """Where a special token is shown: after the token at ``position``; -1 is the start of the segment."""

    segment: int | None
    position: int


class _MergedSpan(NamedTuple):
    """Characters ``start`` to ``end`` of a segment and the tokens that share them."""

    start: int
    end: int
    positions: tuple[int, ...]


_SpecialRuns = dict[_Anchor, list[TextRun]]


def split_segments(row: TokenRow) -> list[SegmentText]:
    """Return one entry per text segment; a row without a text becomes one entry of token pieces."""
    has_text = any(span is not None for span in row.spans)
    if not has_text:
        return [_join_pieces(row)]
    special_runs = _anchor_special_tokens(row)
    # A picture next to the text is segment 0, and is drawn as a heat map.
    first_segment = int(row.image is not None)
    segment_texts = []
    for segment in range(first_segment, len(row.texts)):
        runs = []
        for run in _split_segment(row, segment, special_runs):
            if run.text or run.positions:
                runs.append(run)
        segment_texts.append(SegmentText(segment, tuple(runs)))
    return segment_texts


def _join_pieces(row: TokenRow) -> SegmentText:
    """Return the pieces of a row with spaces between them."""
    runs: list[TextRun] = []
    for position, piece in enumerate(row.pieces):
        if runs:
            runs.append(TextRun(" "))
        runs.append(TextRun(piece, (position,), row.special_tokens_mask[position]))
    return SegmentText(None, tuple(runs))


def _anchor_special_tokens(row: TokenRow) -> _SpecialRuns:
    """Return the special tokens by the text token that each of them follows.

    A special token opens a segment if no text token precedes it, or if its token type says that it belongs
    to the text after it (two texts that are encoded separately have a [CLS] each).
    """
    patches: set[int] = set()
    if row.image is not None:
        patches.update(row.image.token_positions)
    text_positions = []
    special_positions = []
    for position in range(len(row)):
        if position in patches:
            continue
        if row.segments[position] is None or row.spans[position] is None:
            special_positions.append(position)
        else:
            text_positions.append(position)

    special_runs: _SpecialRuns = {}
    for position in special_positions:
        anchor = _find_anchor(row, position, text_positions)
        run = TextRun(row.pieces[position], (position,), is_special=True)
        special_runs.setdefault(anchor, []).append(run)
    return special_runs


def _find_anchor(row: TokenRow, position: int, text_positions: list[int]) -> _Anchor:
    """Return the anchor of the special token at ``position``."""
    index = bisect(text_positions, position)
    if index == 0:
        return _Anchor(row.segments[text_positions[0]], -1)
    previous = text_positions[index - 1]
    if index < len(text_positions):
        following = text_positions[index]
        types = row.token_type_ids or (0,) * len(row)
        if types[previous] != types[position] == types[following]:
            return _Anchor(row.segments[following], -1)
    return _Anchor(row.segments[previous], previous)


def _split_segment(row: TokenRow, segment: int, special_runs: _SpecialRuns) -> Iterator[TextRun]:
    """Yield the runs of one segment, some of them empty, and take its special tokens from the dict."""
    text = row.texts[segment]
    yield from special_runs.pop(_Anchor(segment, -1), ())
    merged_spans = _merge_overlapping_spans(row, segment)
    end_of_last = 0
    for index, (start, end, positions) in enumerate(merged_spans):
        # A token may consist of white space only; then all of it is highlighted.
        core = text[start:end].strip() or text[start:end]
        core_start = text.index(core, start)
        yield TextRun(text[end_of_last:start])
        yield TextRun(text[start:core_start])
        yield TextRun(core, positions)
        yield TextRun(text[core_start + len(core) : end])
        end_of_last = end
        # Special tokens after the last text token come after all of the text, even if it was truncated.
        is_last = index == len(merged_spans) - 1
        if not is_last:
            for position in positions:
                yield from special_runs.pop(_Anchor(segment, position), ())
    yield TextRun(text[end_of_last:])
    for anchor, runs in special_runs.items():
        if anchor.segment == segment:
            yield from runs


def _merge_overlapping_spans(row: TokenRow, segment: int) -> list[_MergedSpan]:
    """Return the spans of a segment in text order; spans that share a character are merged.

    A combining mark is merged with the letter before it, since both are drawn as one character.
    """
    text = row.texts[segment]
    spans = []
    for position, span in enumerate(row.spans):
        if span is not None and row.segments[position] == segment:
            spans.append((span, position))

    merged: list[_MergedSpan] = []
    for (start, end), position in sorted(spans):
        if merged:
            previous = merged[-1]
            overlaps = start < previous.end and end > previous.start
            continues_letter = start == previous.end and is_mark_at(text, start)
            if overlaps or continues_letter:
                positions = (*previous.positions, position)
                merged[-1] = _MergedSpan(previous.start, max(previous.end, end), positions)
                continue
        merged.append(_MergedSpan(start, end, (position,)))
    return merged
