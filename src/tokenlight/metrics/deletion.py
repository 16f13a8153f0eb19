"""Deletion: the area under the probability curve while the most important tokens are removed."""

from tokenlight.metrics._perturbation import AreaMetric, MeasuredTarget, Perturb
from tokenlight.plugin import Count


class Deletion(AreaMetric):
    r"""Area under the target's probability while the top-ranked tokens or patches are masked.

    .. math:: \mathrm{AUC} = \int_0^1 p(c\mid x\setminus \mathrm{top}_f)\,df

    by the trapezoid rule. At f, round(f·m) of the m tokens that are not special are masked: tokens of a text
    by [MASK], patches of an image by its filling (the mean color of the image unless its Picture says
    otherwise). Lower is better. Petsiuk et al. 2018 (RISE).
    Differs from the paper: it masks pixels, not patches, and fills them with grey, not with the mean color.

    Args:
        num_steps: The number S of steps: f = 0, 1/S, …, 1.
        perturb: What happens to a removed token, as in aopc.
        target: Whose probability is measured, as in aopc.
        protect_special: Keep special tokens as they are.
    """

    num_steps: Count = 16
    perturb: Perturb = "mask"
    target: MeasuredTarget = "explained"
    protect_special: bool = True
    cites = "petsiuk2018rise"
