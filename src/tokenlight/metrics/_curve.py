"""What metrics share whose number is the area under a curve over shares of hidden tokens."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._metric import Measured, Metric


class CurveMetric(Metric):
    """Hides the first of the ranked tokens, share by share; where ``shows``, all behind them."""

    steps: int
    shows: ClassVar[bool] = False

    @property
    def points(self) -> tuple[float, ...]:
        return tuple(step / self.steps for step in range(self.steps + 1))

    def check_steps(self) -> None:
        """Refuse a grid without a step."""
        if self.steps < 1:
            raise BadInput(f"steps={self.steps} leaves no curve; give 1 or more.")

    def gone(self, order: np.ndarray, count: int) -> np.ndarray:
        """What is hidden at the step that counts ``count`` tokens of ``order``."""
        return order[count:] if self.shows else order[:count]

    def area(self, curve: np.ndarray) -> Measured:
        """The area under the curve, by the trapezoid rule."""
        return Measured(float(np.trapezoid(curve, self.points)), tuple(map(float, curve)))
