"""Deletion: the area under the probability curve while the most important tokens are hidden."""

from tokenlight.metrics._erasing import AreaMetric, Perturb, Watched
from tokenlight.metrics._metric import Count


class Deletion(AreaMetric):
    r"""Area under the target's probability while the top-ranked tokens or patches are hidden.

    .. math:: \mathrm{AUC} = \int_0^1 p(c\mid x\setminus \mathrm{top}_f)\,df

    by the trapezoid rule over f = 0, 1/``steps``, …, 1; round(f·m) of the m tokens that are not
    special are hidden: patches of an image by its filling (the picture's mean colour unless its
    Picture says otherwise), tokens of a text by [MASK]. Lower is better: what decided goes first.
    Petsiuk et al. 2018 (RISE).
    Differs from the paper: patches go, not pixels, and the filling is the picture's mean colour,
    not grey.
    """

    steps: Count = 16
    perturb: Perturb = "mask"
    target: Watched = "explained"
    protect_special: bool = True
    cites = "petsiuk2018rise"
