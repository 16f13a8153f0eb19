"""From saliency at hidden positions to saliency of the input's own tokens, through an LM head."""

import abc
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.objective import Of
from tokenlight.capture.tape import Site, Tape
from tokenlight.errors import BadInput
from tokenlight.methods._gradient import Gradient, GradientMethod
from tokenlight.methods._language_model import LanguageModel, language_model, name_of
from tokenlight.methods._maps import Layer, layers_of

Special = Literal["exclude", "include"]


class DecodedMethod(GradientMethod, base=True):
    """A method that decodes saliency of hidden states; its subclasses have these options, and score
    one layer. ``of``: what the gradient at the states is of."""

    layer: Layer
    tau: int | None
    special: Special
    lm: Any
    gradient: Gradient
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
        found = [
            self.decoded(decoder, tape.hidden[layer], gradient)
            for layer, gradient in zip(layers, gradients_at(tape, layers, self.of), strict=True)
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
        if tau is not None and tau < 1:
            raise BadInput(f"tau={tau} keeps no token; give 1 or more, or none to keep all.")
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

    def shares(self, states: Tensor) -> Tensor:
        """``batch position type`` of one layer's states, ``batch token hidden``; zero at padding, at
        columns that are no type, and below the ``tau`` largest of a position."""
        real = self.tape.real
        wanted = self.types[:, None, :].expand(*real.shape, -1)[real]
        found = states.new_zeros((*real.shape, self.types.shape[1]))
        found[real] = self.model.probabilities(states[real], wanted)
        found = found.masked_fill(~self.known[:, None, :], 0.0)
        if self.tau is not None and self.tau < found.shape[-1]:
            best = found.topk(self.tau, dim=-1)
            found = torch.zeros_like(found).scatter(-1, best.indices, best.values)
        return found

    def spread(self, shares: Tensor, saliency: Tensor) -> Tensor:
        """Σ_j D[u, j] · saliency_j, ``batch type``."""
        return torch.einsum("bju,bj->bu", shares, saliency.to(shares))

    def to_positions(self, scores: Tensor) -> Tensor:
        """Each position's score is its type's, ``batch type`` to ``batch token``; special ones 0."""
        found = scores.gather(1, self.place.clamp(min=0))
        return found.masked_fill(self.place < 0, 0.0)


def gradients_at(tape: Tape, layers: list[int], of: Of) -> list[Tensor]:
    """Gradients at hidden states, ``batch token hidden``; the backward goes no lower than they are."""
    if of == "target" and Site.HIDDEN_GRADIENT in tape.recording.sites:
        return [tape.hidden_gradient[layer] for layer in layers]
    return tape.rerun.slopes([tape.recording.hidden[layer] for layer in layers], of)
