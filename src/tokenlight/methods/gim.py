"""GIM: gradient times embedding, with the gradient interaction modifications."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods.base import EmbeddingGradientMethod
from tokenlight.plugin import Tape


class GradientInteractionModifications(EmbeddingGradientMethod):
    r"""Each token embedding's share of the target, by a gradient that softmax does not hide it from.

    .. math:: s_i = \sum_k h^0_{i,k}\,\tilde\nabla_{h^0_{i,k}}\,y, \qquad
        \tilde\nabla_S = A^T\odot\bigl(\nabla_A-\textstyle\sum_j A^T_j\nabla_{A_j}\bigr), \quad
        A^T = \operatorname{softmax}(S/T), \quad T = 2

    :math:`h^0` is ``token hidden``; scores are signed. A strong attention score saturates its softmax, which
    then passes hardly any gradient; so the softmax is differentiated at temperature 2, without the factor
    1/T. A norm's deviation is a constant, and products leave each factor its share (V 1/2, Q and K 1/4, the
    branches of a gate 1/2). Fused attention runs once more in the backward pass, at the temperature; no n × n
    map is kept. Edin et al. 2025.
    Differs from the paper: nothing is subtracted from the embedding, where the paper subtracts that of a
    baseline token. Its package ``gim-explain`` leaves gates as they are, its experiments halve them, and so
    do we.

    Args:
        site: ``"token_embeddings"`` reads the output of the token table, before positions and norm, as the
            package does.
        gradient: Always ``"gim"``, which cat and others take by that name, too.
    """

    gradient: Literal["gim"] = "gim"
    cites = "edin2025gim"

    def __call__(self, tape: Tape) -> Tensor:
        embeddings, gradient = self.read_embedding_gradients(tape)
        return embeddings.fold_to_tokens(torch.linalg.vecdot(embeddings.values, gradient))
