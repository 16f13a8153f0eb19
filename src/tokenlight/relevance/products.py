"""Rules for products of two activations: attention scores, attention × values, gates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokenlight.relevance.case import Rule, RuleCase
from tokenlight.relevance.division import epsilon_divide, safe_divide

Divide = Callable[[Tensor, Tensor], Tensor]


def halved_matmul(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Half of the relevance to each factor of :math:`Z = XY`.

    .. math:: S = R/Z,\quad R_X = \tfrac12 X\odot SY^\top,\quad R_Y = \tfrac12 Y\odot X^\top S

    Chefer et al., CVPR 2021. A factor that is a constant takes nothing, its half goes to the other.
    """
    return _shared(relevance, case, safe_divide)


def uniform_matmul(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    r"""Half to each factor, denominators stabilised by the sign: AttnLRP, proposition 3.3.

    .. math:: R_{X,ji} = \sum_p X_{ji}Y_{ip}\,\frac{R_{jp}}{2(Z_{jp}+\varepsilon\operatorname{sign}Z_{jp})}
    """
    return _shared(relevance, case, epsilon_divide)


def second_only_matmul(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    """All to the values: the attention map counts as a constant (Ali et al. 2022, AH-rule)."""
    share = epsilon_divide(relevance, case.output)
    return None, case.operand(1) * torch.matmul(case.operand(0).mT, share)


def contributions(relevance: Tensor, case: RuleCase, divide: Divide) -> tuple[Tensor, Tensor]:
    """What each factor of a matrix product contributed, each summing to the whole relevance."""
    first, second = case.operand(0), case.operand(1)
    share = divide(relevance, case.output)
    return first * torch.matmul(share, second.mT), second * torch.matmul(first.mT, share)


def _shared(relevance: Tensor, case: RuleCase, divide: Divide) -> tuple[Tensor | None, ...]:
    activations = _activations(case)
    first, second = contributions(relevance / sum(activations), case, divide)
    return first if activations[0] else None, second if activations[1] else None


def _activations(case: RuleCase) -> list[bool]:
    """Which factors are activations; a constant takes nothing, and leaves its half to the other."""
    return [operand is not None and operand.requires_grad for operand in case.operands]


def halved_gate(relevance: Tensor, _case: RuleCase) -> tuple[Tensor | None, ...]:
    r""":math:`y = a\odot b`: half to each (AttnLRP, uniform rule), for gated MLPs."""
    return relevance / 2, relevance / 2


def _einsum(divide: Divide) -> Rule:
    def rule(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
        r"""The rule of a matrix product, for a product written as an einsum of two factors."""
        first, second = case.operand(0), case.operand(1)
        left, right, out = case.detail
        activations = _activations(case)
        share = divide(relevance / sum(activations), case.output)
        return (
            first * torch.einsum(f"{out},{right}->{left}", share, second)
            if activations[0]
            else None,
            second * torch.einsum(f"{left},{out}->{right}", first, share)
            if activations[1]
            else None,
        )

    return rule


halved_einsum = _einsum(safe_divide)
uniform_einsum = _einsum(epsilon_divide)


def second_only_einsum(relevance: Tensor, case: RuleCase) -> tuple[Tensor | None, ...]:
    """All to the values, as :func:`second_only_matmul`; where they are constants, to what is none."""
    if not _activations(case)[1]:
        return uniform_einsum(relevance, case)
    left, right, out = case.detail
    share = epsilon_divide(relevance, case.output)
    return None, case.operand(1) * torch.einsum(f"{left},{out}->{right}", case.operand(0), share)
