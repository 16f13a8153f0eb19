"""AOPC: how far the probability falls when the most important tokens go."""

from typing import Any, Literal

import numpy as np

from tokenlight.errors import BadInput
from tokenlight.metrics._erasing import ErasingMetric, Perturb, Watched
from tokenlight.metrics._metric import Case
from tokenlight.metrics._ranking import PAPER_GRID, Order, ranking, shares_to_counts

OFFICIAL: dict[str, Any] = {"grid": "linspace9", "target": "label"}


class AreaOverPerturbationCurve(ErasingMetric):
    r"""Mean fall of the target's probability as the top-ranked tokens are removed.

    .. math:: \mathrm{AOPC} = \frac1{|K|}\sum_{k\in K} p(c\mid x) - p(c\mid \tilde x^{k})

    :math:`\tilde x^k` lacks the round(k·m) highest-ranked of the m tokens that are not special;
    K = 0, 10, …, 100 % (``until`` ends it). With ``order="bottom"`` the lowest-ranked go first and lower
    is better. Samek et al. 2017; Qiang et al. 2022; for answer spans p is the product of start and end
    probability.
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
    def points(self) -> tuple[float, ...]:
        if self.grid == "paper":
            return tuple(k for k in PAPER_GRID if k <= self.until)
        return tuple(step / 9 for step in range(1, 10))

    def removed(self, case: Case) -> list[np.ndarray]:
        if len(case.original) < self.min_len:
            raise BadInput(f"the text has fewer than min_len={self.min_len} tokens.")
        order = self.ranked(case)
        if self.grid == "paper":
            return self.gone(order, shares_to_counts(self.points, len(order)))
        if len(case.original) < 10:
            raise BadInput("the nine official steps are not distinct below ten tokens.")
        # The walk over the order stops one before its end, and skips special tokens on its way.
        walked = ranking(case.attribution.scores, self.order)[:-1]
        order = walked[np.isin(walked, order)]
        return self.gone(order, shares_to_counts(self.points, len(case.original)))

    def curve(self, whole: float, changed: np.ndarray) -> np.ndarray:
        if whole < self.min_probability:
            raise BadInput(f"the probability {whole:.3f} is below min_probability.")
        fall = whole - changed
        return np.abs(fall) if self.abs_diff else fall
