"""A long document by sentences: the stretches of a text grouped where its sentences begin."""

from __future__ import annotations

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.sentences import sentence_spans
from tokenlight.plots.passages import SegmentText, Stretch, passages

LONG = 250  # tokens from which a text is shown by sentences first


def is_long(attribution: Attribution) -> bool:
    """Whether a text is read better by sentences: it is long, or the model read it in windows."""
    return len(attribution) > LONG or "windows" in attribution.extras


def sentence_texts(attribution: Attribution) -> list[SegmentText]:
    """The sentences of a long text in order; none for a short one, or where there is just one.

    Special tokens and the white space behind a sentence go with it.
    """
    if not is_long(attribution):
        return []
    texts, found = attribution.row.texts, []
    for passage in passages(attribution.row):
        if passage.segment is not None:
            found += _sentences(passage, passage.segment, texts[passage.segment])
    return found if len(found) > 1 else []


def _sentences(passage: SegmentText, segment: int, text: str) -> list[SegmentText]:
    starts = [start for start, _ in sentence_spans(text)]
    groups: list[list[Stretch]] = [[] for _ in starts]
    offset = 0
    for stretch in passage.stretches:
        if groups:
            # White space belongs to the sentence before it, a special token to where it stands.
            number = int(np.searchsorted(starts, offset, side="right")) - 1
            groups[max(0, number)].append(stretch)
        if not stretch.special:
            offset += len(stretch.text)
    return [SegmentText(segment, tuple(group)) for group in groups]
