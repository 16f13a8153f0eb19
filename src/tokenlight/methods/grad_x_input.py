"""Gradient times input embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenlight.capture.tape import Site, Sites, Tape
from tokenlight.methods._method import Method


@dataclass(frozen=True, slots=True)
class GradientTimesInput(Method):
    r"""First-order share of each token's embedding in the target.

    .. math:: s_i = \sum_k \frac{\partial y}{\partial h^0_{i,k}}\, h^0_{i,k}

    :math:`h^0` is the embedding after its norm, ``token hidden``; signed. Equals Captum's
    LayerGradientXActivation on the embedding module ("GradxAct" of Thermostat).
    Differs from the paper: nothing.
    """

    cites: ClassVar[str] = "shrikumar2017learning"
    needs: ClassVar[Sites] = frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        embedded = tape.embedded
        return embedded.folded(torch.linalg.vecdot(embedded.values, tape.embedded_gradient))


METHOD = GradientTimesInput
