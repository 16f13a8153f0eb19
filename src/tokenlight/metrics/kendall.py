"""Kendall: do explanations of different classes differ?"""

from typing import Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.ranks import rank_correlation
from tokenlight.plugin import BadTarget, Case, Measurement, Metric, VariantOutputs, rank_positions


class KendallConfidence(Metric):
    r"""Mean rank correlation between the scores for the explained class and for the others.

    .. math:: \frac1{C-1}\sum_{c'\ne c} \tau(s^c, s^{c'})

    :math:`\tau` is Kendall's tau-b over all tokens, special tokens included. A method that gives the same
    scores for every class (τ = 1) explains none of them, so lower is better. A text with all scores equal is
    skipped. Qiang et al. 2022, Eq. 15 and table 2.
    Differs from the paper: its formula and code correlate the two *index lists* that sorting returns
    (``kendall_on="order"``), which is near 0 for unrelated permutations and not monotone in the agreement of
    ranks; here the ranks are correlated. The code takes one other class (0→1, 1→0, 2→1): ``others="one"``.
    Both are in ``preset="attcat"``.

    Args:
        kendall_on: What is correlated: the ``"ranks"`` of the tokens, or the ``"order"`` that sorting
            returns.
        others: Whether the explained class is compared with ``"all"`` other classes, or with ``"one"``.
    """

    kendall_on: Literal["ranks", "order"] = "ranks"
    others: Literal["all", "one"] = "all"
    cites = "qiang2022attcat"
    better = "lower"
    needs_model = False
    needs_classes = True
    extra_explanations = "classes"
    presets = {"paper": {"kendall_on": "order"}, "attcat": {"kendall_on": "order", "others": "one"}}

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        explained_class = case.attribution.target.index
        if explained_class is None:
            raise BadTarget(
                f"The target {case.attribution.target.name!r} is not a class. Explain a class.",
                code="target-not-a-class",
            )
        scores = self._to_comparable(case.attribution)
        correlations = []
        for other in self._select_others(case, explained_class):
            other_scores = self._to_comparable(other)
            correlations.append(rank_correlation(scores, other_scores, "kendall"))
        return Measurement(float(np.mean(correlations)))

    def _to_comparable(self, attribution: Attribution) -> np.ndarray:
        """Return what is correlated: the scores, or the positions that sorting them returns."""
        if self.kendall_on == "order":
            return rank_positions(attribution.scores).astype(float)
        return attribution.scores

    def _select_others(self, case: Case, explained_class: int) -> list[Attribution]:
        """Return the explanations of all other classes, or of the one that the official code takes."""
        # The official code compares 0 with 1, 1 with 0, and 2 with 1.
        official_class = 1 if explained_class == 0 else explained_class - 1
        others = []
        for other in case.extra_attributions:
            is_other_class = other.target != case.attribution.target
            if is_other_class and (self.others == "all" or other.target.index == official_class):
                others.append(other)
        return others
