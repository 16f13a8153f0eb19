"""CAT: gradient times hidden state of every token, summed over layers."""

from typing import Literal

from torch import Tensor

from tokenlight.methods.base import GradientMethod
from tokenlight.plugin import Site, Tape

Hidden = Literal["input", "output"]


def compute_class_activations(tape: Tape, hidden: Hidden) -> Tensor:
    """Return CAT of the states before each block (h^0 … h^{L-1}) or after it, ``batch layer token``."""
    states = tape.list_state_indices(hidden)
    is_contiguous = len(states) == states[-1] - states[0] + 1
    if is_contiguous:  # a view instead of a copy
        return tape.hidden_x_gradient[:, states[0] : states[-1] + 1]
    return tape.hidden_x_gradient[:, states]


class ClassActivationTokens(GradientMethod):
    r"""First-order share of each token's hidden state in the target, over all layers.

    .. math:: s_i = \sum_{l} \sum_k \frac{\partial y}{\partial h^l_{i,k}}\, h^l_{i,k}

    Qiang et al. 2022, Eq. 10.
    Differs from the paper: it takes the state after each block (``preset="paper"``); the official code
    and our default take the state before it, because the last state has a gradient only at the read-out
    token and says nothing about the others. ``preset="libra"`` is Libra FullGrad+ without the terms of
    biases (Mehri et al., CVPR 2025).

    Args:
        hidden: The state before (``"input"``) or after (``"output"``) each block.
        gradient: ``"attention_constant"`` treats attention maps as constants in the backward pass,
            ``"attnlrp"`` reads the gradient of that method, ``"cp"`` that of cp_lrp, ``"gim"`` that of gim.
            ``"libra"`` is LibraGrad's, which equals that of cp_lrp.
    """

    hidden: Hidden = "input"
    supports_encoder_decoder = True
    cites = "qiang2022attcat"
    per_layer = True
    presets = {
        "paper": {"hidden": "output"},
        "official": {"hidden": "input"},
        "libra": {"gradient": "libra"},
    }
    needs = frozenset({Site.HIDDEN_STATES, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        return compute_class_activations(tape, self.hidden)
