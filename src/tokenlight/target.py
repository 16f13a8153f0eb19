"""What number is explained: a class logit, a contrast of two, or the two logits of an answer span.

A target resolves, for one example, to a weighted sum of that example's output logits. The logits of
a classifier are indexed ``[label]``; those of a span head ``[token, 0]`` (start), ``[token, 1]``
(end). Logits, never probabilities: their gradient does not die where the model is sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadTarget, UnknownName
from tokenlight.tokens import TokenRow

LONGEST_ANSWER = 30  # tokens; the bound the question-answering pipelines use for a valid span


@dataclass(frozen=True, slots=True)
class Contrast:
    """Why ``this`` rather than ``that``: the difference of two class logits."""

    this: str | int
    that: str | int


Place = Literal["best", "argmax"] | int | None


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """Start logit + end logit of an answer span.

    ``"best"``: the best valid span (start ≤ end, inside the context, at most 30 tokens);
    ``"argmax"``: the highest start (end) logit on its own, as the official codes take it;
    a number: that token; ``None``: leave this side out.
    """

    start: Place = "best"
    end: Place = "best"


TargetLike = str | int | Contrast | SpanTarget


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """A target of one example: ``value = Σ weight · logits[coordinate]``."""

    kind: Literal["class", "contrast", "span"]
    name: str
    terms: tuple[tuple[tuple[int, ...], float], ...]

    def value(self, logits: Any) -> Any:
        """The number that is explained, from this example's logits (array or tensor)."""
        return sum(weight * logits[coordinate] for coordinate, weight in self.terms)

    @property
    def index(self) -> int | None:
        """The class index of a class target."""
        return self.terms[0][0][0] if self.kind == "class" else None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says: the label (or answer), its index, and every label's probability.

    A regression head has no probabilities; a span head gives those of its start and end.
    """

    label: str
    index: int
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]

    @property
    def probability(self) -> float | None:
        """Probability of the predicted label, where the head has probabilities."""
        return self.probabilities[self.index] if self.probabilities else None


@dataclass(frozen=True, slots=True)
class Head:
    """What a model's last layer means: its kind, its labels, and how logits become probabilities."""

    kind: Literal["classification", "span"]
    labels: tuple[str, ...] = ()
    problem: Literal["single", "multi", "regression"] = "single"

    def predict(self, logits: np.ndarray, row: TokenRow) -> Prediction:
        """Read one example's prediction off its logits."""
        if self.kind == "span":
            start, end = best_span(logits, row)
            probabilities = _softmax(logits[:, 0])[start], _softmax(logits[:, 1])[end]
            answer = answer_text(row, start, end)
            return Prediction(answer, 0, (answer,), (float(np.prod(probabilities)),))
        index = int(np.argmax(logits))
        if self.problem == "regression":
            return Prediction(f"{float(logits[0]):.4g}", 0, self.labels, ())
        chances = 1 / (1 + np.exp(-logits)) if self.problem == "multi" else _softmax(logits)
        return Prediction(self.labels[index], index, self.labels, tuple(map(float, chances)))

    def resolve(
        self, target: TargetLike, logits: np.ndarray, row: TokenRow
    ) -> tuple[ResolvedTarget, ...]:
        """The target as weighted logits; ``"all"`` gives one for every class."""
        if isinstance(target, SpanTarget) != (self.kind == "span") and target != "predicted":
            raise BadTarget(_wrong_head(target, self))
        if self.kind == "span":
            return (self._span(target, logits, row),)
        if target == "all":
            return tuple(self._class(index) for index in range(len(self.labels)))
        if target == "predicted":
            return (self._class(int(np.argmax(logits))),)
        if isinstance(target, Contrast):
            this, that = self.label_index(target.this), self.label_index(target.that)
            if this == that:
                raise BadTarget(
                    f"Contrast({target.this!r}, {target.that!r}) names one class twice."
                )
            name = f"{self.labels[this]} rather than {self.labels[that]}"
            return (ResolvedTarget("contrast", name, (((this,), 1.0), ((that,), -1.0))),)
        return (self._class(self.label_index(target)),)

    def label_index(self, label: object) -> int:
        """Index of a label given by name or number."""
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise BadTarget(
                f"target {label!r} is a {type(label).__name__}; give 'predicted', 'all', a label "
                f"({', '.join(self.labels)}), its number, or Contrast(…)."
            )
        if isinstance(label, str):
            if label in self.labels:
                return self.labels.index(label)
            if not label.lstrip("-").isdigit():
                raise UnknownName.among("label", label, (*self.labels, "predicted", "all"))
        index = int(label)
        if not 0 <= index < len(self.labels):
            raise BadTarget(
                f"label number {index} does not exist: this model has {len(self.labels)} labels, "
                f"0 to {len(self.labels) - 1} ({', '.join(self.labels)})."
            )
        return index

    def _class(self, index: int) -> ResolvedTarget:
        return ResolvedTarget("class", self.labels[index], (((index,), 1.0),))

    def _span(self, target: Any, logits: np.ndarray, row: TokenRow) -> ResolvedTarget:
        wanted = SpanTarget() if target == "predicted" else target
        if wanted.start is None and wanted.end is None:
            raise BadTarget("SpanTarget(start=None, end=None) leaves nothing to explain.")
        terms = []
        for side, place in enumerate((wanted.start, wanted.end)):
            if place is not None:
                terms.append(((_place(place, side, logits, row), side), 1.0))
        return ResolvedTarget("span", _span_name([at for at, _ in terms], row), tuple(terms))


def _span_name(places: Sequence[tuple[int, ...]], row: TokenRow) -> str:
    """``the answer ‘Shakespeare’``, or the one side that is explained."""
    if len(places) == 2 and places[0][0] <= places[1][0]:
        return f"the answer ‘{answer_text(row, places[0][0], places[1][0])}’"
    sides = (f"{('start', 'end')[side]} at ‘{answer_text(row, at, at)}’" for at, side in places)
    return " + ".join(sides)


def _wrong_head(target: object, head: Head) -> str:
    if head.kind == "span":
        return (
            f"target {target!r} names a class, but this model answers questions with a span; give "
            "'predicted' or SpanTarget(start=…, end=…)."
        )
    return (
        "SpanTarget explains a question-answering model, but this model is a classifier with the "
        f"labels {', '.join(head.labels)}; give one of them, 'predicted', 'all' or Contrast(…)."
    )


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
    first, last, segment = row.spans[start], row.spans[end], row.segments[start]
    if first is None or last is None or segment is None:
        return " ".join(row.pieces[start : end + 1])
    return row.texts[segment][first[0] : last[1]].strip()


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    shares: np.ndarray = powers / powers.sum()
    return shares
