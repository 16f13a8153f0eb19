"""Comprehensiveness: are all the tokens that the decision needs among the top-ranked?"""

from tokenlight.metrics._perturbation import Perturb, PerturbationMetric

ERASER_BINS = (0.01, 0.05, 0.1, 0.2, 0.5)


class Comprehensiveness(PerturbationMetric):
    r"""Mean fall of the probability when the top-ranked tokens are removed.

    .. math:: \frac1{|B|}\sum_{b\in B} p(c\mid x) - p(c\mid x\setminus r_b)

    :math:`r_b` holds the max(1, round(b·m)) highest-ranked of the m tokens that are not special, for the bins
    B = 1, 5, 10, 20, 50 %. Higher is better. The curve has one point per bin. DeYoung et al. 2020 (ERASER).
    Differs from the paper: it does not say how a bin is rounded; here a bin removes at least one token, so
    that short texts can be measured. c is the explained class, which need not be the predicted one.
    """

    perturb: Perturb = "delete"
    bins: tuple[float, ...] = ERASER_BINS
    protect_special: bool = True
    cites = "deyoung2020eraser"

    @property
    def curve_points(self) -> tuple[float, ...]:
        return self.bins

    def removal_counts(self, num_tokens: int) -> list[int]:
        return [max(1, round(share * num_tokens)) for share in self.bins]
