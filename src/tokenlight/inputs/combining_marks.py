"""Combining marks: characters that are drawn on or joined to the one before them.

Examples are accents and the members of an emoji family. Tokenizers that strip accents assign them to no
token. Here the token of the letter before is extended over them, so that no plot and no file separates them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from unicodedata import category, east_asian_width

from tokenlight.data.tokens import Span

ZERO_WIDTH_JOINER = "\N{ZERO WIDTH JOINER}"
# Joiners, and the half-width voiced sound marks of Japanese.
_JOINING_CHARACTERS = {
    ZERO_WIDTH_JOINER,
    "\N{ZERO WIDTH NON-JOINER}",
    "\N{HALFWIDTH KATAKANA VOICED SOUND MARK}",
    "\N{HALFWIDTH KATAKANA SEMI-VOICED SOUND MARK}",
}


def is_combining_mark(character: str) -> bool:
    """Return whether a character belongs to the one before it."""
    return not character.isascii() and (
        category(character)[0] == "M"
        or character in _JOINING_CHARACTERS
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= character <= "\U000e007f"  # the letters inside a flag
    )


def is_mark_at(text: str, index: int) -> bool:
    """Return whether a mark stands at ``index``, right after the character that it belongs to."""
    if not 0 < index < len(text):
        return False
    return is_combining_mark(text[index]) and not text[index - 1].isspace()


def is_inside_word(text: str, index: int) -> bool:
    """Return whether no word can begin at ``index``.

    That is at a mark, and at a letter right after a marked letter, which some tokenizers take for the
    beginning of a new word.
    """
    if is_mark_at(text, index):
        return True
    if not 0 < index < len(text) or not is_combining_mark(text[index - 1]):
        return False
    base_index = index - 1
    while base_index >= 0 and is_combining_mark(text[base_index]):
        base_index -= 1
    has_base_letter = base_index >= 0 and text[base_index].isalpha()
    # Scripts such as Chinese have no blanks: there each character may be a word.
    is_wide = east_asian_width(text[index]) in "WF"
    return has_base_letter and text[index].isalpha() and not is_wide


def extend_over_marks(text: str, spans: Sequence[Span]) -> list[Span]:
    """Extend the span of each token over the marks after it that belong to no token.

    A span is also extended over characters that a joiner joins to it, never over white space.

    Args:
        text: The text.
        spans: The spans of its tokens.
    """
    starts = sorted(start for start, end in spans if start < end)
    starts.append(len(text))
    extended = []
    for start, end in spans:
        new_end = end
        if start < end:
            # A span never reaches into the next token.
            next_start = starts[bisect_left(starts, end)]
            while new_end < next_start and _is_attached(text, new_end):
                new_end += 1
        extended.append((start, new_end))
    return extended


def _is_attached(text: str, index: int) -> bool:
    """Return whether the character at ``index`` belongs to the one before it."""
    is_joined = text[index - 1] == ZERO_WIDTH_JOINER and not text[index].isspace()
    return is_joined or is_mark_at(text, index)
