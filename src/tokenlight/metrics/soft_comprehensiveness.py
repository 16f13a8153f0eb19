"""Soft comprehensiveness: how much is lost as embeddings are dropped, most where scores are highest?"""

from typing import ClassVar

import numpy as np

from tokenlight.data.ranks import check_rankable
from tokenlight.metrics._perturbation import compute_target_probabilities
from tokenlight.plugin import (
    BadInput,
    Case,
    Count,
    Measurement,
    Metric,
    Seed,
    Variant,
    VariantOutputs,
)

RANDOM_STREAM = 3  # number of this metric's random stream of a text
MIN_CONTRIBUTION = 1e-6  # if all tokens together add less to the probability, nothing can be lost


class SoftComprehensiveness(Metric):
    r"""Share of the tokens' contribution that is lost as each embedding is dropped by its score (Soft-NC).

    .. math:: \frac{\max(0,\,p(c\mid x)-p(c\mid x'))}{\max(0,\,p(c\mid x)-p(c\mid x^0))}, \quad
        x'_{td} = x_{td}\,e_{td}, \quad e_{td}\sim\mathrm{Bernoulli}(1-a_t)

    :math:`x` are the embeddings before the first layer (``token hidden``), :math:`a_t` the scores scaled to
    [0, 1] by the lowest and highest of the text, and :math:`x^0` embeddings of zeros. The fall is the mean
    over draws, which are the same for every method. The part ``mean_keep_probability`` is the mean
    probability of keeping an element: compare methods that differ in it with care, since scores that keep
    less of a text lose more of it. Higher is better. Zhao and Aletras, ACL 2023.
    Differs from the paper: it draws once; special tokens are kept here; c is the explained class; the share
    is clipped to [0, 1], and a text with tokens that do not favor the class is skipped.

    Args:
        num_samples: The number of draws.
        seed: Seed of the draws.
    """

    num_samples: Count = 10
    seed: Seed = 0
    cites = "zhao2023incorporating"
    informational = ("mean_keep_probability",)
    needs_probability = True
    keeps_top: ClassVar[bool] = False

    def compute_keep_probabilities(self, case: Case) -> np.ndarray:
        """Compute the probability with which elements of each embedding are kept, of shape ``token``."""
        positions = case.perturber.rankable_positions
        scores = case.attribution.scores[positions]
        check_rankable(scores)
        scaled = (scores - scores.min()) / np.ptp(scores)
        probabilities = np.ones(len(case.perturber))
        probabilities[positions] = scaled if self.keeps_top else 1 - scaled
        return probabilities

    def build_variants(self, case: Case) -> list[Variant]:
        perturber = case.perturber
        keep_probabilities = self.compute_keep_probabilities(case)
        keep_special_only = np.ones(len(perturber))
        keep_special_only[perturber.rankable_positions] = 0.0
        # The whole text, the text without any word, and the draws.
        variants = [perturber.make_unperturbed(), perturber.drop_embeddings(keep_special_only, 0)]
        generator = case.attribution.row.make_generator(self.seed, RANDOM_STREAM)
        for seed in generator.integers(2**32, size=self.num_samples):
            variants.append(perturber.drop_embeddings(keep_probabilities, int(seed)))
        return variants

    def measure(self, case: Case, outputs: VariantOutputs) -> Measurement:
        original, empty, *dropped = compute_target_probabilities(case, outputs)
        contribution = original - empty
        if contribution < MIN_CONTRIBUTION:
            raise BadInput(
                "The explained class is no more likely with the tokens than without them.",
                code="no-contribution",
            )
        mean_fall = float(np.maximum(0.0, original - np.array(dropped)).mean())
        lost_share = min(1.0, mean_fall / float(contribution))
        value = 1 - lost_share if self.keeps_top else lost_share
        keep_probabilities = self.compute_keep_probabilities(case)
        mean_keep_probability = keep_probabilities[case.perturber.rankable_positions].mean()
        return Measurement(value, parts={"mean_keep_probability": float(mean_keep_probability)})
