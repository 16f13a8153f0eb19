"""Roles that tokens play in a picture besides their scores, such as the answer of a question.

The names of the roles are also classes of the style sheet.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import group_by_word
from tokenlight.plots.continuations import find_unread_tokens, is_continuation
from tokenlight.plots.text_segments import SegmentText, TextRun

ANSWER_ROLE = "answer"  # the span that is explained
RIVAL_ROLE = "rival"  # the span that it is contrasted with
EXPLAINED_ROLE = "explained"  # the written token that is explained
LATER_ROLE = "later"  # written after the explained token
CUT_ROLE = "cut"  # text after the last token that the model read
TokenRoles = Mapping[str, set[int]]  # role → positions of its tokens or words


def assign_roles(attribution: Attribution, *, merge_words: bool) -> TokenRoles:
    """Return the roles of the tokens of a continuation or of an answer span.

    Args:
        attribution: The explanation, one score per token.
        merge_words: Return positions of words rather than of tokens.
    """
    roles = _assign_token_roles(attribution)
    if merge_words:
        return _merge_roles(roles, attribution)
    return roles


def _assign_token_roles(attribution: Attribution) -> dict[str, set[int]]:
    if is_continuation(attribution):
        unread = np.flatnonzero(find_unread_tokens(attribution)).tolist()
        if not unread:
            return {}
        return {EXPLAINED_ROLE: {unread[0]}, LATER_ROLE: set(unread[1:])}
    # The terms of a span target are positions of tokens, which merged words no longer have.
    has_words = any(step.startswith("merge_words") for step in attribution.steps)
    if attribution.target.kind != "span" or has_words:
        return {}
    roles = {}
    for role, sign in ((ANSWER_ROLE, 1), (RIVAL_ROLE, -1)):
        ends = [index[0] for index, weight in attribution.target.terms if weight * sign > 0]
        if ends:
            roles[role] = set(range(min(ends), max(ends) + 1))
    return roles


def _merge_roles(roles: dict[str, set[int]], attribution: Attribution) -> dict[str, set[int]]:
    """Turn positions of tokens into positions of the words that they merge to."""
    word_of_token: list[int] = []
    for word, word_tokens in enumerate(group_by_word(attribution.row)):
        word_of_token += [word] * len(word_tokens)
    merged = {}
    for role, positions in roles.items():
        merged[role] = {word_of_token[position] for position in positions}
    if LATER_ROLE in merged:
        # A word that was begun before, or that is explained, is not later.
        read_positions = np.flatnonzero(~find_unread_tokens(attribution))
        read_words = {word_of_token[position] for position in read_positions}
        merged[LATER_ROLE] -= merged[EXPLAINED_ROLE] | read_words
    return merged


def iter_with_roles(
    attribution: Attribution, segment_text: SegmentText, roles: TokenRoles
) -> Iterator[tuple[TextRun, tuple[str, ...]]]:
    """Yield the runs of a segment with their roles.

    Text after the last token was cut off by the model's limit or, in a continuation, was written later.

    Args:
        attribution: The explanation, for its row.
        segment_text: A text of the row, cut into runs of characters.
        roles: The roles of each token.
    """
    row = attribution.row
    last_token_run = _find_last_token_run(segment_text)
    is_written = is_continuation(attribution)
    is_written &= segment_text.segment == len(row.segment_names) - 1

    for index, run in enumerate(segment_text.runs):
        if run.positions:
            positions = set(run.positions)
            yield run, tuple(role for role, members in roles.items() if members & positions)
        elif index < last_token_run or not run.text.strip():
            yield run, ()
        elif is_written:
            yield from _split_unread_text(attribution, run.text, roles)
        elif row.num_truncated:
            yield run, (CUT_ROLE,)
        else:
            yield run, ()


def _find_last_token_run(segment_text: SegmentText) -> int:
    """Return the index of the last run with text tokens; 0 if there is none."""
    last_token_run = 0
    for index, run in enumerate(segment_text.runs):
        if run.positions and not run.is_special:
            last_token_run = index
    return last_token_run


def _split_unread_text(
    attribution: Attribution, text: str, roles: TokenRoles
) -> Iterator[tuple[TextRun, tuple[str, ...]]]:
    """Yield the white space, the explained token and the later text after the last token of a row.

    The last written token is explained but never read, so it is no token of the row and is found by name.
    """
    later = text.lstrip()
    white_space = text[: len(text) - len(later)]
    if white_space:
        yield TextRun(white_space), ()
    target_text = attribution.target.name.partition("‘")[2].removesuffix("’")
    is_explained_here = EXPLAINED_ROLE not in roles and later.startswith(target_text)
    if is_explained_here and target_text:
        yield TextRun(target_text), (EXPLAINED_ROLE,)
        later = later[len(target_text) :]
    if later:
        yield TextRun(later), (LATER_ROLE,)
