"""The entrance: every place where the embeddings of a text come into a model, found once by passes.

Where a decoder reads the text as well (BART's and T5's classifiers), each token comes in twice: at its own
place of the encoder, and one place later in the decoder. Where a decoder writes after a source, each comes in
once: the source by the encoder, what was written by the decoder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tokenlight.capture.live import LiveModel, source_of
from tokenlight.capture.probe import other_row, telling
from tokenlight.capture.rewired import token_embeddings
from tokenlight.capture.transfer import widened
from tokenlight.capture.turns import hooked
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel

At = Literal["hidden", "words"]
Axes = tuple[int, int] | None
# What modules give out (place None) and take in: path, number of the call, place, value.
Seen = list[tuple[str, int, int | str | None, Any]]
TRIED = 4  # doors of one part: those behind them hand on what came through the first


class _Stopped(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Door:
    """A module and where in its call the embeddings pass. ``swapped``: two axes that change places to give
    ``batch token hidden``; ``call``: which of the module's calls in a pass, since a decoder may share its
    encoder's table; ``ahead``: tokens of the model's own that join only behind the door."""

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
            return _turned(through(_turned(tensor, self.swapped)), self.swapped)

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


def _turned(tensor: Tensor, axes: Axes) -> Tensor:
    return tensor if axes is None else tensor.transpose(*axes)


@dataclass(frozen=True, slots=True)
class Entrance:
    """Doors in the order in which a pass comes to them: the encoder's, then the decoder's; ``twice``: both
    let in the same tokens, so that there are twice as many ``place``s. ``start``: the id that a decoder puts
    before the text; None where it puts the text's own last token there."""

    doors: tuple[Door, ...]
    start: int | None = None
    twice: bool = False

    def split(self, vectors: Tensor, source: int | None) -> Sequence[Tensor]:
        """``batch place …``, door by door; ``source`` tokens of a row are the encoder's alone."""
        return torch.split(vectors, self._sizes(vectors.shape[1], source), 1)

    def _sizes(self, places: int, source: int | None) -> list[int]:
        if source is not None:
            return [source, places - source]
        return [places // len(self.doors)] * len(self.doors)

    @contextmanager
    def open(
        self,
        root: nn.Module,
        tokens: int,
        source: int | None,
        replace: Callable[[int, Tensor], Tensor],
    ) -> Iterator[None]:
        """Within: what passes door i is handed to ``replace(i, …)``, ``batch token hidden``."""
        sizes = self._sizes(tokens * (1 + self.twice), source)
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
    """What passed an entrance in one forward: a tensor a door, ``batch token hidden``, on a graph if any."""

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
    live: LiveModel, entrance: Entrance, real: Tensor, source: int | None
) -> Iterator[Entered]:
    """Within: what passes the entrance is kept; the graph goes through it."""
    entered = Entered(entrance, real, [])

    def keep(_number: int, tensor: Tensor) -> Tensor:
        tensor = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        # A node of its own, even if what passes is but a view of more than the text's tokens.
        entered.tensors.append(tensor.view_as(tensor))
        return entered.tensors[-1].clone()  # the model may go on to scale it in place

    with entrance.open(live.model, real.shape[1], source, keep):
        yield entered


@torch.inference_mode(mode=False)
def embedded(
    live: LiveModel, rows: Sequence[TokenRow], width: int, entrance: Entrance, *, own: bool = False
) -> Tensor:
    """What passes the entrance for ``rows``, ``batch place hidden``; the pass ends there, before any head
    could refuse them. ``own``: the model itself finds what its decoder reads of them."""
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


_found: WeakKeyDictionary[nn.Module, dict[At, Entrance]] = WeakKeyDictionary()


@torch.inference_mode(mode=False)
def entrance_of(live: LiveModel, row: TokenRow, at: At) -> Entrance:
    """To h^0, or to the token tables' output (``words``), before positions, segments and norm, by passes over
    a text like ``row``. Where h^0 cannot be replaced, the token tables stand for it."""
    known = _found.setdefault(live.model, {})
    if at not in known:
        known[at] = _find(live, row, at)
    return known[at]


def _find(live: LiveModel, row: TokenRow, at: At) -> Entrance:
    """The first candidate that is the only way of the text into the model."""
    if live.patches is None:
        row = telling(live, replace(row, answer=()))
    paths, seen, states = _watched(live, row)
    # Into a text with a picture, words and patches come together behind the table of tokens.
    both = at == "hidden" or live.sight is not None
    parts = [_doors(seen, state)[:TRIED] if both else [] for state in states]
    parts = parts if len(parts) > live.writes_from_source else []
    tables = _tables(live, paths, seen, row, max(1 + live.writes_from_source, len(states)))
    if live.patches is not None:  # the patches of a picture come in by one way
        found = parts[0] or [replace(tables.doors[0], ahead=live.patches.ahead)]
        return Entrance(tuple(found[:1]))
    other = other_row(live, row)
    for doors in (*(product(*parts) if parts else ()), tables.doors):
        entrance = replace(tables, doors=doors)
        if _is_only_way(live, row, other, entrance):
            return entrance
    raise UnsupportedModel(
        f"the logits of {type(live.model).__name__} depend on a text by other ways than its token "
        "embeddings, so their scores would not tell the whole; use a method that changes tokens, "
        "such as occlusion or shapley."
    )


def _layouts(tensor: Any, state: Tensor) -> list[Axes]:
    """The swap of axes that makes ``tensor`` begin with ``state``; none where none does."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 3 or tensor.dtype != state.dtype:
        return []
    for axes in (None, (0, 1), (1, 2)):
        own = _turned(tensor.detach(), axes)[:, : state.shape[1]]
        if own.shape == state.shape and torch.equal(own.to(state.device), state.detach()):
            return [axes]
    return []


def _watched(live: LiveModel, row: TokenRow) -> tuple[dict[nn.Module, str], Seen, list[Tensor]]:
    """One pass: paths of all modules, what each took in and gave out in turn, and h^0 as parts report it."""
    paths = {module: path for path, module in live.model.named_modules() if path}
    calls, seen = dict.fromkeys(paths.values(), -1), Seen()

    def entering(module: nn.Module, arguments: Any, named: Any) -> None:
        calls[paths[module]] += 1
        for place, value in (*enumerate(arguments), *named.items()):
            seen.append((paths[module], calls[paths[module]], place, value))

    def leaving(module: nn.Module, _arguments: Any, _named: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        seen.append((paths[module], calls[paths[module]], None, first))

    watching = hooked(paths, entering=entering, leaving=leaving)
    outputs, _ = live.run(live.inputs([row]), watching, output_hidden_states=True)
    decoded = getattr(outputs, "decoder_hidden_states", None)
    states = [*live.hidden_states_of(outputs)[:1], *(decoded or ())[:1]]
    ends = [len(row)] * 2 if row.source is None else [row.source, len(row) - row.source]
    return paths, seen, [state[:, :end] for state, end in zip(states, ends, strict=False)]


def _doors(seen: Seen, state: Tensor) -> list[Door]:
    """Where ``state``, ``batch token hidden``, was given out, then where it was taken in, by values."""
    return [
        Door(path, place, axes, call)
        for path, call, place, tensor in sorted(seen, key=lambda one: one[2] is not None)
        for axes in _layouts(tensor, state)
    ]


def _tables(
    live: LiveModel, known: dict[nn.Module, str], seen: Seen, row: TokenRow, parts: int
) -> Entrance:
    """The token tables, the encoder's and the decoder's, which may be one module that is called twice."""
    modules: list[Any] = [token_embeddings(live.model)[-1]]
    if parts == 2:
        modules.append(live.model.get_decoder().get_input_embeddings())
    paths = [known[module] for module in modules]
    doors = []
    for path, call in zip(paths, (0, int(paths[0] == paths[-1])), strict=False):
        made = next(v for *which, v in seen if which == [path, call, None])
        first = len(row) > 1 and made.shape[:2] == (len(row), 1)
        doors.append(Door(path, None, (0, 1) if first else None, call))
    found = Entrance(tuple(doors), twice=parts == 2 and row.source is None)
    if not found.twice:
        return found
    # Does the decoder's first token move with the text's last?
    changed = replace(row, ids=(*row.ids[:-1], other_row(live, row, ends=True).ids[-1]))
    own = [embedded(live, [one], len(row), found, own=True) for one in (row, changed)]
    fixed = torch.equal(*(vectors[0, len(row)] for vectors in own))
    ids = next(ids for path, call, _, ids in seen if (path, call) == (paths[1], doors[1].call))
    return replace(found, start=int(ids[0, 0]) if fixed else None)


def _is_only_way(live: LiveModel, row: TokenRow, other: TokenRow, entrance: Entrance) -> bool:
    """Whether one text, with the embeddings of another in the place of its own, gives the other's
    logits: the ids then matter through their embeddings alone."""

    def logits(row: TokenRow, *within: AbstractContextManager[None]) -> Tensor:
        return live.run(live.inputs([row]), *within)[1].cpu().double()

    try:
        vectors = embedded(live, [other], len(row), entrance)
    except (RuntimeError, IndexError):  # a door of another shape than it seemed
        return False
    own, wanted = logits(row), logits(other)
    got = logits(row, entrance.given(live.model, vectors, row.source))
    moved, gap = float((own - wanted).abs().max()), float((got - wanted).abs().max())
    eps = torch.finfo(live.dtype).eps
    # Both passes do the same sums in the same order; what is left is rounding.
    return gap <= 64 * eps * float(wanted.abs().max()) + 1e-3 * moved
