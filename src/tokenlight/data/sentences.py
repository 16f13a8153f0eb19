"""Sentences of a text, by rule.

A sentence ends at ``.``, ``!``, ``?`` or ``…`` before white space, at their kin in other scripts, and at
an empty line. A full stop after an abbreviation or an initial, or before a small letter, ends none;
one that stands apart, as in texts already split into tokens, does.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tokenlight.data.tokens import TokenRow

_END = re.compile(
    r"""(?P<stop>[.!?…]+)["'”’»)\]]*(?=\s|$)   # an ordinary stop needs white space behind it
      |[。！？｡؟।॥።]+["'”’»」』）]*               # these need none
      |\n[^\S\n]*\n""",
    re.VERBOSE,
)
_ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|[js]r|vs|etc|e\.g|i\.e|cf|inc|ltd|co|corp|fig|vol|pp|al|gen|col|sgt|capt|rep|"
    r"sen|gov|u\.[sk]|[ap]\.m|jan|feb|apr|aug|sept?|oct|nov|dec|[^\W\d_]"
)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: where it stands in ``texts[segment]``, its tokens, and the sum of their scores."""

    segment: int
    start: int
    end: int
    text: str
    positions: tuple[int, ...]
    score: float


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(first, behind the last) character of every sentence, white space at the edges left out."""
    edges = [0]
    for match in _END.finditer(text):
        if _ends(text, edges[-1], match):
            edges.append(match.end())
    found = []
    for start, end in pairwise([*edges, len(text)]):
        core = text[start:end].strip()
        if core:
            first = text.index(core[0], start)
            found.append((first, first + len(core)))
    return found


def _ends(text: str, begin: int, match: re.Match[str]) -> bool:
    if match["stop"] != ".":
        return bool(match["stop"]) or bool(match.group().strip()) or match.group().count("\n") > 1
    before = text[begin : match.start()]
    if not before[-1:].strip():  # a full stop that stands apart is a token of its own
        return True
    word = re.split(r"[\s(\[\"'“‘]", before)[-1].lower()
    if _ABBREVIATION.fullmatch(word):
        return False
    following = text[match.end() :].lstrip()[:1]
    return not following.islower()


def sentences_of(row: TokenRow, scores: np.ndarray) -> list[Sentence]:
    """The sentences of a row in order; a token belongs to the sentence its last character is in.

    A sentence of which no token was read, as behind a cut, is left out: it has no score, not 0.
    """
    found = []
    for segment, text in enumerate(row.texts):
        spans = sentence_spans(text)
        ends = [end for _, end in spans]
        homes: list[list[int]] = [[] for _ in spans]
        for position, (home, span) in enumerate(zip(row.segments, row.spans, strict=True)):
            if home == segment and span is not None and spans:
                number = int(np.searchsorted(ends, span[1]))
                homes[min(number, len(spans) - 1)].append(position)
        found += [
            Sentence(segment, a, b, text[a:b], tuple(own), float(scores[own].sum()))
            for (a, b), own in zip(spans, homes, strict=True)
            if own
        ]
    return found
