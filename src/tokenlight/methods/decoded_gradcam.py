"""Decoded Grad-CAM: a hidden layer's saliency, decoded to the input's own tokens."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._decoding import DecodedMethod, Decoder


class DecodedGradCam(DecodedMethod):
    r"""Grad-CAM at layer :math:`l`, assigned to the tokens that a language model reads from each state.

    .. math:: s_u = \Bigl(\sum_j \hat D_l[u, j]\, a_j\Bigr)^+, \quad
        a_j = \sum_k \frac{\partial y}{\partial h^l_{j,k}}\, h^l_{j,k}, \quad
        \hat D_l[u, j] = \mathrm{softmax}_V\bigl(f_{\mathrm{lm}}(h^l_j)\bigr)_u

    u runs over the distinct tokens of the text, j over its positions, :math:`h^l` is ``token hidden``; a
    position has the score of its token. Eq. 6 of Hou & Castañón 2023.
    Differs from the paper: it leaves tau and special tokens open, and names the best layer.

    Args:
        relu: ``"outside"`` is the formula above, ``"inside"`` their Algorithm 1,
            :math:`\sum_j \hat D (a_j)^+`; ``"none"`` keeps the sign.
        layer: 0 is the embedding, ``"middle"`` half of the blocks up; ``"all"`` returns every layer as a
            term of the score.
        tau: Keep only the ``tau`` largest entries of each :math:`\hat D_l[\cdot, j]`.
        special: With ``"exclude"``, special tokens are no u and score zero; their states are decoded.
        lm: The language model :math:`f_{\mathrm{lm}}` that the classifier was fine-tuned from.
        gradient: As in cat.
    """

    relu: Literal["outside", "inside", "none"] = "outside"

    def decode_scores(self, decoder: Decoder, states: Tensor, gradient: Tensor) -> Tensor:
        saliency = torch.linalg.vecdot(states, gradient)
        if self.relu == "inside":
            saliency = saliency.clamp(min=0)
        scores = decoder(states, saliency)
        if self.relu == "outside":
            scores = scores.clamp(min=0)
        return scores
