"""Comprehensiveness: were all the tokens needed to decide among the top-ranked?"""

from tokenlight.metrics._erasing import ErasingMetric, Perturb

ERASER_BINS = (0.01, 0.05, 0.1, 0.2, 0.5)


class Comprehensiveness(ErasingMetric):
    r"""Mean fall of the probability when the top-ranked tokens are erased.

    .. math:: \frac1{|B|}\sum_{b\in B} p(c\mid x) - p(c\mid x\setminus r_b)

    :math:`r_b` holds the max(1, round(b·m)) highest-ranked of the m tokens that are not special;
    B = 1, 5, 10, 20, 50 %. Higher is better. The curve has a point for each bin. DeYoung et al. 2020
    (ERASER).
    Differs from the paper: it does not say how a bin is rounded; a bin takes one token at least, so
    that short texts are measured at all. c is the explained class, which need not be the predicted.
    """

    perturb: Perturb = "delete"
    bins: tuple[float, ...] = ERASER_BINS
    protect_special: bool = True
    cites = "deyoung2020eraser"

    @property
    def points(self) -> tuple[float, ...]:
        return self.bins

    def counts(self, tokens: int) -> list[int]:
        return [max(1, round(share * tokens)) for share in self.bins]
