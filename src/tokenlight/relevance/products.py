"""Rules for products of two activations: attention scores, attention × values, gates."""

from collections.abc import Callable

import torch
from torch import Tensor

from tokenlight.relevance.case import RuleCase
from tokenlight.relevance.division import epsilon_divide, safe_divide

Divide = Callable[[Tensor, Tensor], Tensor]


def halved_product(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Half of the relevance to each factor of :math:`Z = XY`.

    .. math:: S = R/Z,\quad R_X = \tfrac12 X\odot SY^\top,\quad R_Y = \tfrac12 Y\odot X^\top S

    Chefer et al., CVPR 2021. A factor that is a constant takes nothing, its half goes to the other.
    """
    return _shared(relevance, case, safe_divide)


def uniform_product(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Half to each factor, denominators stabilised by the sign: AttnLRP, proposition 3.3.

    .. math:: R_{X,ji} = \sum_p X_{ji}Y_{ip}\,\frac{R_{jp}}{2(Z_{jp}+\varepsilon\operatorname{sign}Z_{jp})}
    """
    return _shared(relevance, case, epsilon_divide)


def second_only_product(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    """All to the values: the attention map counts as a constant (Ali et al. 2022, AH-rule). Where the
    values are constants, to what is none."""
    if not case.operand(1).requires_grad:
        return uniform_product(relevance, case)
    return None, contributions(relevance, case, epsilon_divide)[1]


def contributions(relevance: Tensor, case: RuleCase, divide: Divide) -> tuple[Tensor, Tensor]:
    """What each factor of a product contributed, each summing to the whole relevance: of a matrix
    product, or of the einsum whose indices (first, second, output) ``detail`` holds."""
    first, second = case.operand(0), case.operand(1)
    share = divide(relevance, case.output)
    if case.detail is None:
        return first * torch.matmul(share, second.mT), second * torch.matmul(first.mT, share)
    left, right, out = case.detail
    return (
        first * torch.einsum(f"{out},{right}->{left}", share, second),
        second * torch.einsum(f"{left},{out}->{right}", first, share),
    )


def _shared(relevance: Tensor, case: RuleCase, divide: Divide) -> tuple[Tensor | None, ...]:
    active = [operand is not None and operand.requires_grad for operand in case.operands]
    parts = contributions(relevance / sum(active), case, divide)
    return tuple(part if own else None for part, own in zip(parts, active, strict=True))


def halved_gate(relevance: Tensor, _case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`y = a\odot b`: half to each (AttnLRP, uniform rule), for gated MLPs."""
    return relevance / 2, relevance / 2
