"""Sufficiency: are the top-ranked tokens enough for the decision?"""

from tokenlight.metrics.comprehensiveness import Comprehensiveness


class Sufficiency(Comprehensiveness):
    r"""Mean fall of the probability when only the top-ranked tokens are kept.

    .. math:: \frac1{|B|}\sum_{b\in B} p(c\mid x) - p(c\mid r_b)

    :math:`r_b` and the options are those of comprehensiveness; special tokens are always kept. Lower is
    better: a value below zero means that the kept tokens alone convince the model more than the whole text.
    DeYoung et al. 2020 (ERASER).
    Differs from the paper: as comprehensiveness does.
    """

    better = "lower"
    keeps_top = True
