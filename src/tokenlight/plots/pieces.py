"""The strongest tokens of an explanation, each piece shown inside the word it is part of."""

from dataclasses import dataclass
from itertools import takewhile
from unicodedata import category

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.inputs.accents import is_mark

TOP = 6  # of a list of the strongest
LONG_WORD = 20  # characters from which only the ends next to the piece are shown
NEXT_TO_PIECE = 6  # characters


@dataclass(frozen=True, slots=True)
class Piece:
    """A token and the rest of its word on either side, which is empty for a whole word."""

    before: str
    text: str
    after: str

    @property
    def is_whole(self) -> bool:
        """Whether the token is a word of its own."""
        return not (self.before or self.after)

    @property
    def bracketed(self) -> str:
        """For places without styles: ``thri[ller]``."""
        return self.text if self.is_whole else f"{self.before}[{self.text}]{self.after}"


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
