"""Units: documents, sentences, words and tokens of a row, and what each weighs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tokenlight.data.segments import segments_of
from tokenlight.data.sentences import sentences_of
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnknownName

Unit = Literal["token", "word", "sentence", "document", "role"]
QUESTION = "question"  # the name of what is asked about documents among a row's texts
WRITTEN = "written"  # the name of the continuation
THINKING = "thinking"  # the name of what stands between <think> and </think>
TOOL_CALL = "tool call"  # the name of what an assistant asked a tool


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
    whole = float(np.abs(scores).sum()) or 1.0
    measured = extras.get("units", {})
    ends = {}
    if measured.get("unit") == unit:
        pairs = zip(measured["low"], measured["high"], strict=True)
        ends = dict(zip(map(tuple, measured["positions"]), pairs, strict=True))
    found = []
    for group in unit_groups(row, unit):
        segment, text = segments_of(row)[group[0]], row.written(group, " ").strip()
        if unit == "role":
            texts = dict.fromkeys(row.segments[i] for i in group)
            text = " … ".join(row.texts[i].strip() for i in texts if i is not None)
        named = unit in ("document", "role") and segment is not None
        name = names[segment] if named else text  # type: ignore[index]
        share, total = float(np.abs(scores[group]).sum()) / whole, float(scores[group].sum())
        low_high = ends.get(tuple(group), (None, None))
        found.append(UnitSum(name, text, segment, tuple(group), share, total, *low_high))
    return found
