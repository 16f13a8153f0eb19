"""Marks: characters that are drawn on or joined to the one before them, as an accent or the members of an
emoji family. Tokenizers that strip accents give them to no token; here the token of the letter before
is widened over them, so that no picture and no file tears them apart.
"""

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
    if carries_on(text, place):
        return True
    if not 0 < place < len(text) or not is_mark(text[place - 1]):
        return False
    base = place - 1
    while base > 0 and is_mark(text[base]):
        base -= 1
    # Chinese and its like have no blanks: there each character may be a word.
    between_letters = text[base].isalpha() and text[place].isalpha()
    return between_letters and east_asian_width(text[place]) not in "WF"


def with_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """The spans of a text's tokens, in order, each widened over the marks behind it that no token has,
    and over those before it where no token is there to take them; never over white space."""
    found = list(spans)
    reach, last = 0, None  # how far tokens have come, and the token that came there
    for number, (start, end) in enumerate(spans):
        if start == end:
            continue
        if start < (found[last][0] if last is not None else 0):
            return list(spans)  # out of order: which token a mark follows is not known
        if start > reach:
            behind = _marks_from(text, reach, start) if last is not None else reach
            if last is not None:
                found[last] = found[last][0], behind
            found[number] = _marks_before(text, start, behind), end
        if end >= reach:
            reach, last = end, number
    if last is not None:
        found[last] = found[last][0], _marks_from(text, reach, len(text))
    return found


def _marks_from(text: str, place: int, stop: int) -> int:
    """The end of the marks that begin at ``place``; a joiner takes the character behind it, too."""
    if text[place - 1].isspace():
        return place
    while place < stop and (
        is_mark(text[place]) or (text[place - 1] == JOINER and not text[place].isspace())
    ):
        place += 1
    return place


def _marks_before(text: str, place: int, stop: int) -> int:
    """Where the marks begin that end at ``place``."""
    if text[place].isspace():
        return place
    while place > stop and is_mark(text[place - 1]):
        place -= 1
    return place
