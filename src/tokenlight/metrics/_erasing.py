"""Taking ranked tokens, or whole sources, out of a text, all at once or step by step."""

import abc
from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from tokenlight.capture.perturbation import Original
from tokenlight.data.units import Unit, sources
from tokenlight.errors import BadInput
from tokenlight.metrics._chance import Watched, chances, needs_probabilities
from tokenlight.metrics._metric import Answers, Better, Case, Count, Head, Measured, Metric, Variant
from tokenlight.metrics._ranking import Order, ranked_among, shares_to_counts

Perturb = Literal["delete", "pad", "mask"]


def erased(
    original: Original, positions: np.ndarray, how: Perturb, *, unattended: bool = False
) -> Variant:
    """The text without ``positions``: deleted, or replaced by [PAD] or [MASK].

    A replacement is attended to like any token, unless ``unattended``.
    """
    if how == "delete":
        return original.without(positions)
    by = original.stand_ins.pad if how == "pad" else original.stand_ins.mask
    return original.hidden(positions, by) if unattended else original.replaced(positions, by)


class ErasingMetric(Metric, base=True):
    """Takes the first of the ranked tokens out of a text; where it ``shows`` them, all behind them.
    Special ones stay, where they are protected."""

    protect_special: bool
    shows = False

    @property
    def goes(self) -> Order:
        """Which tokens go first."""
        return "top"

    @property
    def watched(self) -> Watched:
        """Whose probability is looked at: the option ``target``, where there is one."""
        return getattr(self, "target", "explained")

    @property
    def direction(self) -> Better:
        if self.goes == "top":
            return self.better
        return "lower" if self.better == "higher" else "higher"

    @property
    def labelled(self) -> bool:
        return self.watched == "label"

    def check(self, head: Head) -> None:
        needs_probabilities(head, self.name)

    def ranked(self, case: Case) -> np.ndarray:
        """The positions that may be taken out, in the order in which they go."""
        original = case.original
        allowed = original.rankable if self.protect_special else np.arange(len(original))
        return ranked_among(case.attribution.scores, allowed, self.goes)

    def gone(self, order: np.ndarray, count: int) -> np.ndarray:
        """What is taken out at the step that counts ``count`` tokens of ``order``."""
        return order[count:] if self.shows else order[:count]


class FallMetric(ErasingMetric, base=True):
    """Its number is the mean fall of the probability over texts without some tokens."""

    perturb: Perturb

    @abc.abstractmethod
    def removed(self, case: Case) -> Iterable[np.ndarray]:
        """The positions that are gone from each changed text."""

    def variants(self, case: Case) -> list[Variant]:
        original, hides = case.original, getattr(self, "mask_pad_attention", False)
        texts = (erased(original, g, self.perturb, unattended=hides) for g in self.removed(case))
        return [original.unchanged(), *texts]

    def measure(self, case: Case, answers: Answers) -> Measured:
        whole, *changed = chances(case, answers, self.watched)
        curve = self.curve(float(whole), np.array(changed))
        return Measured(float(curve.mean()), tuple(map(float, curve)))

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:
        """What is averaged: the fall from ``whole`` to each of ``changed``."""
        return whole - changed


class CurveMetric(ErasingMetric, base=True):
    """Takes the ranked tokens out share by share; its number is the area under what comes of it."""

    steps: Count
    better: ClassVar[Better] = "lower"

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(self.steps + 1))

    def hidden(self, case: Case) -> list[np.ndarray]:
        """What is hidden at each step."""
        order = self.ranked(case)
        return [self.gone(order, count) for count in shares_to_counts(self.points, len(order))]

    def area(self, curve: np.ndarray) -> Measured:
        """The area under the curve, by the trapezoid rule."""
        return Measured(float(np.trapezoid(curve, self.points)), tuple(map(float, curve)))


def sources_of(case: Case, unit: Unit) -> tuple[list[np.ndarray], np.ndarray]:
    """The places of each unit's tokens, and the sum of its scores; question and answer are none."""
    if case.attribution.target.kind == "span":
        raise BadInput(
            "this metric deletes sources, and an answer that is a place in the text would move; use "
            "aopc or comprehensiveness."
        )
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
