"""Units: parts, documents, sentences, words and tokens of a row, and what each weighs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tokenlight.data.sentences import sentences_of
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnknownName

Unit = Literal["token", "word", "sentence", "document", "role"]
QUESTION = "question"  # the name of what is asked about documents among a row's texts
WRITTEN = "written"  # the name of the continuation
THINKING = "thinking"  # the name of what stands between <think> and </think>
TOOL_CALL = "tool call"  # the name of what an assistant asked a tool
SPECIAL = "special"  # the name of special tokens together


@dataclass(frozen=True, slots=True)
class SegmentShare:
    """What one part of the input weighs: its share of Σ|score|, and its signed sum.

    ``segment``: 0 the text or question, 1 its pair; None the special tokens together.
    """

    name: str
    segment: int | None
    share: float
    total: float


@dataclass(frozen=True, slots=True)
class UnitSum:
    """One unit: what it is called, its tokens, its share of Σ|score|, and the sum of its scores.

    ``low``, ``high``: a 95 % interval of the sum, where the method measured this very unit by
    sampling.
    """

    name: str
    text: str
    segment: int | None
    positions: tuple[int, ...]
    share: float
    total: float
    low: float | None = None
    high: float | None = None


def segments_of(row: TokenRow) -> tuple[int | None, ...]:
    """The part of every token; a row made from ids knows only its token types."""
    types = row.token_types or (0,) * len(row)
    parts = zip(row.segments, row.special, types, strict=True)
    return tuple(
        own if own is not None else None if special else kind for own, special, kind in parts
    )


def segment_names(row: TokenRow, *, span: bool, labels: Iterable[str]) -> tuple[str, ...]:
    """What the parts are called: by the row itself, else by what the model does with a pair."""
    count = max(len(row.texts), 1 + max((s for s in segments_of(row) if s is not None), default=0))
    if len(row.names) >= count:
        return row.names
    if count == 1:
        return ("text" if row.image is None else "image",)
    inferred = "entailment" in {label.lower() for label in labels}
    pair = ("premise", "hypothesis") if inferred else ("first", "second")
    pair = ("question", "context") if span else pair
    return (*pair, *(f"part {number}" for number in range(3, count + 1)))


def segment_shares(
    row: TokenRow, scores: np.ndarray, names: Sequence[str]
) -> tuple[SegmentShare, ...]:
    """A share for each part in order, the special tokens last; together they are one."""
    homes = segments_of(row)
    parts = [*sorted({home for home in homes if home is not None}), None]
    whole = float(np.abs(scores).sum()) or 1.0
    return tuple(
        SegmentShare(
            SPECIAL if part is None else names[part], part, *_weight(scores[inside], whole)
        )
        for part in parts
        if (inside := [i for i, home in enumerate(homes) if home == part])
    )


def _weight(scores: np.ndarray, whole: float) -> tuple[float, float]:
    """The share of some tokens' scores in ``whole``, which is Σ|score|, and their sum."""
    return float(np.abs(scores).sum()) / whole, float(scores.sum())


def word_groups(row: TokenRow) -> list[list[int]]:
    """The places of each word's tokens, in order; what belongs to no word stands by itself."""
    groups: list[list[int]] = []
    for position, word in enumerate(row.words):
        if groups and word is not None and word == row.words[groups[-1][-1]]:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def unit_groups(row: TokenRow, unit: Unit) -> list[list[int]]:
    """The places of each unit's tokens, in order; special tokens belong to none.

    A document is one of the row's texts: of a pair each half, of a chat each message. A role is all of
    them with one name: what the user wrote, what was thought.
    """
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
    """The units that may be taken away: none with a token of ``kept`` alone, nor the question about
    documents, nor what a model wrote."""
    named = {number for number, name in enumerate(row.names) if name in (QUESTION, WRITTEN)}
    stays = kept | np.array([segment in named for segment in row.segments])
    groups = (np.array([i for i in group if not stays[i]]) for group in unit_groups(row, unit))
    return [group for group in groups if len(group)]


def parts_of(
    row: TokenRow, scores: np.ndarray, unit: Unit, names: tuple[str, ...], extras: Mapping[str, Any]
) -> list[UnitSum]:
    """Each unit of a row with the sum of its scores, in order."""
    measured = extras.get("units", {})
    ends = {}
    if measured.get("unit") == unit:
        pairs = zip(measured["low"], measured["high"], strict=True)
        ends = dict(zip(map(tuple, measured["positions"]), pairs, strict=True))
    found = []
    homes, whole = segments_of(row), float(np.abs(scores).sum()) or 1.0
    for group in unit_groups(row, unit):
        segment, text = homes[group[0]], row.written(group, " ").strip()
        if unit == "role":
            texts = dict.fromkeys(row.segments[i] for i in group)
            text = " … ".join(row.texts[i].strip() for i in texts if i is not None)
        named = unit in ("document", "role") and segment is not None
        name = names[segment] if named else text  # type: ignore[index]
        low_high, weight = ends.get(tuple(group), (None, None)), _weight(scores[group], whole)
        found.append(UnitSum(name, text, segment, tuple(group), *weight, *low_high))
    return found
