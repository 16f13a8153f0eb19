"""From saliency at hidden positions to saliency of the input's own tokens, through an LM head."""

import abc
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.objective import Of
from tokenlight.methods._gradient import Gradient, GradientMethod
from tokenlight.methods._language_model import LanguageModel, language_model, name_of
from tokenlight.methods._maps import Layer, layers_of
from tokenlight.methods._method import Count, Site, Tape

Special = Literal["exclude", "include"]


class DecodedMethod(GradientMethod):
    """A method that decodes saliency of hidden states. ``of``: what the gradient at them is of."""

    layer: Layer = "middle"
    tau: Count | None = None
    special: Special = "exclude"
    lm: Any = None
    gradient: Gradient = "model"
    cites = "hou2023decoding"
    signed = False
    of: ClassVar[Of] = "target"
    needs = frozenset({Site.HIDDEN, Site.GRAPH})

    @property
    def options(self) -> dict[str, Any]:
        found = super().options
        return {**found, "lm": name_of(self.lm)} if "lm" in found else found

    def __call__(self, tape: Tape) -> Tensor:
        model = language_model(tape.recording.live, self.lm)
        decoder = Decoder(tape, model, tau=self.tau, special=self.special)
        layers = layers_of(tape, self.layer)
        if self.of == "target" and Site.HIDDEN_GRADIENT in tape.recording.sites:
            gradients = [tape.hidden_gradient[layer] for layer in layers]
        else:  # the backward goes no lower than these layers
            states = [tape.recording.hidden[layer] for layer in layers]
            gradients = tape.rerun.slopes(states, self.of)
        found = [
            self.decoded(decoder, tape.hidden[layer], gradient)
            for layer, gradient in zip(layers, gradients, strict=True)
        ]
        return torch.stack(found, dim=1) if self.layer == "all" else found[0]

    @abc.abstractmethod
    def decoded(self, decoder: "Decoder", states: Tensor, gradient: Tensor) -> Tensor:
        """Scores, ``batch token``, of states and their gradient, ``batch token hidden``."""


class Decoder:
    r"""The matrix :math:`\hat D_l` of a batch, kept as ``batch position type``.

    A *type* is a distinct token id of the text; ``D[b, j, u]`` is the probability that the language
    model reads type u off the state at position j.
    """

    def __init__(
        self, tape: Tape, model: LanguageModel, *, tau: int | None, special: Special
    ) -> None:
        self.tape, self.model, self.tau = tape, model, tau
        shape = tuple(tape.real.shape)
        types = np.zeros(shape, dtype=np.int64)  # ids of the types
        known = np.zeros(shape, dtype=bool)  # which columns are types
        place = np.full(shape, -1)  # type of each position
        for b, row in enumerate(tape.rows):
            counts = np.ones(len(row), dtype=bool)
            if special == "exclude":
                counts = ~np.array(row.special)
            own, numbers = np.unique(np.array(row.ids)[counts], return_inverse=True)
            place[b, : len(row)][counts] = numbers
            types[b, : len(own)] = own
            known[b, : len(own)] = True
        widest = max(1, int(known.sum(axis=1).max()))
        self.types, self.known, self.place = (
            torch.from_numpy(np.ascontiguousarray(array)).to(tape.real.device)
            for array in (types[:, :widest], known[:, :widest], place)
        )

    def decoded(self, states: Tensor, saliency: Tensor) -> Tensor:
        r""":math:`\sum_j \hat D[u, j]\, s_j`, ``batch type``, of one layer's states, ``batch token hidden``,
        and their saliency; D is zero at padding, at columns that are no type, and below the ``tau``
        largest of a position."""
        real = self.tape.real
        wanted = self.types[:, None, :].expand(*real.shape, -1)[real]
        found = states.new_zeros((*real.shape, self.types.shape[1]))
        found[real] = self.model.probabilities(states[real], wanted)
        found = found.masked_fill(~self.known[:, None, :], 0.0)
        if self.tau is not None and self.tau < found.shape[-1]:
            best = found.topk(self.tau, dim=-1)
            found = torch.zeros_like(found).scatter(-1, best.indices, best.values)
        return torch.einsum("bju,bj->bu", found, saliency.to(found))

    def to_positions(self, scores: Tensor) -> Tensor:
        """Each position's score is its type's, ``batch type`` to ``batch token``; special ones 0."""
        found = scores.gather(1, self.place.clamp(min=0))
        return found.masked_fill(self.place < 0, 0.0)
