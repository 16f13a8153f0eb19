"""Insertion: the area under the probability curve while the most important tokens are shown."""

from tokenlight.metrics.deletion import Deletion


class Insertion(Deletion):
    r"""Area under the target's probability while the top-ranked tokens or patches are shown.

    .. math:: \mathrm{AUC} = \int_0^1 p(c\mid \mathrm{top}_f)\,df

    Starts with every token that is not special hidden and shows the round(f·m) highest-ranked. Grid,
    filling and options are those of deletion. Higher is better. Petsiuk et al. 2018 (RISE).
    Differs from the paper: as deletion does; the paper starts from a blurred picture, which is
    Picture(…, fill="blur").
    """

    better = "higher"
    shows = True
