"""Saliency: the length of the gradient at each token's embedding."""

import torch
from torch import Tensor

from tokenlight.methods._method import EmbeddingGradientMethod, Tape


class Saliency(EmbeddingGradientMethod):
    r"""How fast the target moves with a token's embedding, whichever way.

    .. math:: s_i = \Bigl\lVert \frac{\partial y}{\partial h^0_i} \Bigr\rVert_2

    :math:`h^0` is the embedding after its norm, ``token hidden`` (``at="words"``: the token table's
    output, before positions and norm, as inseq has it); ``gradient``: as in cat. Scores are not negative.
    Simonyan et al. 2014.
    Differs from the paper: the length of the gradient, where the paper takes its largest entry.
    """

    cites = "simonyan2014deep"
    signed = False

    def __call__(self, tape: Tape) -> Tensor:
        entered, slopes = self.slopes(tape)
        lengths: Tensor = torch.linalg.vector_norm(entered.folded(slopes), dim=-1)
        return lengths
