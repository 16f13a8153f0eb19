"""Gradient times input embedding."""

import torch
from torch import Tensor

from tokenlight.methods.base import EmbeddingGradientMethod
from tokenlight.plugin import Tape


class GradientTimesInput(EmbeddingGradientMethod):
    r"""Each token embedding's first-order share of the target.

    .. math:: s_i = \sum_k \frac{\partial y}{\partial h^0_{i,k}}\, h^0_{i,k}

    :math:`h^0` is the embedding after its norm, ``token hidden``; scores are signed. Equals Captum's
    LayerGradientXActivation on the embedding module ("GradxAct" of Thermostat).
    Differs from the paper: nothing, with the gradient of the model.

    Args:
        site: ``"token_embeddings"`` reads the output of the token table, before positions and norm, as inseq
            does.
        gradient: As in cat.
    """

    cites = "shrikumar2017learning"

    def __call__(self, tape: Tape) -> Tensor:
        embeddings, gradient = self.read_embedding_gradients(tape)
        return embeddings.fold_to_tokens(torch.linalg.vecdot(embeddings.values, gradient))
