"""Doors: modules at which embeddings can be read and replaced, whatever their layout."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Replace = Callable[[Tensor], Tensor]
Axes = tuple[int, int] | None


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

    @contextmanager
    def open(self, root: nn.Module, tokens: int, replace: Replace) -> Iterator[None]:
        """Within: what passes is handed to ``replace``, ``batch token hidden``. What stands behind
        the text's ``tokens``, which some models pad by themselves, stays as it is."""
        calls: list[bool] = []

        def once(tensor: Tensor) -> Tensor:
            calls.append(True)
            if len(calls) != self.call + 1:
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

        def leaving(_module: nn.Module, _arguments: Any, output: Any) -> Any:
            return (once(output[0]), *output[1:]) if isinstance(output, tuple) else once(output)

        def entering(_module: nn.Module, arguments: Any, named: Any) -> Any:
            if isinstance(self.argument, str):
                return arguments, {**named, self.argument: once(named[self.argument])}
            listed = list(arguments)
            listed[self.argument] = once(listed[self.argument])  # type: ignore[index]
            return tuple(listed), named

        module = root.get_submodule(self.path)
        if self.argument is None:
            handle = module.register_forward_hook(leaving)
        else:
            handle = module.register_forward_pre_hook(entering, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def turned(tensor: Tensor, axes: Axes) -> Tensor:
    """``tensor`` with two axes swapped, where any are."""
    return tensor if axes is None else tensor.transpose(*axes)


class Watch:
    """What every module of a pass gives out and takes in, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int, Any]] = []
        self.taken: list[tuple[str, int, int | str, Any]] = []
        self._calls: dict[str, int] = {}

    def hang(self, path: str, module: nn.Module, undo: ExitStack) -> None:
        """Watch one module until ``undo``."""

        def out(_module: nn.Module, _arguments: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            self.made.append((path, self._calls[path] - 1, first))

        def into(_module: nn.Module, arguments: Any, named: Any) -> None:
            call = self._calls[path] = self._calls.get(path, 0) + 1
            given = [*enumerate(arguments), *named.items()]
            self.taken.extend((path, call - 1, place, value) for place, value in given)

        undo.callback(module.register_forward_hook(out).remove)
        undo.callback(module.register_forward_pre_hook(into, with_kwargs=True).remove)

    def doors(self, state: Tensor) -> list[Door]:
        """Where ``state``, ``batch token hidden``, passed, by its values: modules that give it out,
        then modules that take it in."""
        doors = [
            Door(path, None, axes, call)
            for path, call, tensor in self.made
            for axes in _layouts(tensor, state)
        ]
        return doors + [
            Door(path, place, axes, call)
            for path, call, place, tensor in self.taken
            for axes in _layouts(tensor, state)
        ]


def _layouts(tensor: Any, state: Tensor) -> list[Axes]:
    """The swap of axes that makes ``tensor`` begin with ``state``; none where none does."""
    if tensor is state:
        return [None]
    if not isinstance(tensor, Tensor) or tensor.dim() != 3 or tensor.dtype != state.dtype:
        return []
    layouts: tuple[Axes, ...] = (None, (0, 1), (1, 2))
    return [axes for axes in layouts if _begins(turned(tensor, axes), state)][:1]


def _begins(tensor: Tensor, state: Tensor) -> bool:
    batch, tokens, width = state.shape
    fits = tensor.shape[0] == batch and tensor.shape[2] == width and tensor.shape[1] >= tokens
    return fits and torch.equal(tensor[:, :tokens].detach().to(state.device), state.detach())
