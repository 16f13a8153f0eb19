"""Kendall: do explanations of different classes differ?"""

from typing import Literal

import numpy as np

from tokenlight.errors import BadTarget
from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import ranking, similarity


class KendallConfidence(Metric):
    r"""Mean rank correlation between the scores for the explained class and for the others.

    .. math:: \frac1{C-1}\sum_{c'\ne c} \tau(s^c, s^{c'})

    :math:`\tau` is Kendall's tau-b over all tokens, special ones included: a method that says the same
    of every class (τ = 1) explains none. Qiang et al. 2022, Eq. 15 and table 2.
    Differs from the paper: its formula and code correlate the two *index lists* that sorting gives
    (``kendall_on="order"``), which is near 0 for unrelated permutations and not monotone in rank
    agreement; we correlate ranks. The code takes one other class (0→1, 1→0, 2→1):
    ``others="one"``, both in ``preset="attcat"``. A text whose scores are all equal is left out.
    """

    kendall_on: Literal["ranks", "order"] = "ranks"
    others: Literal["all", "one"] = "all"
    cites = "qiang2022attcat"
    better = "lower"
    asks = False
    compares = True
    further = "classes"
    presets = {"paper": {"kendall_on": "order"}, "attcat": {"kendall_on": "order", "others": "one"}}

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        own = case.attribution
        chosen = own.target.index
        if chosen is None:
            raise BadTarget(f"the target {own.target.name!r} is not a class.")
        others = [other for other in case.others if other.target != own.target]
        if self.others == "one":
            wanted = 1 if chosen == 0 else chosen - 1
            others = [other for other in others if other.target.index == wanted]
        first, *lists = [one.scores for one in (own, *others)]
        if self.kendall_on == "order":
            first, *lists = [ranking(scores).astype(float) for scores in (first, *lists)]
        return Measured(float(np.mean([similarity(first, one, "kendall") for one in lists])))
