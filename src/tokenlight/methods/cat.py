"""CAT: gradient times hidden state of every token, summed over layers."""

from typing import Literal

from torch import Tensor

from tokenlight.methods._method import GradientMethod, Site, Tape

Hidden = Literal["input", "output"]


def class_activations(tape: Tape, hidden: Hidden) -> Tensor:
    """CAT of the states that enter each block (h^0 … h^{L-1}) or leave it: ``batch layer token``."""
    chosen = tape.states(hidden)
    in_a_row = len(chosen) == chosen[-1] - chosen[0] + 1
    return tape.activations[:, slice(chosen[0], chosen[-1] + 1) if in_a_row else chosen]


class ClassActivationTokens(GradientMethod):
    r"""First-order share of each token's hidden state in the target, over all layers.

    .. math:: s_i = \sum_{l} \sum_k \frac{\partial y}{\partial h^l_{i,k}}\, h^l_{i,k}

    Qiang et al. 2022, Eq. 10.
    Differs from the paper: it takes the state that leaves each block (``preset="paper"``); the official
    code, and our default, the one that enters (``hidden="input"``): the last leaving state has a
    gradient only at the read-out token, so it says nothing of the others.
    ``gradient="attention_constant"`` holds attention maps constant in the backward, ``"attnlrp"``
    reads the gradient of that method.
    """

    hidden: Hidden = "input"
    after_source = True
    cites = "qiang2022attcat"
    per_layer = True
    presets = {"paper": {"hidden": "output"}, "official": {"hidden": "input"}}
    needs = frozenset({Site.HIDDEN, Site.HIDDEN_GRADIENT})

    def __call__(self, tape: Tape) -> Tensor:
        return class_activations(tape, self.hidden)
