"""What blocks hold: an encoder's and a decoder's over the one row of tokens they read; and how each adds
what attention brought to what was there (output projection, residual, norm), found by watching one forward.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tokenlight.capture.attention import Unkept
from tokenlight.capture.seam import Listener
from tokenlight.capture.turns import hooked
from tokenlight.errors import UnsupportedModel

Reader = Literal["encoder", "decoder", "cross"]
# Whether the queries and whether the keys are the source's.
OF_SOURCE = {"encoder": (True, True), "decoder": (False, False), "cross": (False, True)}


@dataclass(frozen=True, slots=True)
class Parts:
    """A model that writes after a source: states of its encoder, then of its decoder; maps of its
    encoder's blocks, then of each decoder block its own tokens' and, behind them, the source's. ``source``
    and ``written``: tokens of each; ``states``: how many, h^0 among them, the encoder has."""

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

    def checked(self, maps: Sequence[Tensor | Unkept], model: nn.Module) -> "Parts":
        """Refuse maps that do not come in this order: seen where both parts differ in length."""
        for number, found in enumerate(maps):
            sides = OF_SOURCE[self.reader(number)]
            if list(found.shape[2:]) != [self.source if own else self.written for own in sides]:
                raise UnsupportedModel(
                    f"attention map {number} of {type(model).__name__} is not the "
                    f"{self.reader(number)}'s; methods that read attention cannot work on it."
                )
        return self


@dataclass(frozen=True, eq=False)
class RecordedNorm:
    """A norm as it ran: weight ``hidden``, the rest ``batch token hidden``. An RMSNorm does not centre."""

    weight: Tensor | None
    given: Tensor
    output: Tensor
    centres: bool = True

    def linear(self, vectors: Tensor, queries: slice) -> Tensor:
        """Its linear part on ``batch query key hidden``: centred, scaled by the query's deviation."""
        deviation = self.given[:, queries].var(dim=-1, correction=0).sqrt()[..., None, None]
        centred = vectors - vectors.mean(dim=-1, keepdim=True)
        return (centred if self.weight is None else centred * self.weight) / deviation

    def back(self, direction: Tensor) -> Tensor:
        """The linear part's transpose on a direction at its output, ``batch token hidden``."""
        scaled = direction if self.weight is None else direction * self.weight
        if not self.centres:
            return scaled / _mean_square(self.given).sqrt()
        deviation = self.given.var(dim=-1, correction=0, keepdim=True).sqrt()
        return (scaled - scaled.mean(dim=-1, keepdim=True)) / deviation


@dataclass(frozen=True, eq=False)
class Mixing:
    """One block: output projection ``hidden (head·width)``, the input it is added to, the stream after
    attention. ``norm`` follows the sum where the block normalises after it (else None), ``last_norm``
    gives the block's output, or the last hidden state behind the last block."""

    projection: Tensor
    given: Tensor
    output: Tensor
    norm: RecordedNorm | None
    last_norm: RecordedNorm | None


@dataclass(frozen=True, eq=False)
class _Event:
    """A module's call; ``block``: how many attention maps had been seen before it."""

    block: int
    module: nn.Module
    given: Tensor
    output: Tensor


class MixingListener:
    """What the linear maps and norms of an encoder did while it ran."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._events: list[_Event] = []

    def hearing(self, encoder: nn.Module) -> AbstractContextManager[None]:
        heard = (m for m in encoder.modules() if _is_linear(m) or _is_norm(m))
        return hooked(heard, leaving=self._hear)

    def _hear(self, module: nn.Module, args: Any, _named: Any, output: Any) -> None:
        if args and isinstance(output, Tensor):
            block = len(self._listener.maps)
            self._events.append(_Event(block, module, args[0].detach(), output.detach()))

    def found(self, hidden: Sequence[Tensor]) -> tuple[Mixing, ...]:
        """The mixing of every block, given h^0 … h^L."""
        pairs = pairwise(state.detach() for state in hidden)
        return tuple(self._mixing(block, *pair) for block, pair in enumerate(pairs))

    def _mixing(self, block: int, given: Tensor, leaving: Tensor) -> Mixing:
        before = [e for e in self._events if e.block == block]
        after = [e for e in self._events if e.block == block + 1]
        # The first linear map behind attention; the sum with the block's input shows where the norm is.
        projection = next((e for e in after if _is_linear(e.module)), None)
        norms = [e for e in after if not _is_linear(e.module)]
        if projection is None or projection.output.shape != given.shape:
            raise _unclear(block, "no output projection follows its attention")
        stream = given + projection.output
        first = next((e for e in norms if _same(e.given, stream)), None)
        if first is None:
            raise _unclear(block, "attention is not simply added to the block's input")
        normed_before = any(not _is_linear(e.module) and _same(e.given, given) for e in before)
        last = next((e for e in norms if _same(e.output, leaving)), None)
        last_norm = None if last is None else _norm(last)
        of_stack = last is not None and normed_before and not isinstance(last.module, nn.LayerNorm)
        if of_stack and last_norm and last_norm.centres:
            last_norm = None  # what another kind does is known of an RMSNorm alone
        matrix: Any = projection.module.weight
        matrix = matrix if isinstance(projection.module, nn.Linear) else matrix.T
        stream, norm = (stream, None) if normed_before else (first.output, _norm(first))
        return Mixing(matrix.detach(), given, stream, norm, last_norm)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_norm(module: nn.Module) -> bool:
    named = type(module).__name__.endswith("Norm") and next(module.children(), None) is None
    return named or isinstance(module, nn.LayerNorm)


def _norm(event: _Event) -> RecordedNorm:
    weight = getattr(event.module, "weight", None)
    weight = weight.detach() if isinstance(weight, Tensor) else None
    scaled = event.given / _mean_square(event.given).sqrt()
    centres = weight is None or not _same(scaled * weight, event.output)
    return RecordedNorm(weight, event.given, event.output, centres)


def _mean_square(states: Tensor) -> Tensor:
    return states.square().mean(dim=-1, keepdim=True)


def _same(first: Tensor, second: Tensor) -> bool:
    if first.numel() != second.numel():  # some blocks fold the batch into the tokens
        return False
    return torch.allclose(first.reshape(second.shape), second, rtol=1e-4, atol=1e-5)


def _unclear(block: int, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"block {block} of this model cannot be split into what each token brought: {why}; "
        "choose a method that does not, such as rollout or attcat."
    )
