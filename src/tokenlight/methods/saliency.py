"""Saliency: the length of the gradient at each token's embedding."""

import torch
from torch import Tensor

from tokenlight.methods.base import EmbeddingGradientMethod
from tokenlight.plugin import Tape


class Saliency(EmbeddingGradientMethod):
    r"""How fast the target changes with a token's embedding, in any direction.

    .. math:: s_i = \Bigl\lVert \frac{\partial y}{\partial h^0_i} \Bigr\rVert_2

    :math:`h^0` is the embedding after its norm, ``token hidden``. Scores are not negative. Simonyan et al.
    2014.
    Differs from the paper: the length of the gradient, where the paper takes its largest entry.

    Args:
        site: ``"token_embeddings"`` reads the output of the token table, before positions and norm, as inseq
            does.
        gradient: As in cat.
    """

    cites = "simonyan2014deep"
    signed = False

    def __call__(self, tape: Tape) -> Tensor:
        embeddings, gradient = self.read_embedding_gradients(tape)
        lengths: Tensor = torch.linalg.vector_norm(embeddings.fold_to_tokens(gradient), dim=-1)
        return lengths
