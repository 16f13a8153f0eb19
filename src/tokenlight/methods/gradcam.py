"""Grad-CAM at one hidden layer."""

from torch import Tensor

from tokenlight.methods._maps import layers_of
from tokenlight.methods._method import GradientMethod, Site, Tape


class GradCam(GradientMethod):
    r"""Positive part of gradient × hidden state at layer :math:`l`.

    .. math:: s_i = \Bigl(\sum_k \frac{\partial y}{\partial h^l_{i,k}}\, h^l_{i,k}\Bigr)^+

    Layer 0 is the embedding after its norm, before which gradient × input would sum to zero, whatever
    the token; negative numbers count from the top. ``relu=False`` keeps the sign. ``gradient``: as in
    cat. Hou & Castañón 2023 ("Grad-CAM :math:`l_0`"). Differs from the paper: nothing.
    """

    layer: int = 0
    relu: bool = True
    cites = "hou2023decoding"
    signed = False
    needs = frozenset({Site.HIDDEN, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        (layer,) = layers_of(tape, self.layer)
        scores = tape.activations[:, layer]
        return scores.clamp(min=0) if self.relu else scores
