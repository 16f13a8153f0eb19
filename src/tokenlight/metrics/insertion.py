"""Insertion: the area under the probability curve while the most important tokens are shown."""

from tokenlight.metrics.deletion import Deletion


class Insertion(Deletion):
    r"""Area under the target's probability while the top-ranked tokens or patches are shown.

    .. math:: \mathrm{AUC} = \int_0^1 p(c\mid \mathrm{top}_f)\,df

    All tokens that are not special start masked, and the round(f·m) highest-ranked are shown. Grid, filling
    and options are those of deletion. Higher is better. Petsiuk et al. 2018 (RISE).
    Differs from the paper: as deletion does. The paper starts from a blurred image, which is
    Picture(…, fill="blur").
    """

    better = "higher"
    keeps_top = True
