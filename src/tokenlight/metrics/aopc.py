"""AOPC: how much the probability falls when the most important tokens are removed."""

from typing import Any, Literal

import numpy as np

from tokenlight.data.ranks import RankOrder
from tokenlight.metrics._perturbation import (
    PAPER_GRID,
    MeasuredTarget,
    Perturb,
    PerturbationMetric,
    convert_shares_to_counts,
)
from tokenlight.plugin import BadInput, Case, Share, rank_positions

OFFICIAL_OPTIONS: dict[str, Any] = {"grid": "linspace9", "target": "label"}
NUM_OFFICIAL_STEPS = 9


class AreaOverPerturbationCurve(PerturbationMetric):
    r"""Mean fall of the target's probability as the top-ranked tokens are removed.

    .. math:: \mathrm{AOPC} = \frac1{|K|}\sum_{k\in K} p(c\mid x) - p(c\mid \tilde x^{k})

    :math:`\tilde x^k` lacks the round(k·m) highest-ranked of the m tokens that are not special, for K = 0,
    10, …, 100 %. For answer spans, p is the product of start and end probability. Samek et al. 2017; Qiang
    et al. 2022.
    Differs from the paper: nothing. The official codes take nine steps of n/9 tokens, special tokens
    included, never remove the lowest-ranked token, replace by [PAD], measure the true label of the data set,
    and skip short texts. AttCAT's code takes \|p − p̃\| (``preset="attcat"``), that of Mask-LRP does not
    (``preset="mask_lrp"``; its filter is ``min_probability``). Means over 11 and over 9 points are not
    comparable.

    Args:
        perturb: What happens to a removed token: ``"delete"`` closes the gap, ``"pad"`` and ``"mask"`` put
            [PAD] or [MASK] in its place.
        order: Whether the highest-ranked tokens go first (``"top"``), or the lowest-ranked (``"bottom"``), of
            which lower values are better.
        grid: The shares of the text that are removed: ``"paper"`` takes K above, ``"linspace9"`` the nine
            steps of the official codes.
        absolute: Take the magnitude of each fall.
        mask_pad_attention: Give replaced tokens attention 0, so that no other token sees the replacement.
        protect_special: Keep special tokens in the text.
        target: Whose probability is measured: that of the ``"explained"`` target, of the ``"predicted"``
            class, or of the true ``"label"``.
        min_tokens: Skip texts with fewer tokens, special ones included.
        min_probability: Skip texts whose target is less probable than this.
        max_share: The largest share that ``grid="paper"`` removes.
    """

    perturb: Perturb = "delete"
    order: RankOrder = "top"
    grid: Literal["paper", "linspace9"] = "paper"
    absolute: bool = False
    mask_pad_attention: bool = False
    protect_special: bool = True
    target: MeasuredTarget = "explained"
    min_tokens: int = 0
    min_probability: float = 0.0
    max_share: Share = 1.0
    cites = "qiang2022attcat"
    presets = {
        "paper": {},
        "attcat": {**OFFICIAL_OPTIONS, "absolute": True, "min_tokens": 10},
        "mask_lrp": {**OFFICIAL_OPTIONS, "perturb": "pad", "min_tokens": 20},
    }

    @property
    def curve_points(self) -> tuple[float, ...]:
        if self.grid == "paper":
            return tuple(share for share in PAPER_GRID if share <= self.max_share)
        return tuple(step / NUM_OFFICIAL_STEPS for step in range(1, NUM_OFFICIAL_STEPS + 1))

    def select_removed_positions(self, case: Case) -> list[np.ndarray]:
        num_tokens = len(case.perturber)
        if num_tokens < self.min_tokens:
            raise BadInput(
                f"The text has fewer than min_tokens={self.min_tokens} tokens, so it is skipped.",
                code="fewer-than-min-tokens",
            )
        order = self.rank_removable(case)
        if self.grid == "paper":
            return self.split_order(order, convert_shares_to_counts(self.curve_points, len(order)))
        if num_tokens <= NUM_OFFICIAL_STEPS:
            raise BadInput(
                "The nine official steps are not distinct for fewer than ten tokens. Use grid='paper'.",
                code="too-short-for-nine-steps",
            )
        # The official code stops one token before the end of the order, and skips special tokens on the way.
        official_order = rank_positions(case.attribution.scores, self.order)[:-1]
        removable = official_order[np.isin(official_order, order)]
        return self.split_order(removable, convert_shares_to_counts(self.curve_points, num_tokens))

    def compute_curve(self, original: float, perturbed: np.ndarray) -> np.ndarray:
        if original < self.min_probability:
            raise BadInput(
                f"The probability {original:.3f} of the text is below min_probability, so it is skipped.",
                code="below-min-probability",
            )
        fall = original - perturbed
        return np.abs(fall) if self.absolute else fall
