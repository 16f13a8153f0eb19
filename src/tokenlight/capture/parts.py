"""Parts: what an encoder's blocks and a decoder's hold, laid over the one row of tokens they read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenlight.errors import UnsupportedModel

Reader = Literal["encoder", "decoder", "cross"]
# Whether the queries and whether the keys are the source's.
OF_SOURCE = {"encoder": (True, True), "decoder": (False, False), "cross": (False, True)}


@dataclass(frozen=True, slots=True)
class Parts:
    """A model that writes after a source: states of its encoder, then of its decoder; maps of its
    encoder's blocks, then of each decoder block its own tokens' and, behind them, the source's.

    ``source`` tokens of the row are the encoder's, ``written`` the decoder's; ``states``: how many
    states, h^0 among them, the encoder has.
    """

    source: int
    written: int
    states: int

    def state(self, layer: int, tensor: Tensor) -> Tensor:
        """``batch token hidden`` of all tokens: zero at those the part does not read."""
        return pad(tensor, (0, 0, *self._others(layer < self.states)))

    def map(self, number: int, tensor: Tensor) -> Tensor:
        """``batch head query key`` of all tokens: zero where a part has no such query or key."""
        queries, keys = OF_SOURCE[self.reader(number)]
        return pad(tensor, (*self._others(keys), *self._others(queries)))

    def _others(self, of_source: bool) -> tuple[int, int]:
        """How many tokens stand before and behind those of the source, or those written."""
        return (0, self.written) if of_source else (self.source, 0)

    def reader(self, number: int) -> Reader:
        """Whose map this is: of the source by itself, of what was written, or of both."""
        behind = number - (self.states - 1)
        return "encoder" if behind < 0 else "cross" if behind % 2 else "decoder"

    def received(self, means: Sequence[Tensor], real: Tensor) -> list[Tensor]:
        """What each state that enters a block receives there, ``batch token``: the mean over the real
        queries of the part that reads it, of ``means`` (``batch query key``); of the encoder's last
        state, which all decoder blocks read, the mean over those."""
        share: dict[Reader, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}
        for number, mean in enumerate(means):
            reader = self.reader(number)
            asks = real.clone()
            asks[:, slice(self.source, None) if reader == "encoder" else slice(self.source)] = False
            weights = asks.to(mean.dtype) / asks.sum(dim=1, keepdim=True)
            share[reader].append(torch.einsum("bq,bqk->bk", weights, mean))
        handed_on = torch.stack(share["cross"]).mean(dim=0)
        return [*share["encoder"], handed_on, *share["decoder"]]

    def maps(self, states: int) -> int:
        """How many maps such a model has: one in each block of the encoder, two in the decoder's."""
        return self.states - 1 + 2 * (states - self.states - 1)

    def checked(self, maps: Sequence[Tensor], model: nn.Module) -> "Parts":
        """Refuse maps that do not come in this order: seen where both parts differ in length."""
        for number, found in enumerate(maps):
            sides = OF_SOURCE[self.reader(number)]
            if list(found.shape[2:]) != [self.source if own else self.written for own in sides]:
                raise UnsupportedModel(
                    f"attention map {number} of {type(model).__name__} is {found.shape[2]} × "
                    f"{found.shape[3]}, not the {self.reader(number)}'s; methods that read attention "
                    "cannot work on it."
                )
        return self
