"""The entrance: every place where the embeddings of a text come into a model.

An encoder has one. Where a decoder reads the text as well (BART's and T5's classifiers), each token
comes in twice: at its own place of the encoder, and one place later in the decoder. Where a decoder
writes after a source, each comes in once: the source by the encoder, what was written by the decoder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.transfer import widened
from tokenlight.capture.turns import hooked
from tokenlight.data.tokens import TokenRow

Axes = tuple[int, int] | None


class _Stopped(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Door:
    """A module and where in its call the embeddings pass: its output, or one of its arguments.

    ``swapped``: two axes that change places to give ``batch token hidden``; ``call``: which of the
    module's calls in a pass, since a decoder may share its encoder's table; ``ahead``: tokens of the
    model's own that join what passes only behind the door.
    """

    path: str
    argument: int | str | None = None  # None: the output
    swapped: Axes = None
    call: int = 0
    ahead: int = 0

    def open(
        self, root: nn.Module, tokens: int, replace: Callable[[Tensor], Tensor]
    ) -> AbstractContextManager[None]:
        """Within: what passes is handed to ``replace``, ``batch token hidden``. What stands behind
        the text's ``tokens``, which some models pad by themselves, stays as it is."""
        calls = count()

        def once(tensor: Tensor) -> Tensor:
            if next(calls) != self.call:
                return tensor
            if tensor.dim() == 4:  # of a convolution: batch hidden row column
                flat = tensor.flatten(2).transpose(1, 2)
                return through(flat).transpose(1, 2).reshape(tensor.shape)
            return turned(through(turned(tensor, self.swapped)), self.swapped)

        def through(tensor: Tensor) -> Tensor:
            # They pass as zeros, so that what is seen here has a vector for every token.
            own = tensor.new_zeros(len(tensor), self.ahead, tensor.shape[2])
            whole = torch.cat((own, tensor), dim=1) if self.ahead else tensor
            replaced = replace(whole[:, :tokens])[:, self.ahead :]
            beyond = whole[:, tokens:]
            return torch.cat((replaced, beyond), dim=1) if beyond.shape[1] else replaced

        def leaving(_module: nn.Module, _arguments: Any, _named: Any, output: Any) -> Any:
            return (once(output[0]), *output[1:]) if isinstance(output, tuple) else once(output)

        def entering(_module: nn.Module, arguments: Any, named: Any) -> Any:
            given = dict(enumerate(arguments)) | named
            given[self.argument] = once(given[self.argument])
            places = range(len(arguments))
            return tuple(given.pop(place) for place in places), given

        module = root.get_submodule(self.path)
        if self.argument is None:
            return hooked([module], leaving=leaving)
        return hooked([module], entering=entering)


def turned(tensor: Tensor, axes: Axes) -> Tensor:
    """``tensor`` with two axes swapped, where any are."""
    return tensor if axes is None else tensor.transpose(*axes)


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

    def split(self, vectors: Tensor, source: int | None) -> Sequence[Tensor]:
        """``batch place …``, door by door; ``source`` tokens of a row are the encoder's alone."""
        each = vectors.shape[1] // len(self.doors)
        return torch.split(
            vectors, each if source is None else [source, vectors.shape[1] - source], 1
        )

    @contextmanager
    def open(
        self,
        root: nn.Module,
        tokens: int,
        source: int | None,
        replace: Callable[[int, Tensor], Tensor],
    ) -> Iterator[None]:
        """Within: what passes door i is handed to ``replace(i, …)``, ``batch token hidden``."""
        sizes = [tokens] * len(self.doors) if source is None else [source, tokens - source]
        with ExitStack() as undo:
            for number, (door, size) in enumerate(zip(self.doors, sizes, strict=True)):
                undo.enter_context(door.open(root, size, partial(replace, number)))
            yield

    def given(
        self, root: nn.Module, vectors: Tensor, source: int | None
    ) -> AbstractContextManager[None]:
        """Within: ``vectors``, ``batch place hidden``, pass in the place of the text's own."""
        pieces = self.split(vectors, source)
        tokens = vectors.shape[1] // (1 + self.twice)
        return self.open(root, tokens, source, lambda door, own: pieces[door].to(own).clone())

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

    with entrance.open(live.model, real.shape[1], source, keep):
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

    given = arguments if own else entrance.arguments(arguments, real)
    with suppress(_Stopped):
        keeping = entrance.open(live.model, width, source_of(rows), keep)
        live.run((given, real, filler), keeping)
    return torch.cat(passed, dim=1)
