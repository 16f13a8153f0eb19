"""Tokens that play a part of their own: an answer, the token explained here, those not yet written.

A row of a continuation explains one written token from those before it. That token is marked, and
what was written after it is shown as not yet there, since it had no say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.plots.continuation import explained_text, is_continuation, unread
from tokenlight.plots.passages import SegmentText, Stretch

ANSWER, RIVAL = "answer", "rival"
EXPLAINED, LATER = "explained", "later"
CUT = "cut"  # text behind what the model read
Roles = Mapping[str, frozenset[int]]  # role -> its tokens


def token_roles(attribution: Attribution) -> Roles:
    """The roles of the tokens of an attribution that was not merged to words."""
    return _written(attribution) if is_continuation(attribution) else _answers(attribution)


def word_roles(attribution: Attribution) -> Roles:
    """The same for the words they merge to; a word begun before, or explained, is not later."""
    numbers = _word_numbers(attribution)
    found = {
        role: frozenset(numbers[i] for i in places)
        for role, places in token_roles(attribution).items()
    }
    if LATER in found:
        seen = np.flatnonzero(~unread(attribution))
        found[LATER] -= found[EXPLAINED] | {numbers[i] for i in seen}
    return found


def with_roles(
    attribution: Attribution, passage: SegmentText, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """The stretches of a passage with their roles; text behind the last token is cut where the
    explained token ends."""
    row = attribution.row
    last = max(
        (n for n, s in enumerate(passage.stretches) if s.positions and not s.special), default=-1
    )
    written = is_continuation(attribution) and passage.segment == len(row.names) - 1
    for place, stretch in enumerate(passage.stretches):
        if stretch.positions:
            yield stretch, tuple(r for r, places in roles.items() if places & {*stretch.positions})
        elif place <= last or not stretch.text.strip():
            yield stretch, ()
        elif written:
            yield from _behind(attribution, stretch.text, roles)
        else:
            yield stretch, (CUT,) if row.cut else ()


def _written(attribution: Attribution) -> Roles:
    places = list(map(int, np.flatnonzero(unread(attribution))))
    if not places:
        return {}
    return {EXPLAINED: frozenset(places[:1]), LATER: frozenset(places[1:])}


def _answers(attribution: Attribution) -> Roles:
    """The answer that a span target explains, and the one it is held against."""
    if attribution.target.kind != "span":
        return {}
    if any(made.startswith("merge_words") for made in attribution.steps):
        return {}  # the target counts tokens
    found = {}
    for role, sign in ((ANSWER, 1), (RIVAL, -1)):
        places = [at[0] for at, weight in attribution.target.terms if weight * sign > 0]
        if places:
            found[role] = frozenset(range(min(places), max(places) + 1))
    return found


def _behind(
    attribution: Attribution, text: str, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """Written text that is no token of the row: the last token of all is explained, never read."""
    core = text.lstrip()
    own = "" if EXPLAINED in roles else explained_text(attribution)
    if not core.startswith(own):
        own = ""  # a part of a character
    lead = len(text) - len(core)
    if lead:
        yield Stretch(text[:lead]), ()
    if own:
        yield Stretch(own), (EXPLAINED,)
    if len(core) > len(own):
        yield Stretch(core[len(own) :]), (LATER,)


def _word_numbers(attribution: Attribution) -> list[int]:
    """Where each token's word stands in the merged row."""
    numbers: list[int] = []
    for place, word in enumerate(attribution.row.words):
        joined = place > 0 and word is not None and word == attribution.row.words[place - 1]
        numbers.append(numbers[-1] if joined else numbers[-1] + 1 if numbers else 0)
    return numbers
