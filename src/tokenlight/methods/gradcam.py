"""Grad-CAM at one hidden layer."""

from torch import Tensor

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._gradient import Gradient, GradientMethod
from tokenlight.methods._maps import layers_of


class GradCam(GradientMethod):
    r"""Positive part of gradient × hidden state at layer :math:`l`.

    .. math:: s_i = \Bigl(\sum_k \frac{\partial y}{\partial h^l_{i,k}}\, h^l_{i,k}\Bigr)^+

    Layer 0 is the embedding after its norm; negative numbers count from the top. ``relu=False``
    keeps the sign. ``gradient``: as in cat. Hou & Castañón 2023 ("Grad-CAM :math:`l_0`").
    Differs from the paper: nothing. It does not say on which side of the embeddings' norm
    :math:`l_0` lies; before it gradient × input would sum to zero, whatever the token, since a norm
    does not change with the scale of what goes in.
    """

    layer: int = 0
    relu: bool = True
    gradient: Gradient = "model"
    cites = "hou2023decoding"
    signed = False
    needs = frozenset({Site.HIDDEN, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        (layer,) = layers_of(tape, self.layer)
        scores = tape.activations[:, layer]
        return scores.clamp(min=0) if self.relu else scores
