"""Where a model's entrance is: found by passes over one text, and proved by another."""

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tokenlight.capture.entrance import Axes, Door, Entrance, embedded, turned
from tokenlight.capture.live import LiveModel
from tokenlight.capture.objective import slopes
from tokenlight.capture.probe import other_row, telling
from tokenlight.capture.rewired import token_embeddings
from tokenlight.capture.turns import hooked
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import UnsupportedModel

At = Literal["hidden", "words"]
STEP = 0.02  # of the way from one text to another, over which a slope is looked at
TRIED = 4  # doors of one part: those behind them hand on what came through the first
_found: WeakKeyDictionary[nn.Module, dict[At, Entrance]] = WeakKeyDictionary()


@torch.inference_mode(mode=False)
def entrance_of(live: LiveModel, row: TokenRow, at: At) -> Entrance:
    """To h^0, or to the token tables' output (``words``), before positions, segments and norm.

    Found once a model by passes over a text like ``row``. Where h^0 cannot be replaced, because the
    model does not report it or reads the text by other ways, the token tables stand for it.
    """
    known = _found.setdefault(live.model, {})
    if at not in known:
        known[at] = _find(live, row, at)
    return known[at]


def _find(live: LiveModel, row: TokenRow, at: At) -> Entrance:
    """The first candidate that is the only way of the text into the model."""
    if live.patches is None:
        row = telling(live, replace(row, answer=()))
    watch, states = _watched(live, row)
    # Into a text with a picture, words and patches come together behind the table of tokens.
    both = at == "hidden" or live.sight is not None
    parts = [watch.doors(state)[:TRIED] if both else [] for state in states]
    parts = parts if len(parts) > live.writes_from_source else []
    tables, start = _tables(live, watch, row, max(1 + live.writes_from_source, len(states)))
    if live.patches is not None:  # the patches of a picture come in by one way
        found = parts[0] or [replace(tables[0], ahead=live.patches.ahead)]
        return Entrance(tuple(found[:1]))
    other = other_row(live, row)
    for doors in (*(product(*parts) if parts else ()), tables):
        entrance = Entrance(tuple(doors), start, len(doors) == 2 and row.source is None)
        if _is_only_way(live, row, other, entrance):
            _refuse_estimated_slopes(live, row, other, entrance)
            return entrance
    raise UnsupportedModel(
        f"the logits of {type(live.model).__name__} depend on a text by other ways than its token "
        "embeddings, so their scores would not tell the whole; use a method that changes tokens, "
        "such as occlusion or shapley."
    )


class _Watch:
    """What modules give out and take in, in order: path, number of the call, place among arguments, value."""

    def __init__(self, model: nn.Module) -> None:
        self.made: list[tuple[str, int, None, Any]] = []
        self.taken: list[tuple[str, int, int | str, Any]] = []
        self.paths = {module: path for path, module in model.named_modules() if path}
        self._calls = dict.fromkeys(self.paths.values(), -1)
        self.hooks = hooked(self.paths, entering=self._enter, leaving=self._leave)

    def _enter(self, module: nn.Module, arguments: Any, named: Any) -> None:
        path = self.paths[module]
        self._calls[path] += 1
        given = [*enumerate(arguments), *named.items()]
        self.taken.extend((path, self._calls[path], place, value) for place, value in given)

    def _leave(self, module: nn.Module, _arguments: Any, _named: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        path = self.paths[module]
        self.made.append((path, self._calls[path], None, first))

    def doors(self, state: Tensor) -> list[Door]:
        """Where ``state``, ``batch token hidden``, was given out, then where it was taken in, by values."""
        return [
            Door(path, place, axes, call)
            for path, call, place, tensor in (*self.made, *self.taken)
            for axes in _layouts(tensor, state)
        ]


def _layouts(tensor: Any, state: Tensor) -> list[Axes]:
    """The swap of axes that makes ``tensor`` begin with ``state``; none where none does."""
    if tensor is state:
        return [None]
    if not isinstance(tensor, Tensor) or tensor.dim() != 3 or tensor.dtype != state.dtype:
        return []
    layouts: tuple[Axes, ...] = (None, (0, 1), (1, 2))
    begun = {axes: turned(tensor.detach(), axes)[:, : state.shape[1]] for axes in layouts}
    same = (
        axes
        for axes, own in begun.items()
        if own.shape == state.shape and torch.equal(own.to(state.device), state.detach())
    )
    return list(islice(same, 1))


def _watched(live: LiveModel, row: TokenRow) -> tuple[_Watch, list[Tensor]]:
    """One pass with every module watched; and h^0 as the model and its decoder, if any, report it."""
    watch, given = _Watch(live.model), live.inputs([row])
    outputs, _ = live.run(given, watch.hooks, output_hidden_states=True)
    decoded = getattr(outputs, "decoder_hidden_states", None)
    states = [*live.hidden_states_of(outputs)[:1], *(decoded or ())[:1]]
    tokens = given[1].shape[1]
    ends = [tokens, tokens] if row.source is None else [row.source, tokens - row.source]
    return watch, [state[:, :end] for state, end in zip(states, ends, strict=False)]


def _tables(
    live: LiveModel, watch: _Watch, row: TokenRow, parts: int
) -> tuple[tuple[Door, ...], int | None]:
    """The token tables, the encoder's and the decoder's, which may be one module that is called
    twice; and the id that the decoder puts before the text, None where it is the text's last."""
    modules: list[Any] = [token_embeddings(live.model)[-1]]
    if parts == 2:
        modules.append(live.model.get_decoder().get_input_embeddings())
    paths = [watch.paths[module] for module in modules]
    calls = (0, int(paths[0] == paths[-1]))
    doors = []
    for path, call in zip(paths, calls, strict=False):
        made = next(tensor for *which, _, tensor in watch.made if which == [path, call])
        first = len(row) > 1 and made.shape[:2] == (len(row), 1)
        doors.append(Door(path, None, (0, 1) if first else None, call))
    if parts == 1 or row.source is not None:
        return tuple(doors), None
    ids = next(ids for *which, _, ids in watch.taken if which == [paths[1], calls[1]])[0]
    if ids[1 : len(row)].tolist() != list(row.ids[:-1]):
        raise UnsupportedModel(
            f"the decoder of {type(live.model).__name__} does not read the text one token later than "
            "its encoder, so what it reads could not be laid over the text's tokens."
        )
    # Does the decoder's first id move with the text's last?
    changed = replace(row, ids=(*row.ids[:-1], other_row(live, row, ends=True).ids[-1]))
    seen: list[int] = []

    def note(_module: nn.Module, arguments: Any, named: Any) -> None:
        seen.append(int((arguments or [*named.values()])[0][0, 0]))

    with hooked([modules[1]], entering=note):
        embedded(live, [changed], len(row), Entrance(tuple(doors)), own=True)
    return tuple(doors), seen[-1] if seen[-1] == int(ids[0]) else None


def _is_only_way(live: LiveModel, row: TokenRow, other: TokenRow, entrance: Entrance) -> bool:
    """Whether one text, with the embeddings of another in the place of its own, gives the other's
    logits: the ids then matter through their embeddings alone."""
    try:
        vectors = embedded(live, [other], len(row), entrance)
    except (RuntimeError, IndexError):  # a door of another shape than it seemed
        return False
    own, wanted = (_logits(live, one) for one in (row, other))
    got = _logits(live, row, entrance.given(live.model, vectors, row.source))
    moved, gap = float((own - wanted).abs().max()), float((got - wanted).abs().max())
    eps = torch.finfo(live.dtype).eps
    # Both passes do the same sums in the same order; what is left is rounding.
    return gap <= 64 * eps * float(wanted.abs().max()) + 1e-3 * moved


def _refuse_estimated_slopes(
    live: LiveModel, row: TokenRow, other: TokenRow, entrance: Entrance
) -> None:
    """Where a model brings a backward of its own (YOSO estimates it), its slope on the way to another
    text must be the one its values have. Weights in eight or four bits are steps, which have none:
    their gradient goes straight through, as everybody's does who trains on them."""
    eps = torch.finfo(live.dtype).eps
    quantised = getattr(live.model.config, "quantization_config", None) is not None
    if quantised or eps > torch.finfo(torch.float32).eps:
        return  # the values of a small step would be rounding
    here, there = (embedded(live, [one], len(row), entrance) for one in (row, other))
    way = there - here
    begin = here.detach().requires_grad_()
    given = partial(entrance.given, live.model, source=row.source)
    value = _logits(live, row, given(begin), gradients=True)
    total = value.flatten()[0]
    if not own_backwards(total):
        return
    (slope,) = slopes(live.model, total, {"the embeddings": begin})
    told = float((slope * way).sum())

    def rise(step: float) -> float:
        ends = [here + sign * step * way for sign in (1, -1)]
        values = [_logits(live, row, given(end)) for end in ends]
        return float((values[0] - values[1]).flatten()[0]) / (2 * step)

    seen = (4 * rise(STEP / 2) - rise(STEP)) / 3  # without the error of the step squared
    rounding = 16 * eps * float(value.detach().abs().max()) / STEP
    if abs(told - seen) > 0.02 * abs(seen) + rounding:
        raise UnsupportedModel(
            f"{type(live.model).__name__} computes its gradient by a rule of its own, which is not "
            f"the slope of its values ({told:.3g} against {seen:.3g} on the way to another text); "
            "use a method that needs none, such as occlusion or shapley."
        )


def own_backwards(value: Tensor) -> bool:
    """Whether the graph of ``value`` holds a function whose backward the model's authors wrote."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        made_by = getattr(node, "_forward_cls", None)
        if made_by is not None and not made_by.__module__.startswith("tokenlight."):
            return True
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
    return False


def _logits(
    live: LiveModel, row: TokenRow, *within: AbstractContextManager[None], gradients: bool = False
) -> Tensor:
    return live.run(live.inputs([row]), *within, gradients=gradients)[1].cpu().double()
