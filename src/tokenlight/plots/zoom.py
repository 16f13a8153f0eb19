"""A long document by sentences: the stretches of a text grouped where its sentences begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.sentences import sentence_spans
from tokenlight.plots.passages import Passage, Stretch, passages, stretch_score

LONG = 250  # tokens from which a text is shown by sentences first


@dataclass(frozen=True, slots=True)
class Part:
    """One sentence of a passage; special tokens and the white space behind it go with it."""

    number: int  # counted from 1 through the whole input
    segment: int
    stretches: tuple[Stretch, ...]
    score: float

    @property
    def text(self) -> str:
        """The sentence as the person wrote it."""
        return "".join(s.text for s in self.stretches if not s.special).strip()

    @property
    def read(self) -> bool:
        """Whether the model read any of it: what was cut off has no score."""
        return any(s.positions for s in self.stretches if not s.special)


def is_long(attribution: Attribution) -> bool:
    """Whether a text is read better by sentences: it is long, or the model read it in windows."""
    return len(attribution) > LONG or "windows" in attribution.extras


def sentence_parts(attribution: Attribution) -> list[Part]:
    """The sentences of a long text in order; none for a short one, or where there is just one."""
    if not is_long(attribution):
        return []
    found: list[Part] = []
    for passage in passages(attribution.row):
        if passage.segment is not None:
            found += _of(attribution, passage, len(found))
    return found if len(found) > 1 else []


def _of(attribution: Attribution, passage: Passage, before: int) -> list[Part]:
    assert passage.segment is not None
    starts = [start for start, _ in sentence_spans(attribution.row.texts[passage.segment])]
    groups: list[list[Stretch]] = [[] for _ in starts]
    offset = 0
    for stretch in passage.stretches:
        if groups:
            # White space belongs to the sentence before it, a special token to where it stands.
            number = int(np.searchsorted(starts, offset, side="right")) - 1
            groups[max(0, number)].append(stretch)
        if not stretch.special:
            offset += len(stretch.text)
    return [
        Part(before + i + 1, passage.segment, tuple(group), _score(attribution, group))
        for i, group in enumerate(groups)
    ]


def _score(attribution: Attribution, stretches: Sequence[Stretch]) -> float:
    return sum(stretch_score(attribution, s) for s in stretches if not s.special)
