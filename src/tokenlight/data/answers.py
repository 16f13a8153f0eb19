"""Answer spans: where in the context the answer stands that a span head gives, or a person names.

A span head has two logits a token, ``[token, 0]`` for a start and ``[token, 1]`` for an end. Models
trained on questions without an answer (SQuAD v2) say "no answer" by the span of the first token.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadTarget, few, long_way, shown, way

LONGEST_ANSWER = 30  # tokens; the bound the question-answering pipelines use for a valid span
NO_ANSWER = "no answer"

Place = Literal["best", "argmax"] | int | None
Terms = tuple[tuple[tuple[int, ...], float], ...]


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """Start logit + end logit of an answer span.

    ``"best"``: the best valid span (start ≤ end, inside the context, at most 30 tokens);
    ``"argmax"``: the highest start (end) logit on its own, as the official code takes it;
    a number: that token; ``None``: leave this side out. Or name the answer: ``answer`` is its text
    in the context (``occurrence``, counted from 0, if it occurs more than once),
    ``characters`` its (start, end) offsets there; ``no_answer`` is the first token's span,
    by which models trained on SQuAD v2 say that the context holds no answer.
    """

    start: Place = "best"
    end: Place = "best"
    answer: str | None = None
    occurrence: int | None = None
    characters: tuple[int, int] | None = None
    no_answer: bool = False

    def __post_init__(self) -> None:
        ways = (self.answer is not None, self.characters is not None, self.no_answer)
        if sum(ways) > 1 or (any(ways) and (self.start, self.end) != ("best", "best")):
            raise BadTarget(
                f"{self!r} names the span in two ways; give one of start/end, answer, characters "
                "or no_answer."
            )
        if not isinstance(self.answer, str | None):
            raise BadTarget(f"the answer {shown(self.answer)} is not a text; give its words.")
        if self.characters is not None and not _is_pair(self.characters):
            raise BadTarget(
                f"characters={shown(self.characters)} is not a position; give (first character, behind the "
                "last)."
            )
        if self.occurrence is not None and self.answer is None:
            raise BadTarget("occurrence counts places of an answer; give answer='…' with it.")

    @property
    def given(self) -> bool:
        """Whether a person named the answer, by its text or its characters."""
        return self.answer is not None or self.characters is not None


def _is_pair(given: object) -> bool:
    if not isinstance(given, tuple | list) or len(given) != 2:
        return False
    return all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in given)


def as_span(target: object) -> SpanTarget:
    """A target of a span head: ``"predicted"``, the text of an answer, or a SpanTarget."""
    if isinstance(target, SpanTarget):
        return target
    if not isinstance(target, str):
        raise BadTarget(
            f"{target!r} is not an answer; give its text as it appears in the context, or SpanTarget(…)."
        )
    return SpanTarget() if target == "predicted" else SpanTarget(answer=target)


def span_terms(target: SpanTarget, logits: np.ndarray, row: TokenRow) -> tuple[str, Terms]:
    """A span target's name and its weighted logits."""
    if target.no_answer:
        at = null_place(row)
        if at is None:
            given = way("no_answer", "--no-answer")
            raise BadTarget(
                f"{given} is the span of the first special token ([CLS]), but this model's input "
                "begins with none; explain 'predicted' or a given answer."
            )
        return NO_ANSWER, _sides(at, at)
    if target.given:
        start, end = answer_places(target, row)
        return _span_name([(start, 0), (end, 1)], row), _sides(start, end)
    if target.start is None and target.end is None:
        raise BadTarget("SpanTarget(start=None, end=None) leaves nothing to explain.")
    places = [
        (_place(place, side, logits, row), side)
        for side, place in enumerate((target.start, target.end))
        if place is not None
    ]
    return _span_name(places, row), tuple((at, 1.0) for at in places)


def contrast_terms(
    this: SpanTarget, that: SpanTarget, logits: np.ndarray, row: TokenRow
) -> tuple[str, Terms]:
    """One span rather than another: the difference of their sums."""
    (name, plus), (other, minus) = (span_terms(one, logits, row) for one in (this, that))
    weights: dict[tuple[int, ...], float] = dict(plus)
    for at, weight in minus:
        weights[at] = weights.get(at, 0.0) - weight
    terms = tuple((at, weight) for at, weight in weights.items() if weight)
    if not terms:
        raise BadTarget(f"the contrast names one span twice: {name}. Give two that differ.")
    return f"{name} rather than {other.removeprefix('the answer ')}", terms


def _sides(start: int, end: int) -> Terms:
    return ((start, 0), 1.0), ((end, 1), 1.0)


def _span_name(places: Sequence[tuple[int, ...]], row: TokenRow) -> str:
    """``the answer ‘Shakespeare’``, or the one side that is explained."""
    if len(places) == 2 and places[0][0] <= places[1][0]:
        return f"the answer ‘{answer_text(row, places[0][0], places[1][0])}’"
    sides = (f"{('start', 'end')[side]} at ‘{answer_text(row, at, at)}’" for at, side in places)
    return " + ".join(sides)


def _place(place: Place, side: int, logits: np.ndarray, row: TokenRow) -> int:
    if place == "best":
        return best_span(logits, row)[side]
    if place == "argmax":
        return int(np.argmax(logits[:, side]))
    if isinstance(place, bool) or not isinstance(place, int | np.integer):
        raise BadTarget(f"a span side is 'best', 'argmax', a token number or None, not {place!r}.")
    if not 0 <= place < len(row):
        raise BadTarget(f"token {place} is outside the text, which has tokens 0 to {len(row) - 1}.")
    return int(place)


def answer_places(target: SpanTarget, row: TokenRow) -> tuple[int, int]:
    """First and last token of a given answer: the tokens that share a character with it."""
    first, behind = answer_characters(target, row)
    context = max(_segments(row))
    spans = [
        (place, span)
        for place, (span, segment) in enumerate(zip(row.spans, row.segments, strict=True))
        if span is not None and segment == context
    ]
    inside = [place for place, (a, b) in spans if a < behind and first < b]
    whole = inside and spans[0][1][0] <= first and behind <= spans[-1][1][1]
    if not whole:
        raise BadTarget(
            f"the answer at characters {first} to {behind} stands where the context was cut off; "
            f"explain it with {long_way('stride')}."
        )
    return inside[0], inside[-1]


def holds(target: SpanTarget, row: TokenRow) -> bool:
    """Whether a window has every character of a given answer."""
    if not target.given:
        return True
    answer_characters(target, row)  # an answer that is nowhere is refused, not looked for on
    try:
        answer_places(target, row)
    except BadTarget:
        return False
    return True


def answer_characters(target: SpanTarget, row: TokenRow) -> tuple[int, int]:
    """Where a given answer stands in the context: (first, behind the last) character."""
    if not row.texts:
        raise BadTarget(
            "an answer is found by its characters, and a row of ids knows no text; give the token "
            "numbers SpanTarget(start=…, end=…)."
        )
    context = row.texts[-1]
    if target.characters is not None:
        first, behind = target.characters
        if not 0 <= first < behind <= len(context) or not context[first:behind].strip():
            raise BadTarget(
                f"characters {first} to {behind} hold no word of the context, which has "
                f"{len(context)} characters; give (first, behind the last)."
            )
        return first, behind
    answer = (target.answer or "").strip()
    return _found(answer, context, target.occurrence)


def _found(answer: str, context: str, occurrence: int | None) -> tuple[int, int]:
    if not answer:
        none = way("no_answer=True", "--no-answer")
        raise BadTarget(f"the answer is empty; give words of the context, or {none}.")
    starts = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    if not starts:
        near = re.search(re.escape(answer), context, re.IGNORECASE)
        hint = f" It is written there as {near.group()!r}." if near else ""
        raise BadTarget(
            f"the answer {answer!r} is not in the context.{hint} An answer is a part of the context, "
            "exactly as it is written there."
        )
    start = one_place(starts, occurrence, f"the answer {answer!r}", "the context", "characters")
    return start, start + len(answer)


def null_place(row: TokenRow) -> int | None:
    """The token whose span means "no answer": the special token a row begins with, if it does."""
    return 0 if row.special[0] else None


def null_score(logits: np.ndarray, row: TokenRow) -> float | None:
    """Start + end logit of "no answer"."""
    at = null_place(row)
    return None if at is None else float(logits[at].sum())


def best_span(logits: np.ndarray, row: TokenRow) -> tuple[int, int]:
    """Start and end (both in) of the valid span with the highest start + end logit."""
    allowed = np.array([segment == max(_segments(row)) for segment in row.segments])
    if not allowed.any():  # rows from ids know no segments: token types tell, else all may answer
        types = np.array(row.token_types or ())
        allowed = types == 1 if (types == 1).any() else np.ones(len(row), bool)
    places = np.flatnonzero(allowed)
    sums = logits[places, 0][:, None] + logits[places, 1][None, :]
    gap = places[None, :] - places[:, None]
    sums[(gap < 0) | (gap >= LONGEST_ANSWER)] = -np.inf
    start, end = np.unravel_index(int(np.argmax(sums)), sums.shape)
    return int(places[start]), int(places[end])


def _segments(row: TokenRow) -> Sequence[int]:
    return [segment for segment in row.segments if segment is not None] or [-1]


def answer_text(row: TokenRow, start: int, end: int) -> str:
    """The span's own characters, or its pieces where the text is unknown."""
    return row.written(range(start, end + 1), " ").strip()


def one_place(
    places: Sequence[int], occurrence: int | None, what: str, where: str, units: str
) -> int:
    """The place that is meant where ``what`` stands at several in ``where``, counted in ``units``."""
    given = way("occurrence=", "--occurrence ")
    if occurrence is None and len(places) > 1:
        raise BadTarget(
            f"{what} occurs {len(places)} times in {where} (at {units} {few(places, 6)}); say which with "
            f"{given}0 to {len(places) - 1}."
        )
    chosen = occurrence or 0
    if not 0 <= chosen < len(places):
        raise BadTarget(
            f"{given}{chosen} does not exist: {what} occurs {len(places)} "
            f"time{'s' * (len(places) > 1)} in {where}, counted from 0."
        )
    return places[chosen]
