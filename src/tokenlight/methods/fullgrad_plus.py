"""FullGrad+: gradient times hidden state of every layer, and gradient times bias of every module."""

import torch
from torch import Tensor

from tokenlight.methods.base import GradientMethod
from tokenlight.methods.cat import compute_class_activations
from tokenlight.plugin import Site, Tape


class FullGradPlus(GradientMethod):
    r"""First-order share of each token's hidden states and of the biases added to them, over all layers.

    .. math:: s_i = \sum_{l=0}^{L-1} \Bigl( \sum_k h^l_{i,k} \frac{\partial y}{\partial h^l_{i,k}}
        + \sum_{b \in B_l} \sum_k b_k \frac{\partial y}{\partial z^b_{i,k}} \Bigr)

    :math:`h^l` is the input of block l, ``token hidden``; :math:`z^b` what the module with the bias b
    returns, ``token feature``; :math:`B_l` the biases of block l: of linear layers and of norms. Scores are
    signed. With ``gradient="libra"`` (``preset="libra"``) it is Libra FullGrad+, whose gradient makes each
    block complete: the terms of one layer and of all biases after it sum to the target. Mehri et al.,
    CVPR 2025.
    Differs from the paper: it is written for images; tokens stand for patches. Biases outside the blocks
    (embeddings, final norm, head) belong to no layer and are left out, and so are parameters that a model
    adds without a module of their own.

    Args:
        gradient: As in cat.
    """

    cites = "mehri2025libragrad"
    per_layer = True
    presets = {"libra": {"gradient": "libra"}}
    needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT, Site.BIAS_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        state_terms = compute_class_activations(tape, "input")
        return state_terms + torch.stack(tape.bias_x_gradient, dim=1).to(state_terms)
