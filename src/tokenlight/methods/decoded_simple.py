"""Decoded Simple: the simple gradient of a hidden layer, decoded to the input's own tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tokenlight.capture.tape import Site, Tape
from tokenlight.methods._decoding import Decoder, Layer, Special, gradients_at, layers_of
from tokenlight.methods._language_model import language_model, name_of
from tokenlight.methods._method import Method
from tokenlight.methods._word_gradient import l1_shares


@dataclass(frozen=True, slots=True)
class DecodedSimple(Method):
    r"""AllenNLP's simple gradient at layer :math:`l`, decoded as ``decoded_gradcam`` does.

    .. math:: s_u = \frac{r_u}{\sum_i r_{u(i)}}, \quad r_u = \sum_j \hat D_l[u, j]\, |v_j|, \quad
        v_j = \sum_k \frac{\partial \mathcal L}{\partial h^l_{j,k}}\, h^l_{j,k}

    :math:`\mathcal L` is the cross-entropy of the target, :math:`\hat D_l`, ``layer``, ``tau``,
    ``special`` and ``lm`` are those of ``decoded_gradcam``, :math:`h^l` is ``token hidden``, u(i) the
    token at position i. ``abs="outside"``: :math:`r_u = |\sum_j \hat D_l[u, j] v_j|`;
    ``times_input=False``: v sums the gradient alone. Non-negative; each layer sums to one (with
    ``layer="all"`` the layers' shares are added).
    Differs from the paper: it leaves open where the magnitude is taken; its one line on the gradient
    has no product with the state, AllenNLP's intention has.
    """

    layer: Layer = "middle"
    tau: int | None = None
    abs: Literal["inside", "outside"] = "inside"
    times_input: bool = True
    special: Special = "exclude"
    lm: Any = field(default=None, metadata={"recorded": name_of})
    cites: ClassVar[str] = "hou2023decoding"
    signed: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[Site]:
        return frozenset({Site.HIDDEN, Site.GRAPH})

    def __call__(self, tape: Tape) -> Tensor:
        model = language_model(tape.recording.live, self.lm)
        decoder = Decoder(tape, model, tau=self.tau, special=self.special)
        layers = layers_of(tape, self.layer)
        gradients = gradients_at(tape, layers, "loss")
        found = [
            self._decoded(decoder, tape.hidden[layer], gradient)
            for layer, gradient in zip(layers, gradients, strict=True)
        ]
        return torch.stack(found, dim=1) if self.layer == "all" else found[0]

    def _decoded(self, decoder: Decoder, states: Tensor, gradient: Tensor) -> Tensor:
        saliency = torch.linalg.vecdot(states, gradient) if self.times_input else gradient.sum(-1)
        if self.abs == "inside":
            saliency = saliency.abs()
        scores = decoder.spread(decoder.shares(states), saliency)
        return l1_shares(decoder.to_positions(scores))


METHOD = DecodedSimple
