"""The entrance: every place where the embeddings of a text come into a model.

An encoder has one. Where a decoder reads the text as well (BART's and T5's classifiers), each token
comes in twice: at its own place of the encoder, and one place later in the decoder. Where a decoder
writes after a source, each comes in once: the source by the encoder, what was written by the decoder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenlight.capture.embedding_site import Door
from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.rewired import rewired
from tokenlight.capture.transfer import widened
from tokenlight.data.tokens import TokenRow


class _Stopped(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Entrance:
    """Doors in the order in which a pass comes to them: the encoder's, then the decoder's.

    ``place`` counts tokens door by door: ``token`` places, or twice as many. ``start``: the id that a
    decoder puts before the text; None where it puts the text's own last token there. ``twice``:
    whether the doors let in the same tokens.
    """

    doors: tuple[Door, ...]
    start: int | None = None
    twice: bool = False

    def sizes(self, tokens: int, source: int | None) -> list[int]:
        """Places at each door for rows of ``tokens``, ``source`` of which are the encoder's alone."""
        return [tokens] * len(self.doors) if source is None else [source, tokens - source]

    @contextmanager
    def open(
        self, root: nn.Module, sizes: Sequence[int], replace: Callable[[int, Tensor], Tensor]
    ) -> Iterator[None]:
        """Within: what passes door i is handed to ``replace(i, …)``, ``batch token hidden``."""
        with ExitStack() as undo:
            for number, (door, tokens) in enumerate(zip(self.doors, sizes, strict=True)):

                def passing(own: Tensor, number: int = number) -> Tensor:
                    return replace(number, own)

                undo.enter_context(door.open(root, tokens, passing))
            yield

    def folded(self, values: Tensor, real: Tensor) -> Tensor:
        """``batch place …`` summed to ``batch token …``: what a token brought wherever it is read."""
        if not self.twice:
            return values
        own, decoded = values.chunk(2, dim=1)
        later = torch.cat((decoded[:, 1:], torch.zeros_like(decoded[:, :1])), dim=1)
        if self.start is None:
            rows, last = _last(real)
            later[rows, last] += decoded[:, 0]
        return own + later

    def spread(self, values: Tensor, real: Tensor) -> Tensor:
        """``batch token …`` laid over ``batch place …``; zero where no token of the text is read."""
        if not self.twice:
            return values
        decoded = torch.cat((torch.zeros_like(values[:, :1]), values[:, :-1]), dim=1)
        if self.start is None:
            decoded[:, 0] = values[_last(real)]
        return torch.cat((values, decoded), dim=1)

    def arguments(self, given: dict[str, Tensor], real: Tensor) -> dict[str, Tensor]:
        """``given`` with the decoder's ids as they follow from the text's, whatever these are."""
        if not self.twice:
            return given
        decoded = self.spread(given["input_ids"], real)[:, real.shape[1] :]
        if self.start is not None:
            decoded[:, 0] = self.start
        return {**given, "decoder_input_ids": decoded}


def _last(real: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(len(real), device=real.device), real.sum(dim=1) - 1


@dataclass(frozen=True, eq=False)
class Entered:
    """What passed an entrance in one forward: a tensor a door, ``batch token hidden``, on the graph
    where there is one. ``real``: ``batch token``."""

    entrance: Entrance
    real: Tensor
    tensors: list[Tensor]

    @property
    def values(self) -> Tensor:
        """``batch place hidden``; half precision becomes float32."""
        return self.joined([tensor.detach() for tensor in self.tensors])

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors of the doors as one, ``batch place …``."""
        return torch.cat([widened(tensor, self.real.device) for tensor in tensors], dim=1)

    def folded(self, values: Tensor) -> Tensor:
        """``batch place …`` to ``batch token …``."""
        return self.entrance.folded(values, self.real)

    def spread(self, values: Tensor) -> Tensor:
        """``batch token …`` to ``batch place …``."""
        return self.entrance.spread(values, self.real)


@contextmanager
def kept(
    live: LiveModel, entrance: Entrance | None, real: Tensor, source: int | None
) -> Iterator[Entered | None]:
    """Within: what passes the entrance, if any, is kept; the graph goes through it."""
    if entrance is None:
        yield None
        return
    entered = Entered(entrance, real, [])

    def keep(_number: int, tensor: Tensor) -> Tensor:
        tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        # A node of its own, even if what passes is but a view of more than the text's tokens.
        entered.tensors.append(tensor.clone())
        return entered.tensors[-1].clone()  # the model may go on to scale it in place

    with entrance.open(live.model, entrance.sizes(real.shape[1], source), keep):
        yield entered


@torch.inference_mode(mode=False)
def embedded(
    live: LiveModel,
    rows: Sequence[TokenRow],
    width: int,
    entrance: Entrance,
    *,
    own: bool = False,
) -> Tensor:
    """What passes the entrance for ``rows``, ``batch place hidden``; the pass ends there, so the rows
    need not make a text that the model's head would take. ``own``: the model itself finds what its
    decoder reads of them."""
    arguments, real, filler = live.inputs(rows, width)
    passed: list[Tensor] = []

    def keep(_number: int, tensor: Tensor) -> Tensor:
        passed.append(tensor.clone())
        if len(passed) == len(entrance.doors):
            raise _Stopped
        return tensor

    with (
        rewired(live.model, attention="own", gradients=False, filler=filler),
        entrance.open(live.model, entrance.sizes(width, source_of(rows)), keep),
        suppress(_Stopped),
    ):
        live.call(arguments if own else entrance.arguments(arguments, real))
    return torch.cat(passed, dim=1)
