"""The text a person wrote, cut where the tokens stand: every character once, in its own order; the part
that tokens play; and the strongest tokens, each piece inside the word it is part of.

Tokens that share characters (three of one emoji, a letter and its accent) form one stretch. White space at
a token's edge is not highlighted; special tokens are chips beside the text. Of a continuation the explained
token is marked, and what was written after it is shown as not yet there.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import NamedTuple
from unicodedata import category

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN, word_groups
from tokenlight.inputs.accents import carries_on, is_mark

TOP = 6  # of a list of the strongest
LONG_WORD, NEXT_TO_PIECE = 20, 6  # characters from which a word is shown only next to the piece
ANSWER, RIVAL, EXPLAINED, LATER = "answer", "rival", "explained", "later"
CUT = "cut"  # text behind what the model read
Roles = Mapping[str, set[int]]  # role -> its tokens


class Stretch(NamedTuple):
    """Characters in a row; ``positions`` are the tokens on them, none for text between tokens."""

    text: str
    positions: tuple[int, ...] = ()
    special: bool = False


class SegmentText(NamedTuple):
    """One segment or a sentence of it: stretches that, without the special ones, join to its text."""

    segment: int | None
    stretches: tuple[Stretch, ...]


def passages(row: TokenRow) -> list[SegmentText]:
    """One a segment, but for a picture beside the text; a row that knows no text is one of pieces."""
    if not any(span is not None for span in row.spans):
        own = [Stretch(piece, (i,), row.special[i]) for i, piece in enumerate(row.pieces)]
        blanks = (Stretch(" "),) * len(own)
        return [SegmentText(None, tuple(chain(*zip(own, blanks, strict=True)))[:-1])]
    chips = _chips(row)
    return [
        SegmentText(number, tuple(s for s in _segment(row, number, chips) if s.text or s.positions))
        for number in range(int(row.image is not None), len(row.texts))
    ]


def _chips(row: TokenRow) -> dict[tuple[int | None, int], list[Stretch]]:
    """The special tokens by (segment, token they follow there); token -1 where none is before them, or where
    their token type says that they open the text behind (two texts read apart have a [CLS] each)."""
    patches = {*row.image.places} if row.image is not None else set()
    homes = enumerate(zip(row.segments, row.spans, strict=True))
    own = [i for i, home in homes if i not in patches and None not in home]
    types = row.token_types or (0,) * len(row)
    found: dict[tuple[int | None, int], list[Stretch]] = {}
    for i in sorted({*range(len(row))} - patches - {*own}):
        place = bisect(own, i)
        before, behind = own[max(0, place - 1) : place], own[place : place + 1]
        turns = before and behind and types[before[0]] != types[i] == types[behind[0]]
        opens = not before or turns
        anchor = (behind if opens else before)[0]
        home = row.segments[anchor], -1 if opens else anchor
        found.setdefault(home, []).append(Stretch(row.pieces[i], (i,), special=True))
    return found


def _segment(
    row: TokenRow, segment: int, chips: dict[tuple[int | None, int], list[Stretch]]
) -> Iterator[Stretch]:
    text, reached = row.texts[segment], 0
    yield from chips.pop((segment, -1), ())
    groups = _overlapping(row, segment)
    for start, end, positions in groups:
        core = text[start:end].strip() or text[start:end]  # a token may be all white space
        lead = text.index(core, start)
        yield from (Stretch(text[reached:start]), Stretch(text[start:lead]))
        yield Stretch(core, positions)
        yield Stretch(text[lead + len(core) : end])
        reached = end
        if positions != groups[-1][2]:  # after the last token chips wait for the end of the text
            yield from chain(*(chips.pop((segment, i), ()) for i in positions))
    yield Stretch(text[reached:])
    yield from chain(*(own for (home, _), own in chips.items() if home == segment))


def _overlapping(row: TokenRow, segment: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Spans of a segment in text order, those that share characters joined, or a letter and its mark."""
    homes = zip(row.spans, row.segments, strict=True)
    own = [(s, i) for i, (s, home) in enumerate(homes) if home == segment and s is not None]
    joined: list[tuple[int, int, tuple[int, ...]]] = []
    for (start, end), position in sorted(own):
        first, last, positions = joined[-1] if joined else (end, start - 1, ())
        shares = start < last and end > first
        if shares or (start == last and carries_on(row.texts[segment], start)):
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
    """As :meth:`Attribution.top` ranks them; scores of exactly 0 only where there are no others."""
    row, scores = attribution.row, attribution.scores
    order = np.argsort(-np.abs(scores), kind="stable")
    own = [int(i) for i in order if not row.special[i]][:most]
    kept = [i for i in own if scores[i]] or own
    return [(piece_in_word(row, i), float(scores[i])) for i in kept]


def piece_in_word(row: TokenRow, position: int) -> Piece:
    """The token at ``position`` inside its word, of which punctuation is no part; alone without a text."""
    text = row.surface[position]
    if row.image is not None and position in row.image.places:
        return Piece("", f"patch {text}", "")
    span, segment, word = row.spans[position], row.segments[position], row.words[position]
    letters = any(category(character)[0] in "LMN" for character in text)
    if span is None or segment is None or word is None or not letters:
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


def _joins(character: str) -> bool:
    """Letters, marks on them and digits, of any script, and what may stand between them."""
    return category(character)[0] in "LMN" or character in "'’-_"


def is_continuation(a: Attribution) -> bool:
    """Whether it explains a token that was written after a prompt."""
    return bool(a.row.names) and a.row.names[-1] == WRITTEN


def laid_over(attributions: Sequence[Attribution]) -> list[Attribution]:
    """Explanations of successive written tokens as those of one text with several targets, which are
    numbered; tokens behind the explained one have score and attention 0. Others stay as they are."""
    alike: dict[object, list[Attribution]] = {}
    for a in attributions:
        alike.setdefault(_continued(a), []).append(a)
    whole = {key: max(own, key=len) for key, own in alike.items() if key and len(own) > 1}
    return [_over(a, whole[key]) if (key := _continued(a)) in whole else a for a in attributions]


def _continued(a: Attribution) -> object:
    """What the explanations of one continuation by one method share; nothing of another."""
    if a.target.index is None or not is_continuation(a):
        return None
    return (a.model, a.method, repr(sorted(a.options.items())), a.row.texts, a.row.names)


def _over(a: Attribution, whole: Attribution) -> Attribution:
    if a.row.ids != whole.row.ids[: len(a)]:
        return a
    behind = len(whole) - len(a)
    number = 1 + sum(segment == len(a.row.names) - 1 for segment in a.row.segments)
    return replace(
        a,
        row=whole.row.masked([place >= len(a) for place in range(len(whole))]),
        scores=np.pad(a.scores, (0, behind)),
        layers=None if a.layers is None else np.pad(a.layers, ((0, 0), (0, behind))),
        target=replace(a.target, name=f"{number}. {a.target.name}"),
    )


def unread(a: Attribution) -> np.ndarray:
    """Which tokens of a laid-over continuation were not there yet; none of any other row."""
    seen = np.flatnonzero(a.row.attention) if is_continuation(a) else np.array([len(a)])
    return np.asarray(np.arange(len(a)) > seen.max(initial=-1))


def roles_of(a: Attribution, *, words: bool) -> Roles:
    """The roles of tokens, or of the words they merge to: in a continuation, or of the answer of a span."""
    found: dict[str, set[int]] = {}
    if is_continuation(a):
        new = np.flatnonzero(unread(a)).tolist()
        found = {EXPLAINED: {*new[:1]}, LATER: {*new[1:]}} if new else {}
    elif a.target.kind == "span" and not any(made.startswith("merge_words") for made in a.steps):
        for role, sign in ((ANSWER, 1), (RIVAL, -1)):  # the target counts tokens
            own = [at[0] for at, weight in a.target.terms if weight * sign > 0]
            found |= {role: {*range(min(own), max(own) + 1)}} if own else {}
    if not words:
        return found
    numbers = [number for number, group in enumerate(word_groups(a.row)) for _ in group]
    merged = {role: {numbers[i] for i in places} for role, places in found.items()}
    if LATER in merged:  # a word begun before, or explained, is not later
        merged[LATER] -= merged[EXPLAINED] | {numbers[i] for i in np.flatnonzero(~unread(a))}
    return merged


def with_roles(
    a: Attribution, passage: SegmentText, roles: Roles
) -> Iterator[tuple[Stretch, tuple[str, ...]]]:
    """A passage's stretches with their roles; text behind the last token is cut at the explained one."""
    own = [n for n, one in enumerate(passage.stretches) if one.positions and not one.special]
    for place, stretch in enumerate(passage.stretches):
        if stretch.positions:
            yield stretch, tuple(r for r, places in roles.items() if places & {*stretch.positions})
        elif place < max(own, default=0) or not stretch.text.strip():
            yield stretch, ()
        elif is_continuation(a) and passage.segment == len(a.row.names) - 1:
            # The last token of all is explained and never read, so it is no token of the row.
            core = stretch.text.lstrip()
            named = a.target.name.partition("‘")[2].removesuffix("’")
            said = named if EXPLAINED not in roles and core.startswith(named) else ""
            blank = stretch.text[: len(stretch.text) - len(core)]
            parts = (blank, ()), (said, (EXPLAINED,)), (core[len(said) :], (LATER,))
            yield from ((Stretch(part), role) for part, role in parts if part)
        else:
            yield stretch, (CUT,) if a.row.cut else ()
