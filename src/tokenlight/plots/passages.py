"""The text a person wrote, cut where the tokens stand: every character once, in its own order; and the
strongest tokens, each piece inside the word it is part of.

Tokens that share characters (a byte-level tokenizer may spend three tokens on one emoji) form one
stretch, and so do a letter and an accent that is a token of its own. White space at a token's edge is
not highlighted. Special tokens are chips beside the text.
"""

from bisect import bisect
from collections.abc import Iterator
from itertools import chain, takewhile
from typing import NamedTuple
from unicodedata import category

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.inputs.accents import carries_on, is_mark

TOP = 6  # of a list of the strongest
LONG_WORD = 20  # characters from which only the ends next to the piece are shown
NEXT_TO_PIECE = 6  # characters


class Stretch(NamedTuple):
    """Characters in a row; ``positions`` are the tokens on them, none for text between tokens."""

    text: str
    positions: tuple[int, ...] = ()
    special: bool = False


class SegmentText(NamedTuple):
    """One segment of the input, or a sentence of it; its stretches without the special ones join
    to its text."""

    segment: int | None
    stretches: tuple[Stretch, ...]


def passages(row: TokenRow) -> list[SegmentText]:
    """The row as passages, one a segment; a row that knows no text is one passage of pieces. A picture
    beside the text is none of them."""
    if not any(span is not None for span in row.spans):
        own = [Stretch(piece, (i,), row.special[i]) for i, piece in enumerate(row.pieces)]
        blanks = (Stretch(" "),) * len(own)
        return [SegmentText(None, tuple(chain(*zip(own, blanks, strict=True)))[:-1])]
    homes, found = _homes(row), []
    for number in range(int(row.image is not None), len(row.texts)):
        own = [one for one in _segment(row, number, homes) if one.text or one.positions]
        found.append(SegmentText(number, tuple(own)))
    return found


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
        yield Stretch(text[place:start])
        core = text[start:end].strip() or text[start:end]  # a token may be all white space
        lead = text.index(core, start)
        yield Stretch(text[start:lead])
        yield Stretch(core, positions)
        yield Stretch(text[lead + len(core) : end])
        place = end
        if number < len(groups) - 1:  # after the last token chips wait for the end of the text
            for position in positions:
                yield from chips.pop(position, ())
    yield Stretch(text[place:])
    yield from chain(*chips.values())


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


class Piece(NamedTuple):
    """A token and the rest of its word on either side, which is empty for a whole word."""

    before: str
    text: str
    after: str

    @property
    def bracketed(self) -> str:
        """For places without styles: ``thri[ller]``."""
        part = self.before or self.after
        return f"{self.before}[{self.text}]{self.after}" if part else self.text


def strongest_pieces(attribution: Attribution, most: int = TOP) -> list[tuple[Piece, float]]:
    """As :meth:`Attribution.top` ranks them. Scores of exactly zero (masked by a rule, written
    later) are no strongest ones, unless there are no others."""
    row, scores = attribution.row, attribution.scores
    order = np.argsort(-np.abs(scores), kind="stable")
    own = [int(i) for i in order if not row.special[i]][:most]
    kept = [i for i in own if scores[i]] or own
    return [(piece_in_word(row, i), float(scores[i])) for i in kept]


def piece_in_word(row: TokenRow, position: int) -> Piece:
    """The token at ``position`` inside its word; alone where the row knows no text.

    Some tokenizers count ``time,`` as a word: punctuation is no rest of one.
    """
    text = row.surface[position]
    if row.image is not None and position in row.image.places:
        return Piece("", f"patch {text}", "")
    span, segment, word = row.spans[position], row.segments[position], row.words[position]
    if span is None or segment is None or word is None or not any(map(_is_letter, text)):
        return Piece("", text, "")
    spans = [s for s, w in zip(row.spans, row.words, strict=True) if w == word and s is not None]
    start, end = min(s for s, _ in spans), max(e for _, e in spans)
    written = row.texts[segment]
    before = "".join(takewhile(_joins, reversed(written[start : span[0]])))[::-1]
    after = "".join(takewhile(_joins, written[span[1] : end]))
    marks = len("".join(takewhile(is_mark, after)))  # drawn on this piece's last letter
    text, after = text + after[:marks], after[marks:]
    text = f"◌{text}" if is_mark(text[0]) else text
    if len(before) + len(text) + len(after) > LONG_WORD:
        before = before if len(before) <= NEXT_TO_PIECE else f"…{before[-NEXT_TO_PIECE:]}"
        after = after if len(after) <= NEXT_TO_PIECE else f"{after[:NEXT_TO_PIECE]}…"
    return Piece(before, text, after)


def goes_on(row: TokenRow, token: str) -> bool:
    """Whether a token that is written behind the row carries its last word on."""
    segment, span = row.segments[-1], row.spans[-1]
    if segment is None or span is None or not token or not _is_letter(token[0]):
        return False
    text, end = row.texts[segment], span[1]
    return text[end:].startswith(token) and end > 0 and _is_letter(text[end - 1])


def _joins(character: str) -> bool:
    return _is_letter(character) or character in "'’-_"


def _is_letter(character: str) -> bool:
    """Letters, marks on them and digits, of any script."""
    return category(character)[0] in "LMN"
