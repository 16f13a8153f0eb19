"""Units: parts, documents, sentences, words and tokens of a row, and what each weighs.

A sentence ends at ``.``, ``!``, ``?`` or ``…`` before white space, at their kin in other scripts, and at
an empty line. A full stop after an abbreviation or an initial, or before a small letter, ends none;
one that stands apart, as in texts already split into tokens, does. Tags such as B-LOC and I-LOC mark names
of several words.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal, get_args

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnknownName

Unit = Literal["token", "word", "sentence", "document", "role"]
QUESTION = "question"  # the name of what is asked about documents among a row's texts
WRITTEN = "written"  # the name of the continuation
THINKING = "thinking"  # the name of what stands between <think> and </think>
TOOL_CALL = "tool call"  # the name of what an assistant asked a tool
SPECIAL = "special"  # the name of special tokens together

_END = re.compile(
    r"""(?P<stop>[.!?…]+)["'”’»)\]]*(?=\s|$)   # an ordinary stop needs white space behind it
      |[。！？｡؟।॥።]+["'”’»」』）]*               # these need none
      |\n[^\S\n]*\n""",
    re.VERBOSE,
)
OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])-(.+)")  # of IOB, and of BIOES, which others spell BILOU
_ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|[js]r|vs|etc|e\.g|i\.e|cf|inc|ltd|co|corp|fig|vol|pp|al|gen|col|sgt|capt|rep|"
    r"sen|gov|u\.[sk]|[ap]\.m|jan|feb|apr|aug|sept?|oct|nov|dec|[^\W\d_]"
)


@dataclass(frozen=True, slots=True)
class SegmentShare:
    """What one part of the input weighs: its share of Σ|score|, and its signed sum. ``segment``: 0 the text
    or question, 1 its pair; None the special tokens together."""

    name: str
    segment: int | None
    share: float
    total: float


@dataclass(frozen=True, slots=True)
class UnitSum:
    """One unit: its name, tokens, share of Σ|score|, and the sum of its scores. ``low``, ``high``: a 95 %
    interval of the sum, where the method measured this very unit by sampling."""

    name: str
    text: str
    segment: int | None
    positions: tuple[int, ...]
    share: float
    total: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: where it stands in ``texts[segment]``, its tokens, and the sum of their scores."""

    segment: int
    start: int
    end: int
    text: str
    positions: tuple[int, ...]
    score: float


def segments_of(row: TokenRow) -> tuple[int | None, ...]:
    """The part of every token; a row made from ids knows only its token types."""
    types = row.token_types or (0,) * len(row)
    parts = zip(row.segments, row.special, types, strict=True)
    return tuple(
        own if own is not None else None if special else kind for own, special, kind in parts
    )


def weight(scores: np.ndarray, whole: float) -> tuple[float, float]:
    """The share of some tokens' scores in ``whole``, which is Σ|score|, and their sum."""
    return float(np.abs(scores).sum()) / whole, float(scores.sum())


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(first, behind the last) character of every sentence, white space at the edges left out."""
    edges = [0]
    for match in _END.finditer(text):
        if _ends(text, edges[-1], match):
            edges.append(match.end())
    pieces = ((end, text[start:end]) for start, end in pairwise([*edges, len(text)]))
    kept = ((end - len(piece.lstrip()), piece.strip()) for end, piece in pieces)
    return [(first, first + len(core)) for first, core in kept if core]


def _ends(text: str, begin: int, match: re.Match[str]) -> bool:
    if match["stop"] != ".":
        return bool(match["stop"]) or bool(match.group().strip()) or match.group().count("\n") > 1
    before = text[begin : match.start()]
    apart = not before[-1:].strip()  # a full stop that stands apart is a token of its own
    word = re.split(r"[\s(\[\"'“‘]", before)[-1].lower()
    goes_on = _ABBREVIATION.fullmatch(word) or text[match.end() :].lstrip()[:1].islower()
    return apart or not goes_on


def sentences_of(row: TokenRow, scores: np.ndarray) -> list[Sentence]:
    """The sentences of a row in order; a token belongs to the sentence its last character is in. One of which
    no token was read, as behind a cut, is left out: it has no score, not 0."""
    found = []
    for segment, text in enumerate(row.texts):
        spans = sentence_spans(text)
        ends = [end for _, end in spans[:-1]]
        homes: list[list[int]] = [[] for _ in spans]
        for position, (home, span) in enumerate(zip(row.segments, row.spans, strict=True)):
            if home == segment and span is not None and spans:
                homes[bisect_left(ends, span[1])].append(position)
        found += [
            Sentence(segment, a, b, text[a:b], tuple(own), float(scores[own].sum()))
            for (a, b), own in zip(spans, homes, strict=True)
            if own
        ]
    return found


def word_groups(row: TokenRow) -> list[list[int]]:
    """The places of each word's tokens, in order; what belongs to no word stands by itself."""
    words = groupby(enumerate(row.words), lambda one: one if one[1] is None else one[1])
    return [[place for place, _ in own] for _, own in words]


def unit_groups(row: TokenRow, unit: Unit) -> list[list[int]]:
    """The places of each unit's tokens, in order; special tokens belong to none. A document is one of the
    row's texts (half of a pair, a message of a chat), a role all of them with one name."""
    if unit not in get_args(Unit):
        raise UnknownName.among("unit", unit, get_args(Unit))
    if unit == "sentence":
        if not row.texts:
            raise BadInput("a text given as ids has no sentences; give the text, or units='token'.")
        groups = [list(one.positions) for one in sentences_of(row, np.zeros(len(row)))]
    elif unit in ("document", "role"):
        named = dict(enumerate(row.names)) if unit == "role" else {}
        homes = [named.get(home, home) for home in segments_of(row)]  # type: ignore[arg-type]
        found = dict.fromkeys(home for home in homes if home is not None)
        groups = [[i for i, home in enumerate(homes) if home == own] for own in found]
    else:
        groups = word_groups(row) if unit == "word" else [[i] for i in range(len(row))]
    real = ([i for i in group if not row.special[i]] for group in groups)
    return [group for group in real if group]


def sources(row: TokenRow, unit: Unit, kept: np.ndarray) -> list[np.ndarray]:
    """The units that may be taken away: not ``kept``, the question about documents, or what a model wrote."""
    named = {number for number, name in enumerate(row.names) if name in (QUESTION, WRITTEN)}
    stays = kept | np.array([segment in named for segment in row.segments])
    groups = (np.array([i for i in group if not stays[i]]) for group in unit_groups(row, unit))
    return [group for group in groups if len(group)]


def parted(tag: str) -> tuple[str, str]:
    """``B-LOC`` as its prefix and its type; a label without a prefix goes on with its like."""
    found = _TAG.fullmatch(tag)
    return (found[1], found[2]) if found else ("I", tag)


def types_of(labels: Sequence[str]) -> dict[str, list[int]]:
    """The labels by their numbers that each type of name has; none where no label has a prefix."""
    found: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        if _TAG.fullmatch(label):
            found.setdefault(parted(label)[1], []).append(number)
    return found


def merged(tags: Sequence[str]) -> list[range]:
    """The words of each name, by the tags of all words in order. A name begins at B, S or U, at another type,
    or behind what is outside, and ends at E, L, S or U."""
    found: list[range] = []
    for word, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        prefix, kind = parted(tag)
        last = found[-1] if found and found[-1].stop == word else None
        before = ("", "") if last is None else parted(tags[last[-1]])
        if last is not None and prefix in "IEL" and before[1] == kind and before[0] in "BI":
            found[-1] = range(last.start, word + 1)
        else:
            found.append(range(word, word + 1))
    return found


def type_name(tags: Sequence[str]) -> str:
    """The type that tags have in common; where they differ, the tags themselves."""
    kinds = {parted(tag)[1] for tag in tags}
    return kinds.pop() if len(kinds) == 1 else " ".join(tags)
