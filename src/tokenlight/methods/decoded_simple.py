"""Decoded Simple: the simple gradient of a hidden layer, decoded to the input's own tokens."""

from typing import Literal

import torch
from torch import Tensor

from tokenlight.methods._decoding import DecodedMethod, Decoder
from tokenlight.methods._path import normalize_l1


class DecodedSimple(DecodedMethod):
    r"""AllenNLP's simple gradient at layer :math:`l`, decoded as ``decoded_gradcam`` does.

    .. math:: s_u = \frac{r_u}{\sum_i r_{u(i)}}, \quad r_u = \sum_j \hat D_l[u, j]\, |v_j|, \quad
        v_j = \sum_k \frac{\partial \mathcal L}{\partial h^l_{j,k}}\, h^l_{j,k}

    :math:`\mathcal L` is the cross-entropy of the target; :math:`\hat D_l`, shapes and other options are
    those of ``decoded_gradcam``, u(i) is the token at position i. Each layer sums to one.
    Differs from the paper: it leaves open where the magnitude is taken; its one line on the gradient has
    no product with the state (``times_input=False``), while AllenNLP intends one.

    Args:
        absolute: Where the magnitude is taken: ``"inside"`` the sum, or ``"outside"``,
            :math:`r_u = |\sum_j \hat D_l[u, j] v_j|`.
        times_input: Multiply the gradient by the state.
    """

    absolute: Literal["inside", "outside"] = "inside"
    times_input: bool = True
    gradient_of = "loss"

    def decode_scores(self, decoder: Decoder, states: Tensor, gradient: Tensor) -> Tensor:
        saliency = gradient.sum(dim=-1)
        if self.times_input:
            saliency = torch.linalg.vecdot(states, gradient)
        if self.absolute == "inside":
            saliency = saliency.abs()
        return normalize_l1(decoder(states, saliency))
