"""Gradient times input embedding."""

import torch
from torch import Tensor

from tokenlight.methods._method import EmbeddingGradientMethod, Tape


class GradientTimesInput(EmbeddingGradientMethod):
    r"""Each token embedding's first-order share of the target.

    .. math:: s_i = \sum_k \frac{\partial y}{\partial h^0_{i,k}}\, h^0_{i,k}

    :math:`h^0` is the embedding after its norm, ``token hidden`` (``at="words"``: the token table's
    output, before positions and norm, as inseq has it); signed. Equals Captum's
    LayerGradientXActivation on the embedding module ("GradxAct" of Thermostat).
    Differs from the paper: nothing, with the model's own ``gradient`` (others: as in cat).
    """

    cites = "shrikumar2017learning"

    def __call__(self, tape: Tape) -> Tensor:
        entered, slopes = self.slopes(tape)
        return entered.folded(torch.linalg.vecdot(entered.values, slopes))
