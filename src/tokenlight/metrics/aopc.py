"""AOPC: how much the probability falls when the most important tokens are removed."""

from typing import Any, Literal

import numpy as np

from tokenlight.data.ranks import RankOrder
from tokenlight.metrics._perturbation import (
    PAPER_GRID,
    Perturb,
    PerturbationMetric,
    WatchedTarget,
    shares_to_counts,
)
from tokenlight.plugin import BadInput, Case, rank_positions
from tokenlight.registry import Share

OFFICIAL_OPTIONS: dict[str, Any] = {"grid": "linspace9", "target": "label"}
NUM_OFFICIAL_STEPS = 9


class AreaOverPerturbationCurve(PerturbationMetric):
    r"""Mean fall of the target's probability as the top-ranked tokens are removed.

    .. math:: \mathrm{AOPC} = \frac1{|K|}\sum_{k\in K} p(c\mid x) - p(c\mid \tilde x^{k})

    :math:`\tilde x^k` lacks the round(k·m) highest-ranked of the m tokens that are not special, for K = 0,
    10, …, 100 % (up to ``until``). With ``order="bottom"`` the lowest-ranked tokens are removed first, and
    lower is better. For answer spans, p is the product of start and end probability. Samek et al. 2017;
    Qiang et al. 2022.
    Differs from the paper: nothing. The official codes take nine steps of n/9 tokens, special tokens
    included, never remove the lowest-ranked token, replace by [PAD], watch the true label of the data set,
    and skip short texts. AttCAT's code takes \|p − p̃\| (``preset="attcat"``), that of Mask-LRP does not
    (``preset="mask_lrp"``; its filter is ``min_probability``). Means over 11 and over 9 points are not
    comparable.
    """

    perturb: Perturb = "delete"
    order: RankOrder = "top"
    grid: Literal["paper", "linspace9"] = "paper"
    abs_diff: bool = False
    mask_pad_attention: bool = False
    protect_special: bool = True
    target: WatchedTarget = "explained"
    min_len: int = 0
    min_probability: float = 0.0
    until: Share = 1.0
    cites = "qiang2022attcat"
    presets = {
        "paper": {},
        "attcat": {**OFFICIAL_OPTIONS, "abs_diff": True, "min_len": 10},
        "mask_lrp": {**OFFICIAL_OPTIONS, "perturb": "pad", "min_len": 20},
    }

    @property
    def curve_points(self) -> tuple[float, ...]:
        if self.grid == "paper":
            return tuple(share for share in PAPER_GRID if share <= self.until)
        return tuple(step / NUM_OFFICIAL_STEPS for step in range(1, NUM_OFFICIAL_STEPS + 1))

    def select_removed_positions(self, case: Case) -> list[np.ndarray]:
        num_tokens = len(case.perturber)
        if num_tokens < self.min_len:
            raise BadInput(
                f"The text has fewer than min_len={self.min_len} tokens, so it is skipped.",
                code="shorter-than-min-len",
            )
        order = self.rank_removable(case)
        if self.grid == "paper":
            return self.select_removed(order, shares_to_counts(self.curve_points, len(order)))
        if num_tokens <= NUM_OFFICIAL_STEPS:
            raise BadInput(
                "The nine official steps are not distinct for fewer than ten tokens. Use grid='paper'.",
                code="too-short-for-nine-steps",
            )
        # The official code stops one token before the end of the order, and skips special tokens on the way.
        official_order = rank_positions(case.attribution.scores, self.order)[:-1]
        removable = official_order[np.isin(official_order, order)]
        return self.select_removed(removable, shares_to_counts(self.curve_points, num_tokens))

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:
        if original < self.min_probability:
            raise BadInput(
                f"The probability {original:.3f} of the text is below min_probability, so it is skipped.",
                code="below-min-probability",
            )
        fall = original - perturbed
        return np.abs(fall) if self.abs_diff else fall
