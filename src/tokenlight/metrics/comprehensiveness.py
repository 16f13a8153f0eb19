"""Comprehensiveness: are all the tokens that the decision needs among the top-ranked?"""

from tokenlight.metrics._perturbation import Perturb, PerturbationMetric

ERASER_BINS = (0.01, 0.05, 0.1, 0.2, 0.5)


class Comprehensiveness(PerturbationMetric):
    r"""Mean fall of the probability when the top-ranked tokens are removed.

    .. math:: \frac1{|B|}\sum_{b\in B} p(c\mid x) - p(c\mid x\setminus r_b)

    :math:`r_b` holds the max(1, round(b·m)) highest-ranked of the m tokens that are not special, for the
    shares B = 1, 5, 10, 20, 50 % (the paper's bins). Higher is better. The curve has one point per share.
    DeYoung et al. 2020 (ERASER).
    Differs from the paper: it does not say how a bin is rounded; here at least one token is removed, so that
    short texts can be measured. c is the explained class, which need not be the predicted one.

    Args:
        perturb: What happens to a removed token, as in aopc.
        shares: The shares B of the text.
        protect_special: Keep special tokens in the text.
    """

    perturb: Perturb = "delete"
    shares: tuple[float, ...] = ERASER_BINS
    protect_special: bool = True
    cites = "deyoung2020eraser"

    @property
    def curve_points(self) -> tuple[float, ...]:
        return self.shares

    def count_ranked(self, num_tokens: int) -> list[int]:
        return [max(1, round(share * num_tokens)) for share in self.shares]
