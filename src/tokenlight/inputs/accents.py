"""Marks: characters that are drawn on or joined to the one before them, as an accent or the members of an
emoji family. Tokenizers that strip accents give them to no token; here the token of the letter before
is widened over them, so that no picture and no file tears them apart.
"""

from bisect import bisect_left
from collections.abc import Sequence
from unicodedata import category, east_asian_width

from tokenlight.data.tokens import Span

JOINER = "\N{ZERO WIDTH JOINER}"
_JOINED = {JOINER, "\N{ZERO WIDTH NON-JOINER}", "\uff9e", "\uff9f"}  # and voiced marks, half width


def is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    return not character.isascii() and (
        category(character)[0] == "M"
        or character in _JOINED
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # the letters within a flag
    )


def carries_on(text: str, place: int) -> bool:
    """Whether at ``place`` a mark stands behind the character that it belongs to."""
    inside = 0 < place < len(text)
    return inside and is_mark(text[place]) and not text[place - 1].isspace()


def is_inside_word(text: str, place: int) -> bool:
    """Whether no word begins at ``place``: there is a mark, or a letter right behind a marked letter,
    which some tokenizers take for a new word."""
    if carries_on(text, place) or not 0 < place < len(text) or not is_mark(text[place - 1]):
        return carries_on(text, place)
    base = next((c for c in reversed(text[:place]) if not is_mark(c)), " ")
    # Chinese and its like have no blanks: there each character may be a word.
    return base.isalpha() and text[place].isalpha() and east_asian_width(text[place]) not in "WF"


def with_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans of a text's tokens, each widened over the marks behind it that no token has, and over what
    a joiner joins to it; never over white space."""
    starts = [*sorted(start for start, end in spans if start < end), len(text)]
    found = []
    for start, end in spans:
        stop = starts[bisect_left(starts, end)] if start < end else end
        while end < stop and (
            carries_on(text, end) or (text[end - 1] == JOINER and not text[end].isspace())
        ):
            end += 1  # noqa: PLW2901 - the span grows
        found.append((start, end))
    return found
