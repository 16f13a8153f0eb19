"""Linear datamodelling score: do sums of scores foretell what any part of the sources would give?"""

import numpy as np

from tokenlight.data.target import log_odds
from tokenlight.data.units import Unit
from tokenlight.metrics._erasing import sources_of, without
from tokenlight.metrics._metric import Answers, Case, Count, Measured, Metric, Variant
from tokenlight.metrics._ranking import midranks

STREAM = 2  # of a text's draws: others than those a method was fitted on


class LinearDatamodelling(Metric):
    r"""Rank correlation of foretold and actual log-odds over random subsets of the sources.

    .. math:: \rho_{j=1}^m \Bigl( f(v_j), \sum_{u\in v_j} s_u \Bigr)

    :math:`v_1 … v_m`: ``samples`` subsets of the ``units``, each unit in with probability one half;
    :math:`f`: the log-odds of the explained answer, token or class with only these; :math:`s_u`: a
    unit's summed scores; :math:`\rho`: Spearman's. Scores that are all alike foretell nothing: 0.
    Higher is better. Park et al. 2023; Cohen-Wang et al. 2024, section 4.
    Differs from the paper: nothing.
    """

    samples: Count = 64
    units: Unit = "sentence"
    seed: int = 0
    cites = "cohenwang2024contextcite"

    def variants(self, case: Case) -> list[Variant]:
        units, _ = sources_of(case, self.units)
        return without(case, units, ~self._there(case, len(units)))

    def measure(self, case: Case, answers: Answers) -> Measured:
        units, totals = sources_of(case, self.units)
        actual = [log_odds(case.head, case.attribution.target, said) for _, said in answers]
        foretold = self._there(case, len(units)) @ totals
        ranks = [midranks(values) - (len(values) + 1) / 2 for values in (actual, foretold)]
        scale = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
        return Measured(float(ranks[0] @ ranks[1]) / scale if scale else 0.0)

    def _there(self, case: Case, units: int) -> np.ndarray:
        """``sample unit``: true where a source is there."""
        drawn = case.attribution.row.generator(self.seed, STREAM).random((self.samples, units))
        return np.asarray(drawn < 0.5)
