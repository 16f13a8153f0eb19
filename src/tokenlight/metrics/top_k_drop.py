"""Top-k drop: what an answer loses when the sources that score highest are taken away."""

import numpy as np

from tokenlight.data.target import log_chance
from tokenlight.data.units import Unit
from tokenlight.metrics._erasing import sources_of, without
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Metric, Variant


class TopKDrop(Metric):
    r"""Fall of the log-probability of the answer without its ``k`` best-scored sources.

    .. math:: \ln p(R\mid C) - \ln p(R\mid C\setminus\{u_1,\dots,u_k\})

    :math:`R`: the explained answer, token or class; :math:`u_1, u_2, \dots`: the ``units`` of the text
    by falling sum of scores, all of them where there are fewer than ``k``. Higher is better. Cohen-Wang
    et al. 2024, section 4.
    Differs from the paper: nothing; see ``context_cite`` for what stays when a source goes.
    """

    k: Count = 1
    units: Unit = "sentence"
    cites = "cohenwang2024contextcite"
    watches = True

    def variants(self, case: Case) -> list[Variant]:
        units, totals = sources_of(case, self.units)
        best = np.argsort(-totals, kind="stable")[: self.k]
        gone = np.isin(np.arange(len(units)), best)
        return [case.original.unchanged(), *without(case, units, gone[None])]

    def measure(self, case: Case, answers: Answers) -> Measured:
        whole, left = (log_chance(case.head, case.attribution.target, said) for _, said in answers)
        return Measured(whole - left)
