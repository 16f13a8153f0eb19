"""Gradient times input embedding."""

import torch
from torch import Tensor

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._method import Method


class GradientTimesInput(Method):
    r"""First-order share of each token's embedding in the target.

    .. math:: s_i = \sum_k \frac{\partial y}{\partial h^0_{i,k}}\, h^0_{i,k}

    :math:`h^0` is the embedding after its norm, ``token hidden``; signed. Equals Captum's
    LayerGradientXActivation on the embedding module ("GradxAct" of Thermostat).
    Differs from the paper: nothing.
    """

    cites = "shrikumar2017learning"
    needs = frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        embedded = tape.embedded
        return embedded.folded(torch.linalg.vecdot(embedded.values, tape.embedded_gradient))
