"""Randomisation: does the explanation change when the model loses what it learned?"""

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.ranks import RankCorrelation, check_rankable, rank_correlation
from tokenlight.plugin import Case, Measurement, Metric, Seed, VariantOutputs


class ParameterRandomization(Metric):
    r"""Mean similarity to the explanations of the model with randomized weights.

    .. math:: \frac1{S}\sum_{s=1}^S \rho\bigl(s^{\theta}, s^{\theta_s}\bigr)

    At stage s the head and the top s − 1 blocks are randomized, at the last stage the embeddings too. Each
    weight tensor is drawn from a normal distribution with its own mean and standard deviation.
    :math:`\rho` is a rank correlation over the tokens that are not special. Lower is better. A stage with
    all scores equal counts as 0: nothing of the ranking is left. Adebayo et al. 2018 (model parameter
    randomisation test).
    Differs from the paper: weights keep the mean and standard deviation of their tensor instead of the
    initial distribution, so that activations stay in range; signed scores are compared.

    Args:
        similarity: The rank correlation :math:`\rho`.
        absolute: Compare the magnitudes of scores.
        seed: Seed of the random weights.
    """

    similarity: RankCorrelation = "spearman"
    absolute: bool = False
    seed: Seed = 0
    cites = "adebayo2018sanity"
    better = "lower"
    needs_model = False
    extra_explanations = "randomized"

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:  # noqa: ARG002 - runs no model
        positions = case.perturber.rankable_positions
        scores = self._select_scores(case.attribution, positions)
        check_rankable(scores)
        curve = []
        for stage_attribution in case.extra_attributions:
            stage_scores = self._select_scores(stage_attribution, positions)
            # Equal scores have no ranks, and nothing of the ranking is left.
            similarity = 0.0
            if float(np.ptp(stage_scores)) != 0.0:
                similarity = rank_correlation(scores, stage_scores, self.similarity)
            curve.append(similarity)
        return Measurement(float(np.mean(curve)), tuple(curve))

    def _select_scores(self, attribution: Attribution, positions: np.ndarray) -> np.ndarray:
        scores = attribution.scores[positions]
        return np.abs(scores) if self.absolute else np.asarray(scores)
