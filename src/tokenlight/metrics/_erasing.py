"""Taking ranked tokens out of a text, in one of the papers' three ways, all at once or step by step."""

from typing import ClassVar, Literal

import numpy as np

from tokenlight.capture.perturbation import Original, Variant
from tokenlight.data.target import Head
from tokenlight.errors import BadInput
from tokenlight.metrics._chance import needs_probabilities
from tokenlight.metrics._metric import Better, Case, Measured, Metric
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

    def check(self, head: Head) -> None:
        needs_probabilities(head, self.name)

    def ranked(self, case: Case, order: Order = "top") -> np.ndarray:
        """The positions that may be taken out, in the order in which they go."""
        original = case.original
        allowed = original.rankable if self.protect_special else np.arange(len(original))
        return ranked_among(case.attribution.scores, allowed, order)

    def gone(self, order: np.ndarray, count: int) -> np.ndarray:
        """What is taken out at the step that counts ``count`` tokens of ``order``."""
        return order[count:] if self.shows else order[:count]

    def turned(self, order: Order) -> Better:
        """Which way is better if tokens go in this order."""
        if order == "top":
            return self.better
        return "lower" if self.better == "higher" else "higher"


class CurveMetric(ErasingMetric, base=True):
    """Takes the ranked tokens out share by share; its number is the area under what comes of it."""

    steps: int
    better: ClassVar[Better] = "lower"

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(self.steps + 1))

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadInput(f"steps={self.steps} leaves no curve; give 1 or more.")

    def hidden(self, order: np.ndarray) -> list[np.ndarray]:
        """What is hidden at each step, of tokens in ``order``."""
        return [self.gone(order, count) for count in shares_to_counts(self.points, len(order))]

    def area(self, curve: np.ndarray) -> Measured:
        """The area under the curve, by the trapezoid rule."""
        return Measured(float(np.trapezoid(curve, self.points)), tuple(map(float, curve)))
