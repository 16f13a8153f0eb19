"""Answer spans: where in the context the answer stands that a span head gives, or a person names. Models
trained on questions without an answer (SQuAD v2) say "no answer" by the span of the first token."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
            raise BadTarget(f"{self!r} names the span in two ways; give one of them.")
        pair = (0, 0) if self.characters is None else self.characters
        whole = isinstance(pair, tuple | list) and [*map(_is_whole, pair)] == [True, True]
        lost = self.occurrence is not None and self.answer is None  # it counts places of an answer
        if not isinstance(self.answer, str | None) or not whole or lost:
            raise BadTarget(
                f"{shown(self, 120)} names no answer; give answer='its words', or characters=(first, "
                "behind the last)."
            )

    @property
    def given(self) -> bool:
        """Whether a person named the answer, by its text or its characters."""
        return self.answer is not None or self.characters is not None


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def as_span(target: object) -> SpanTarget:
    """A target of a span head: ``"predicted"``, the text of an answer, or a SpanTarget."""
    if isinstance(target, SpanTarget):
        return target
    if not isinstance(target, str):
        raise BadTarget(f"{target!r} is not an answer; give its text, or SpanTarget(…).")
    return SpanTarget() if target == "predicted" else SpanTarget(answer=target)


def span_terms(target: SpanTarget, logits: np.ndarray, row: TokenRow) -> tuple[str, Terms]:
    """A span target's name and its weighted logits."""
    asked: tuple[Place, Place] = (target.start, target.end)
    if target.given:
        found = answer_places(target, row)
        if found is None:
            raise BadTarget(f"the answer was cut off; explain it with {long_way('stride')}.")
        asked = found
    elif target.no_answer:
        asked = 0, 0
        if not row.special[0]:
            given = way("no_answer", "--no-answer")
            raise BadTarget(
                f"{given} is the span of the first special token ([CLS]), but this model's input "
                "begins with none; explain 'predicted' or a given answer."
            )
    sides = [(side, place) for side, place in enumerate(asked) if place is not None]
    places = [(_place(place, side, logits, row), side) for side, place in sides]
    if not places:
        raise BadTarget("SpanTarget(start=None, end=None) leaves nothing to explain.")
    terms = tuple((at, 1.0) for at in places)
    if target.no_answer:
        return NO_ANSWER, terms
    if len(places) == 2 and places[0][0] <= places[1][0]:
        return f"the answer ‘{answer_text(row, places[0][0], places[1][0])}’", terms
    named = (f"{('start', 'end')[side]} at ‘{answer_text(row, at, at)}’" for at, side in places)
    return " + ".join(named), terms


def _place(place: Any, side: int, logits: np.ndarray, row: TokenRow) -> int:
    if place == "best":
        return best_span(logits, row)[side]
    if place == "argmax":
        return int(np.argmax(logits[:, side]))
    if not _is_whole(place) or not 0 <= place < len(row):
        sides = f"'best', 'argmax', None or a token of the text, 0 to {len(row) - 1}"
        raise BadTarget(f"a span side is {sides}, not {place!r}.")
    return int(place)


def answer_places(target: SpanTarget, row: TokenRow) -> tuple[int, int] | None:
    """First and last token that share a character with a given answer; None where it is not all there."""
    first, behind = _answer_characters(target, row)
    spans = [(i, own) for i in _context(row) if (own := row.spans[i]) is not None]
    inside = [place for place, (a, b) in spans if a < behind and first < b]
    whole = inside and spans[0][1][0] <= first and behind <= spans[-1][1][1]
    return (inside[0], inside[-1]) if whole else None


def _answer_characters(target: SpanTarget, row: TokenRow) -> tuple[int, int]:
    """Where a given answer stands in the context: (first, behind the last) character."""
    if not row.texts:
        raise BadTarget(
            "an answer is found by its characters, and a row of ids knows no text; give the token "
            "numbers SpanTarget(start=…, end=…)."
        )
    context, answer = row.texts[-1], (target.answer or "").strip()
    if target.characters is not None:
        first, behind = target.characters
        if not 0 <= first < behind <= len(context) or not context[first:behind].strip():
            raise BadTarget(
                f"characters {first} to {behind} hold no word of the context, which has "
                f"{len(context)} characters; give (first, behind the last)."
            )
        return first, behind
    starts = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    if not answer or not starts:
        raise BadTarget(
            f"the answer {answer!r} is not in the context; give words exactly as they are written there, "
            f"or {way('no_answer=True', '--no-answer')}."
        )
    what = f"the answer {answer!r}"
    start = one_place(starts, target.occurrence, what, "the context", "characters")
    return start, start + len(answer)


def best_span(logits: np.ndarray, row: TokenRow) -> tuple[int, int]:
    """Start and end (both in) of the valid span with the highest start + end logit."""
    places = np.array(_context(row))
    sums = logits[places, 0][:, None] + logits[places, 1][None, :]
    gap = places[None, :] - places[:, None]
    sums[(gap < 0) | (gap >= LONGEST_ANSWER)] = -np.inf
    start, end = np.unravel_index(int(np.argmax(sums)), sums.shape)
    return int(places[start]), int(places[end])


def _context(row: TokenRow) -> list[int]:
    """The tokens that may answer; of a row of ids those of the second token type, or all."""
    types: Sequence[int | None] = row.segments
    last = max((segment for segment in types if segment is not None), default=None)
    if last is None:
        types, last = row.token_types or (), 1
    return [i for i, own in enumerate(types) if own == last] or [*range(len(row))]


def answer_text(row: TokenRow, start: int, end: int) -> str:
    """The span's own characters, or its pieces where the text is unknown."""
    return row.written(range(start, end + 1), " ").strip()


def one_place(
    places: Sequence[int], occurrence: int | None, what: str, where: str, units: str
) -> int:
    """The place that is meant where ``what`` stands at several in ``where``, counted in ``units``."""
    chosen = 0 if occurrence is None and len(places) == 1 else occurrence
    if chosen is None or not 0 <= chosen < len(places):
        given = way("occurrence=", "--occurrence ")
        wrong = "" if chosen is None else f"{given}{chosen} does not exist: "
        raise BadTarget(
            f"{wrong}{what} occurs {len(places)} times in {where} (at {units} {few(places, 6)}); say which "
            f"with {given}0 to {len(places) - 1}."
        )
    return places[chosen]


def log_probability(logits: np.ndarray) -> float:
    """ln P of an answer, from ``written 2``: each token's logit, and ln Σ exp of all others'."""
    return -float(np.logaddexp(0, logits[:, 1] - logits[:, 0]).sum())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Shares of all numbers together."""
    powers = np.exp(logits - logits.max())
    shares: np.ndarray = powers / powers.sum()
    return shares
