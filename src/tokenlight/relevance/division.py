"""Division that never makes NaN: the two stabilisers of the LRP literature."""

from collections.abc import Callable

import torch
from torch import Tensor

STABILISER = 1e-9  # of Chefer's code
EPSILON = 1e-6  # of the epsilon rule, as the AttnLRP paper's code sets it
Divide = Callable[[Tensor, Tensor], Tensor]


def stabiliser(dtype: torch.dtype) -> float:
    """Chefer's, or the smallest normal number of a dtype that cannot hold it, as float16 cannot."""
    return max(STABILISER, torch.finfo(dtype).tiny)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r""":math:`a/(b+10^{-9})`, and 0 where :math:`b=0` (Chefer et al., CVPR 2021, code).

    The stabiliser does not look at the sign of :math:`b`; where :math:`b=-10^{-9}` exactly, the
    denominator is :math:`10^{-9}`.
    """
    return (numerator / _shifted(denominator)).masked_fill_(denominator == 0, 0.0)


def stabilised(relevance: Tensor, value: Tensor) -> Tensor:
    r""":math:`x\odot\operatorname{sd}(R, x)`: the relevance of a value that several operations read
    (Clone in Chefer's code), all of it but for what the stabiliser takes where :math:`x` is next to 0."""
    return torch.div(relevance, _shifted(value)).mul_(value)  # 0 where x is 0


def _shifted(denominator: Tensor) -> Tensor:
    tiny = stabiliser(denominator.dtype)
    shifted = denominator + tiny
    return shifted.masked_fill_(shifted == 0, tiny)


def epsilon_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    r""":math:`a/(b+\varepsilon\operatorname{sign} b)`, with :math:`\operatorname{sign} 0=+1`
    (Bach et al. 2015)."""
    away = torch.where(denominator < 0, denominator - EPSILON, denominator + EPSILON)
    return numerator / away
