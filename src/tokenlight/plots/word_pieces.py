"""The strongest tokens of an explanation, each shown inside the word that it is part of."""

from itertools import takewhile
from typing import NamedTuple
from unicodedata import category

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.inputs.combining_marks import is_combining_mark

NUM_TOP = 6  # entries in a list of the strongest
MAX_WORD_LENGTH = 20  # characters; of a longer word only the part next to the token is shown
CONTEXT_CHARACTERS = 6  # characters of a long word on each side of the token


class TokenInWord(NamedTuple):
    """A token and the rest of its word on either side, which is empty for a whole word."""

    before: str
    text: str
    after: str

    @property
    def bracketed(self) -> str:
        """The word in plain text, with the token in brackets: ``thri[ller]``."""
        if self.before or self.after:
            return f"{self.before}[{self.text}]{self.after}"
        return self.text


class StrongToken(NamedTuple):
    """One of the strongest tokens.

    Args:
        token: The token in its word.
        score: Its score.
        error: The standard error of the score; None for a method without them.
        is_uncertain: Whether the score could be 0.
    """

    token: TokenInWord
    score: float
    error: float | None
    is_uncertain: bool


def describe_strongest_tokens(
    attribution: Attribution, max_count: int = NUM_TOP
) -> list[StrongToken]:
    """Return the strongest tokens with their scores and standard errors, the strongest first.

    Args:
        attribution: The explanation.
        max_count: The most tokens to return.
    """
    errors = attribution.standard_errors
    is_uncertain = attribution.uncertain_mask
    strongest = []
    for position in _find_strongest_positions(attribution, max_count):
        error = None if errors is None else float(errors[position])
        token = locate_in_word(attribution.row, position)
        score = float(attribution.scores[position])
        strongest.append(StrongToken(token, score, error, bool(is_uncertain[position])))
    return strongest


def find_strongest_tokens(
    attribution: Attribution, max_count: int = NUM_TOP
) -> list[tuple[TokenInWord, float]]:
    """Return the strongest tokens with their scores, ranked as :meth:`Attribution.top` ranks them.

    Tokens with a score of exactly 0 are returned only if all scores are 0.

    Args:
        attribution: The explanation.
        max_count: The most tokens to return.
    """
    return [
        (token.token, token.score) for token in describe_strongest_tokens(attribution, max_count)
    ]


def _find_strongest_positions(attribution: Attribution, max_count: int) -> list[int]:
    row = attribution.row
    scores = attribution.scores
    ranking = np.argsort(-np.abs(scores), kind="stable").tolist()
    text_positions = [position for position in ranking if not row.special_tokens_mask[position]]
    strongest = text_positions[:max_count]
    nonzero = [position for position in strongest if scores[position]]
    return nonzero or strongest


def locate_in_word(row: TokenRow, position: int) -> TokenInWord:
    """Return the token at ``position`` inside its word.

    Punctuation is no part of a word. A token without a text, or without a letter, is a word by itself.

    Args:
        row: The row of the text.
        position: The position of the token in the row.
    """
    text = row.surface_forms[position]
    if row.image is not None and position in row.image.token_positions:
        return TokenInWord("", f"patch {text}", "")
    span = row.spans[position]
    segment = row.segments[position]
    is_in_word = row.word_ids[position] is not None and any(map(_is_letter, text))
    if span is None or segment is None or not is_in_word:
        return TokenInWord("", text, "")

    segment_text = row.texts[segment]
    word_start, word_end = _find_word_span(row, position)
    reversed_prefix = reversed(segment_text[word_start : span[0]])
    before = "".join(takewhile(_is_word_character, reversed_prefix))[::-1]
    after = "".join(takewhile(_is_word_character, segment_text[span[1] : word_end]))
    # Combining marks after the token are drawn on its last letter, so they move into the token.
    marks = "".join(takewhile(is_combining_mark, after))
    text += marks
    after = after[len(marks) :]
    if is_combining_mark(text[0]):
        text = f"◌{text}"
    return _shorten_word(TokenInWord(before, text, after))


def _shorten_word(token: TokenInWord) -> TokenInWord:
    """Keep only the characters of a long word that are next to the token."""
    before, text, after = token
    if len(before) + len(text) + len(after) <= MAX_WORD_LENGTH:
        return token
    if len(before) > CONTEXT_CHARACTERS:
        before = f"…{before[-CONTEXT_CHARACTERS:]}"
    if len(after) > CONTEXT_CHARACTERS:
        after = f"{after[:CONTEXT_CHARACTERS]}…"
    return TokenInWord(before, text, after)


def _find_word_span(row: TokenRow, position: int) -> tuple[int, int]:
    """Return the first character, and the one after the last, of the word that a token belongs to."""
    starts = []
    ends = []
    for span, word_id in zip(row.spans, row.word_ids, strict=True):
        if span is not None and word_id == row.word_ids[position]:
            starts.append(span[0])
            ends.append(span[1])
    return min(starts), max(ends)


def _is_letter(character: str) -> bool:
    """Return whether it is a letter, mark or digit of any script."""
    return category(character)[0] in "LMN"


def _is_word_character(character: str) -> bool:
    """Return whether it is a letter, mark or digit, or a character that joins them."""
    return _is_letter(character) or character in "'’-_"
