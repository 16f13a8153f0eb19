"""Taking ranked tokens, or whole sources, out of a text, and the probability that is left of a target."""

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from tokenlight.capture.perturbation import Original
from tokenlight.data.answers import log_probability, softmax
from tokenlight.data.target import Head, ResolvedTarget
from tokenlight.data.units import Unit, sources
from tokenlight.errors import BadInput, NotFinite, way
from tokenlight.metrics._metric import Answers, Better, Case, Count, Measured, Metric, Variant
from tokenlight.metrics._ranking import Order, ranked_among, shares_to_counts

Perturb = Literal["delete", "pad", "mask"]
Watched = Literal["explained", "predicted", "label"]
SMALLEST = 1e-12  # a probability below is taken as this before its logarithm


class ErasingMetric(Metric, base=True):
    """Its number is the mean fall of the probability over texts without the first of the ranked tokens;
    where it ``shows`` them, without all behind them. Special ones stay, where they are protected."""

    perturb: Perturb
    protect_special: bool
    shows = False
    watches = True

    @property
    def goes(self) -> Order:
        """Which tokens go first: the option ``order``, where there is one."""
        return getattr(self, "order", "top")

    @property
    def direction(self) -> Better:
        if self.goes == "top":
            return self.better
        return "lower" if self.better == "higher" else "higher"

    @property
    def labelled(self) -> bool:
        return "label" in (getattr(self, "target", ""), getattr(self, "reference", ""))

    def ranked(self, case: Case) -> np.ndarray:
        """The positions that may be taken out, in the order in which they go."""
        original = case.original
        allowed = original.rankable if self.protect_special else np.arange(len(original))
        return ranked_among(case.attribution.scores, allowed, self.goes)

    def gone(self, order: np.ndarray, counts: Iterable[int]) -> list[np.ndarray]:
        """What is taken out at the steps that count this many tokens of ``order``."""
        return [order[count:] if self.shows else order[:count] for count in counts]

    def counts(self, tokens: int) -> Iterable[int]:
        """How many of the ranked tokens each step counts."""
        return shares_to_counts(self.points, tokens)

    def removed(self, case: Case) -> Iterable[np.ndarray]:
        """The positions that are gone from each changed text."""
        order = self.ranked(case)
        return self.gone(order, self.counts(len(order)))

    def erased(self, original: Original, gone: np.ndarray) -> Variant:
        """The text without some positions: deleted (patches of a picture, which would lose its grid, are
        hidden), or replaced by [PAD] or [MASK], which is attended to unless ``mask_pad_attention``."""
        if self.perturb == "delete":
            return original.taken(gone)
        by = original.stand_ins.pad if self.perturb == "pad" else original.stand_ins.mask
        hides = getattr(self, "mask_pad_attention", False)
        return original.hidden(gone, by) if hides else original.replaced(gone, by)

    def variants(self, case: Case) -> list[Variant]:
        texts = (self.erased(case.original, gone) for gone in self.removed(case))
        return [case.original.unchanged(), *texts]

    def measure(self, case: Case, answers: Answers) -> Measured:
        whole, *changed = chances(case, answers, getattr(self, "target", "explained"))
        curve = self.curve(float(whole), np.array(changed))
        return Measured(self.value(curve), tuple(map(float, curve)))

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:
        """Of the probability of the whole text and of each changed one: the fall."""
        return whole - changed

    def value(self, curve: np.ndarray) -> float:
        """The number, from the curve: its mean."""
        return float(curve.mean())


class AreaMetric(ErasingMetric, base=True):
    """Takes the ranked tokens out share by share; its number is the area under what comes of it, by the
    trapezoid rule."""

    steps: Count
    better: ClassVar[Better] = "lower"

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(self.steps + 1))

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:  # noqa: ARG002 - not a fall
        return changed

    def value(self, curve: np.ndarray) -> float:
        return float(np.trapezoid(curve, self.points))


def sources_of(case: Case, unit: Unit) -> tuple[list[np.ndarray], np.ndarray]:
    """The places of each unit's tokens, and the sum of its scores; question and answer are none."""
    if case.attribution.target.kind == "span":
        moves = "this metric deletes sources, and an answer that is a place in the text would move"
        raise BadInput(f"{moves}; use aopc or comprehensiveness.")
    row, scores = case.attribution.row, case.attribution.scores
    kept = np.ones(len(row), dtype=bool)
    kept[case.original.rankable] = False
    found = sources(row, unit, kept)
    if not found:
        raise BadInput(f"the text has no {unit} that could be taken away.")
    return found, np.array([scores[group].sum() for group in found])


def without(case: Case, units: list[np.ndarray], gone: np.ndarray) -> list[Variant]:
    """The text without the units that each row of ``gone`` (``sample unit``) names."""
    nothing = [np.empty(0, dtype=int)]
    chosen = ([unit for unit, out in zip(units, own, strict=True) if out] for own in gone)
    return [case.original.taken(np.concatenate(own + nothing)) for own in chosen]


def chances(case: Case, answers: Answers, which: Watched = "explained") -> np.ndarray:
    """The probability of the explained target, of the predicted class or of the label in each changed
    text; of a span or an answer that of the explained one."""
    target: ResolvedTarget = case.attribution.target
    if which != "explained" and target.kind != "span" and not case.attribution.row.answer:
        index = case.label if which == "label" else case.attribution.prediction.index
        if index is None:
            labels = way("labels=…", "--label COLUMN")
            raise BadInput(f"target='label' needs the true label of every text; give {labels}.")
        target = ResolvedTarget("class", case.head.labels[index], (((index,), 1.0),))
    return np.array([chance(case.head, target, variant, logits) for variant, logits in answers])


def chance(head: Head, target: ResolvedTarget, variant: Variant, logits: np.ndarray) -> float:
    """Probability of a target in a changed text.

    Class: softmax (sigmoid where the labels do not exclude each other). Contrast: the share of the
    first class in the two. Span: the product over its sides; a deleted side has probability 0; of
    two spans in contrast the first one's share in both. Answer: the product over its tokens.
    """
    if not np.isfinite(logits).all():
        raise NotFinite("the model gives NaN or infinity for a changed text.")
    if target.kind == "span":
        return _span_chance(target, variant, logits)
    if target.kind == "answer":
        return float(np.exp(log_probability(logits[[place for (place, _), _ in target.terms]])))
    if target.kind == "contrast":
        return float(softmax(np.array([target.value(logits), 0.0]))[0])
    assert target.index is not None
    if head.problem == "multi":
        return float(softmax(np.array([logits[target.index], 0.0]))[0])
    return float(softmax(logits)[target.index])


def _span_chance(target: ResolvedTarget, variant: Variant, logits: np.ndarray) -> float:
    # A contrast's spans have weights of opposite sign; a side they share has none and says nothing.
    chances = {1: 1.0, -1: 1.0}
    for (position, side), weight in target.terms:
        if weight:
            place = variant.place_of(position)
            found = 0.0 if place is None else float(softmax(logits[:, side])[place])
            chances[1 if weight > 0 else -1] *= found
    this, that = chances.values()
    if all(weight > 0 for _, weight in target.terms):
        return this
    return this / (this + that) if this + that > 0 else 0.5
