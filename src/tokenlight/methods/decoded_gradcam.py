"""Decoded Grad-CAM: a hidden layer's saliency, decoded to the input's own tokens."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._decoding import DecodedMethod, Decoder


class DecodedGradCam(DecodedMethod):
    r"""Grad-CAM at layer :math:`l`, credited to the tokens a language model reads off each state.

    .. math:: s_u = \Bigl(\sum_j \hat D_l[u, j]\, a_j\Bigr)^+, \quad
        a_j = \sum_k \frac{\partial y}{\partial h^l_{j,k}}\, h^l_{j,k}, \quad
        \hat D_l[u, j] = \mathrm{softmax}_V\bigl(f_{\mathrm{lm}}(h^l_j)\bigr)_u

    u runs over the distinct tokens of the text, j over its positions, :math:`h^l` is ``token
    hidden``; a position scores what its token does. ``lm`` (:math:`f_{\mathrm{lm}}`): the language
    model the classifier was tuned from. ``layer``: 0 is the embedding, ``"all"`` gives every layer as
    terms of the score. ``tau`` keeps the largest entries of each :math:`\hat D_l[\cdot, j]` alone.
    ``special="exclude"``: special tokens are no u and score zero, yet their states are decoded.
    Eq. 6 of Hou & Castañón 2023; ``relu="inside"`` is their Algorithm 1, :math:`\sum_j \hat D (a_j)^+`;
    ``"none"`` keeps the sign. ``gradient``: as in cat.
    Differs from the paper: it leaves tau and special tokens open, and names the best layer.
    """

    relu: Literal["outside", "inside", "none"] = "outside"

    def decoded(self, decoder: Decoder, states: Tensor, gradient: Tensor) -> Tensor:
        saliency = torch.linalg.vecdot(states, gradient)
        if self.relu == "inside":
            saliency = saliency.clamp(min=0)
        scores = decoder(states, saliency)
        return scores.clamp(min=0) if self.relu == "outside" else scores
