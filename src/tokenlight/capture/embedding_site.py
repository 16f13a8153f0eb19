"""Where embeddings can be read and replaced: at the token table, or at h^0 as the blocks see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tokenlight.capture.live import LiveModel
from tokenlight.capture.rewired import rewired, token_embeddings
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel

Replace = Callable[[Tensor], Tensor]
_doors: WeakKeyDictionary[nn.Module, Door] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Door:
    """A module and where in its call the embeddings pass: its output, or one of its arguments."""

    path: str
    argument: int | str | None = None  # None: the output
    ahead: int = 0  # tokens of the model's own that join what passes only behind the door

    @contextmanager
    def open(self, root: nn.Module, replace: Replace) -> Iterator[None]:
        """Within: what passes is handed to ``replace``, on the first call only, since a decoder may
        share its encoder's table."""
        passed: list[bool] = []

        def once(tensor: Tensor) -> Tensor:
            if passed:
                return tensor
            passed.append(True)
            if tensor.dim() == 4:  # of a convolution: batch hidden row column
                tokens = tensor.flatten(2).transpose(1, 2)
                return through(tokens).transpose(1, 2).reshape(tensor.shape)
            return through(tensor)

        def through(tensor: Tensor) -> Tensor:
            if not self.ahead:
                return replace(tensor)
            # They pass as zeros, so that what is seen here has a vector for every token.
            own = tensor.new_zeros(len(tensor), self.ahead, tensor.shape[2])
            return replace(torch.cat((own, tensor), dim=1))[:, self.ahead :]

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


def words_door(live: LiveModel) -> Door:
    """To the token table, before positions, segments and norm; of two, to the encoder's."""
    table = token_embeddings(live.model)[-1]
    names = {id(module): name for name, module in live.model.named_modules()}
    return Door(names[id(table)], ahead=0 if live.patches is None else live.patches.ahead)


@torch.inference_mode(mode=False)
def hidden_door(live: LiveModel, row: TokenRow) -> Door:
    """To h^0; found once a model, by a pass over ``row`` in which every module is watched."""
    if live.model not in _doors:
        _doors[live.model] = _find(live, row)
    return _doors[live.model]


@contextmanager
def words_kept(live: LiveModel, *, wanted: bool) -> Iterator[list[Tensor]]:
    """Within: the token embeddings of the pass are kept, where ``wanted``; its graph begins there."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.detach().requires_grad_(True))
        return kept[-1].clone()  # no leaf, so a model may go on to scale it in place

    with words_door(live).open(live.model, keep) if wanted else nullcontext():
        yield kept


class _Watch:
    """What every module of a pass gives out and takes in, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []
        self.taken: list[tuple[str, int | str, Any]] = []

    def hang(self, path: str, module: nn.Module, undo: ExitStack) -> None:
        """Watch one module until ``undo``."""

        def out(_module: nn.Module, _arguments: Any, output: Any) -> None:
            self.made.append((path, output[0] if isinstance(output, tuple) else output))

        def into(_module: nn.Module, arguments: Any, named: Any) -> None:
            self.taken.extend((path, place, value) for place, value in enumerate(arguments))
            self.taken.extend((path, name, value) for name, value in named.items())

        undo.callback(module.register_forward_hook(out).remove)
        undo.callback(module.register_forward_pre_hook(into, with_kwargs=True).remove)


def _find(live: LiveModel, row: TokenRow) -> Door:
    """Watch one pass: the first module that gives h^0 out, else the first that takes it in.

    The first: a module behind it may hand h^0 on as it is and yet not be its only way.
    """
    watch = _Watch()
    arguments, _, filler = live.inputs([row])
    with (
        rewired(live.model, attention="own", gradients=False, filler=filler),
        ExitStack() as undo,
    ):
        for path, module in live.model.named_modules():
            if path and live.listens_to(module):
                watch.hang(path, module, undo)
        outputs = live.call(arguments, output_hidden_states=True)
    first = live.hidden_states_of(outputs)[0]
    doors = [Door(path) for path, tensor in watch.made if tensor is first]
    doors += [Door(path, place) for path, place, tensor in watch.taken if tensor is first]
    if not doors:
        raise UnsupportedModel(
            f"{type(live.model).__name__} builds its embeddings where no module gives them out or "
            "takes them in, so they cannot be replaced; use grad_x_input, which needs no second pass."
        )
    return doors[0]
