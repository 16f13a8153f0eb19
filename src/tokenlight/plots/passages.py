"""The text a person wrote, cut where the tokens stand: every character once, in its own order.

Tokens that share characters (a byte-level tokenizer may spend three tokens on one emoji) form one
stretch, and so do a letter and an accent that is a token of its own. White space at a token's edge is
not highlighted. Special tokens are chips beside the text.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from tokenlight.data.tokens import TokenRow
from tokenlight.inputs.accents import carries_on


@dataclass(frozen=True, slots=True)
class Stretch:
    """Characters in a row; ``positions`` are the tokens on them, none for text between tokens."""

    text: str
    positions: tuple[int, ...] = ()
    special: bool = False


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One segment of the input, or a sentence of it; its stretches without the special ones join
    to its text."""

    segment: int | None
    stretches: tuple[Stretch, ...]


def passages(row: TokenRow) -> list[SegmentText]:
    """The row as passages, one a segment; a row that knows no text is one passage of pieces. A picture
    beside the text is none of them."""
    if not any(span is not None for span in row.spans):
        return [SegmentText(None, tuple(_pieces(row)))]
    homes = _homes(row)
    segments = range(int(row.image is not None), len(row.texts))
    return [SegmentText(number, tuple(_segment(row, number, homes))) for number in segments]


def _pieces(row: TokenRow) -> Iterator[Stretch]:
    for position, piece in enumerate(row.pieces):
        if position:
            yield Stretch(" ")
        yield Stretch(piece, (position,), row.special[position])


def _homes(row: TokenRow) -> dict[int, tuple[int, int]]:
    """Special token to (segment, the token it follows there): the segment before it, or token -1
    of the one behind it where none is before, or where its token type says that it opens that one
    (two texts a model read apart have a [CLS] each)."""
    patches = {*row.image.places} if row.image is not None else set()
    text = [p for p in range(len(row)) if p not in patches]
    chips = [p for p in text if row.segments[p] is None or row.spans[p] is None]
    own = sorted({*text} - {*chips})
    types = row.token_types or (0,) * len(row)
    homes = {}
    for position in chips:
        place = bisect(own, position)
        before, behind = own[place - 1] if place else None, own[place] if place < len(own) else None
        opens = behind is not None and (
            before is None or types[before] != types[position] == types[behind]
        )
        anchor = behind if opens else before
        assert anchor is not None  # some token has a span
        segment = row.segments[anchor]
        assert segment is not None
        homes[position] = (segment, -1 if opens else anchor)
    return homes


def _segment(row: TokenRow, segment: int, homes: dict[int, tuple[int, int]]) -> Iterator[Stretch]:
    text, place = row.texts[segment], 0
    chips: dict[int, list[Stretch]] = {}
    for position, (home, after) in homes.items():
        if home == segment:
            chip = Stretch(row.pieces[position], (position,), special=True)
            chips.setdefault(after, []).append(chip)
    yield from chips.pop(-1, ())
    groups = _overlapping(row, segment)
    for number, (start, end, positions) in enumerate(groups):
        if start > place:
            yield Stretch(text[place:start])
        yield from _trimmed(text[start:end], positions)
        place = end
        if number < len(groups) - 1:  # after the last token chips wait for the end of the text
            for position in positions:
                yield from chips.pop(position, ())
    if place < len(text):
        yield Stretch(text[place:])
    for remaining in chips.values():
        yield from remaining


def _trimmed(covered: str, positions: tuple[int, ...]) -> Iterator[Stretch]:
    """White space at the edges apart; a token that is all white space stays whole."""
    core = covered.strip() or covered
    lead = covered.index(core)
    if lead:
        yield Stretch(covered[:lead])
    yield Stretch(core, positions)
    if lead + len(core) < len(covered):
        yield Stretch(covered[lead + len(core) :])


def _overlapping(row: TokenRow, segment: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Spans of a segment in text order, those that share characters joined, or a letter and its mark."""
    found = sorted(
        (span, position)
        for position, (span, home) in enumerate(zip(row.spans, row.segments, strict=True))
        if home == segment and span is not None
    )
    joined: list[tuple[int, int, tuple[int, ...]]] = []
    for (start, end), position in found:
        if joined and (
            (start < joined[-1][1] and end > joined[-1][0])
            or (start == joined[-1][1] and carries_on(row.texts[segment], start))
        ):
            first, last, positions = joined[-1]
            joined[-1] = (first, max(last, end), (*positions, position))
        else:
            joined.append((start, end, (position,)))
    return joined
