"""The parts of an input (premise and hypothesis, question and context) and what each weighs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenlight.data.tokens import TokenRow

SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class SegmentShare:
    """What one part of the input weighs: its share of Σ|score|, and its signed sum.

    ``segment``: 0 the text or question, 1 its pair; None the special tokens together.
    """

    name: str
    segment: int | None
    share: float
    total: float


def segments_of(row: TokenRow) -> tuple[int | None, ...]:
    """The part of every token; a row made from ids knows only its token types."""
    types = row.token_types or (0,) * len(row)
    return tuple(
        segment if segment is not None else None if special else types[i]
        for i, (segment, special) in enumerate(zip(row.segments, row.special, strict=True))
    )


def segment_names(row: TokenRow, *, span: bool, labels: Iterable[str]) -> tuple[str, ...]:
    """What the parts are called: by the row itself, else by what the model does with a pair."""
    count = max(len(row.texts), 1 + max((s for s in segments_of(row) if s is not None), default=0))
    if len(row.names) >= count:
        return row.names
    if count == 1:
        return ("text" if row.image is None else "image",)
    known = {label.lower() for label in labels}
    if span:
        pair = ("question", "context")
    elif "entailment" in known:
        pair = ("premise", "hypothesis")
    else:
        pair = ("first", "second")
    return (*pair, *(f"part {number}" for number in range(3, count + 1)))


def segment_shares(
    row: TokenRow, scores: np.ndarray, names: Sequence[str]
) -> tuple[SegmentShare, ...]:
    """A share for each part in order, the special tokens last; together they are one."""
    homes = segments_of(row)
    magnitude = np.abs(scores)
    whole = float(magnitude.sum())
    parts: list[int | None] = [*sorted({home for home in homes if home is not None})]
    parts += [None] if None in homes else []
    found = []
    for part in parts:
        inside = np.array([home == part for home in homes], dtype=bool)
        share = float(magnitude[inside].sum()) / whole if whole else 0.0
        name = SPECIAL if part is None else names[part]
        found.append(SegmentShare(name, part, share, float(scores[inside].sum())))
    return tuple(found)
