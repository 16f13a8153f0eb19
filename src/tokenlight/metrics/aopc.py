"""AOPC: how far the probability falls when the most important tokens go."""

from typing import Any, Literal

import numpy as np

from tokenlight.capture.perturbation import Variant
from tokenlight.errors import BadInput
from tokenlight.metrics._chance import Watched, chances
from tokenlight.metrics._erasing import ErasingMetric, Perturb, erased
from tokenlight.metrics._metric import Answers, Better, Case, Measured
from tokenlight.metrics._ranking import (
    PAPER_GRID,
    Order,
    ninths_to_counts,
    ranking,
    shares_to_counts,
)

OFFICIAL: dict[str, Any] = {"grid": "linspace9", "target": "label"}


class AreaOverPerturbationCurve(ErasingMetric):
    r"""Mean fall of the target's probability as the top-ranked tokens are removed.

    .. math:: \mathrm{AOPC} = \frac1{|K|}\sum_{k\in K} p(c\mid x) - p(c\mid \tilde x^{k})

    :math:`\tilde x^k` lacks the round(k·m) highest-ranked of the m tokens that are not special;
    K = 0, 10, …, 100 %, k = 0 included. Higher is better; with ``order="bottom"`` the lowest-ranked
    go first and lower is better. ``until`` ends K there. The curve has one point for each k. Samek
    et al. 2017; Qiang et al. 2022; for answer spans p is the product of start and end probability.
    Differs from the paper: nothing. The official codes take nine steps of n/9 tokens, special ones
    counted, never remove the lowest-ranked token, replace by [PAD], watch the dataset's label and
    leave out short texts; AttCAT's takes \|p − p̃\| (``preset="attcat"``), Mask-LRP's not
    (``preset="mask_lrp"``; its filter is ``min_probability``). Means over 11 and over 9 points are
    not comparable.
    """

    perturb: Perturb = "delete"
    order: Order = "top"
    grid: Literal["paper", "linspace9"] = "paper"
    abs_diff: bool = False
    mask_pad_attention: bool = False
    protect_special: bool = True
    target: Watched = "explained"
    min_len: int = 0
    min_probability: float = 0.0
    until: float = 1.0
    cites = "qiang2022attcat"
    presets = {
        "paper": {},
        "attcat": {**OFFICIAL, "abs_diff": True, "min_len": 10},
        "mask_lrp": {**OFFICIAL, "perturb": "pad", "min_len": 20},
    }

    @property
    def direction(self) -> Better:
        return self.turned(self.order)

    @property
    def labelled(self) -> bool:
        return self.target == "label"

    @property
    def points(self) -> tuple[float, ...]:
        if self.grid == "paper":
            return tuple(k for k in PAPER_GRID if k <= self.until)
        return tuple(step / 9 for step in range(1, 10))

    def variants(self, case: Case) -> list[Variant]:
        if len(case.original) < self.min_len:
            raise BadInput(f"the text has fewer than min_len={self.min_len} tokens.")
        return [
            case.original.unchanged(),
            *(
                erased(case.original, gone, self.perturb, unattended=self.mask_pad_attention)
                for gone in self.removed(case)
            ),
        ]

    def removed(self, case: Case) -> list[np.ndarray]:
        """The positions that go at each point of the curve."""
        order = self.ranked(case, self.order)
        if self.grid == "paper":
            return [order[:count] for count in shares_to_counts(self.points, len(order))]
        if len(case.original) < 10:
            raise BadInput("the nine official steps are not distinct below ten tokens.")
        # The walk over the order stops one before its end, and skips special tokens on its way.
        walked = ranking(case.attribution.scores, self.order)[:-1]
        order = walked[np.isin(walked, order)]
        return [order[:count] for count in ninths_to_counts(len(case.original))]

    def measure(self, case: Case, answers: Answers) -> Measured:
        whole, *changed = chances(case, answers, self.target)
        if whole < self.min_probability:
            raise BadInput(f"the probability {whole:.3f} is below min_probability.")
        curve = self.difference(float(whole), np.array(changed))
        return Measured(float(curve.mean()), tuple(map(float, curve)))

    def difference(self, whole: float, changed: np.ndarray) -> np.ndarray:
        """What is averaged: the fall from ``whole`` to each of ``changed``."""
        fall = whole - changed
        return np.abs(fall) if self.abs_diff else fall
