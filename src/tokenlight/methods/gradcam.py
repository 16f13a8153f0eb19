"""Grad-CAM at one hidden layer."""

from torch import Tensor

from tokenlight.methods._maps import resolve_layers
from tokenlight.methods.base import GradientMethod
from tokenlight.plugin import Site, Tape


class GradCam(GradientMethod):
    r"""Positive part of gradient × hidden state at layer :math:`l`.

    .. math:: s_i = \Bigl(\sum_k \frac{\partial y}{\partial h^l_{i,k}}\, h^l_{i,k}\Bigr)^+

    Layer 0 is the embedding after its norm; before the norm, gradient × input would sum to zero for every
    token. Hou & Castañón 2023 ("Grad-CAM :math:`l_0`").
    Differs from the paper: nothing.

    Args:
        layer: The hidden state; negative numbers count from the top.
        relu: Keep only the positive part.
        gradient: As in cat.
    """

    layer: int = 0
    relu: bool = True
    cites = "hou2023decoding"
    signed = False
    needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        (layer,) = resolve_layers(tape, self.layer)
        scores = tape.hidden_x_gradient[:, layer]
        if self.relu:
            scores = scores.clamp(min=0)
        return scores
