"""Randomisation: does the explanation change when the model forgets what it learnt?"""

import numpy as np

from tokenlight.metrics._metric import Answers, Case, Measured, Metric
from tokenlight.metrics._ranking import Similarity, require_ranks, similarity


class ParameterRandomisation(Metric):
    r"""Mean similarity to the explanations of the model with randomised weights.

    .. math:: \frac1{S}\sum_{s=1}^S \rho\bigl(s^{\theta}, s^{\theta_s}\bigr)

    Stage s has randomised the head and the top s − 1 blocks, the last stage the embeddings too; each
    weight tensor is drawn anew from a normal distribution with its own mean and spread (``seed``).
    :math:`\rho` is a rank correlation over the tokens that are not special. Adebayo et al. 2018 (model
    parameter randomisation test).
    Differs from the paper: weights keep their tensor's mean and spread instead of the initial
    distribution, so that activations stay in range; similarity of signed scores (``absolute=True``
    compares magnitudes). A stage whose scores are all equal counts as 0: nothing of the ranking is left.
    """

    similarity: Similarity = "spearman"
    absolute: bool = False
    seed: int = 0
    cites = "adebayo2018sanity"
    better = "lower"
    asks = False
    further = "randomised"

    def measure(self, case: Case, answers: Answers) -> Measured:  # noqa: ARG002 - asks nothing
        places = case.original.rankable
        read = np.abs if self.absolute else np.asarray
        own = read(case.attribution.scores[places])
        require_ranks(own)
        curve = []
        for other in case.others:
            scores = read(other.scores[places])
            flat = float(np.ptp(scores)) == 0.0
            curve.append(0.0 if flat else similarity(own, scores, self.similarity))
        return Measured(float(np.mean(curve)), tuple(curve))
