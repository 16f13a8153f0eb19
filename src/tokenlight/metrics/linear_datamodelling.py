"""Linear datamodelling score: do sums of scores predict the output for any subset of the sources?"""

import numpy as np

from tokenlight.data.odds import compute_target_log_odds
from tokenlight.data.ranks import compute_midranks
from tokenlight.data.units import Unit
from tokenlight.metrics._perturbation import find_scored_units, remove_units
from tokenlight.plugin import Case, Count, Measurement, Metric, Seed, Variant, VariantOutputs

# Number of this metric's random stream of a text, which differs from the one that methods are fitted on.
RANDOM_STREAM = 2


class LinearDatamodelling(Metric):
    r"""Rank correlation of predicted and actual log-odds over random subsets of the sources.

    .. math:: \rho_{j=1}^m \Bigl( f(v_j), \sum_{u\in v_j} s_u \Bigr)

    :math:`v_1 … v_m` are subsets of the units, which contain each unit with probability one half; :math:`f`
    are the log-odds of the explained answer, token or class with only these units; :math:`s_u` is the sum of
    a unit's scores; :math:`\rho` is Spearman's. Scores that are all equal predict nothing: 0. Higher is
    better. Park et al. 2023; Cohen-Wang et al. 2024, section 4.
    Differs from the paper: nothing.

    Args:
        num_samples: The number m of subsets.
        units: What is kept or removed as a whole: tokens, words, sentences, documents or roles.
        seed: Seed of the subsets.
    """

    num_samples: Count = 64
    units: Unit = "sentence"
    seed: Seed = 0
    cites = "cohenwang2024contextcite"

    def build_variants(self, case: Case) -> list[Variant]:
        units, _ = find_scored_units(case, self.units)
        return remove_units(case, units, ~self._draw_presence(case, len(units)))

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        units, unit_scores = find_scored_units(case, self.units)
        target = case.attribution.target
        actual = [compute_target_log_odds(case.head, target, logits) for _, logits in outputs]
        predicted = self._draw_presence(case, len(units)) @ unit_scores
        # Spearman's correlation: the centered ranks, divided by their lengths.
        mean_rank = (len(actual) + 1) / 2
        actual_ranks = compute_midranks(actual) - mean_rank
        predicted_ranks = compute_midranks(predicted) - mean_rank
        scale = float(np.sqrt((actual_ranks**2).sum() * (predicted_ranks**2).sum()))
        if not scale:
            return Measurement(0.0)
        return Measurement(float(actual_ranks @ predicted_ranks) / scale)

    def _draw_presence(self, case: Case, num_units: int) -> np.ndarray:
        """Return which units each subset contains, of shape ``sample unit``."""
        generator = case.attribution.row.make_generator(self.seed, RANDOM_STREAM)
        return np.asarray(generator.random((self.num_samples, num_units)) < 0.5)
