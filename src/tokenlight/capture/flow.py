"""Relevance of one target an example, followed from the output down through a recorded forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.objective import terms_of
from tokenlight.capture.transfer import Answer, Fetched, widened
from tokenlight.data.target import ResolvedTarget
from tokenlight.errors import NotFinite, UnsupportedModel
from tokenlight.relevance.case import RuleSet

if TYPE_CHECKING:
    from tokenlight.capture.tape import Recording

# Changes the relevance that reaches one block's attention context, ``batch head token width``.
Gate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Route:
    """How relevance is sent down.

    ``rules``: the rule set; a rewritten gradient is caught at h^0 alone. ``top_only``: no lower than the
    last block's attention map. ``spread``: the row of an answer position is laid over all tokens, as the
    official question-answering code does. ``gates``: block (0 is the lowest) to gate; ``key`` then tells
    these gates from others.
    """

    rules: RuleSet
    top_only: bool = False
    spread: bool = False
    gates: Mapping[int, Gate] = field(default_factory=dict)
    key: int = 0


@dataclass(frozen=True, eq=False)
class Flow:
    """Relevance where it was caught; layers in order, bottom first.

    ``hidden``: at h^l, each ``batch token hidden`` (with ``top_only`` at the last alone, of a rewritten
    gradient at h^0 alone); ``attention``: at A^l, each ``batch head query key``; ``start``: ``batch``,
    what was put in; ``contexts``: what arrived before each gate.
    """

    hidden: list[Tensor]
    attention: list[Tensor]
    start: Tensor
    contexts: list[Tensor] = field(default_factory=list)

    @property
    def conservation(self) -> Tensor:
        """The meter: relevance at each layer over relevance at the output, ``batch layer``; 1 means
        nothing was lost or made."""
        return self._sums / torch.where(self.start == 0, 1.0, self.start)[:, None]

    def finite(self, rules: str) -> Answer:
        """Raises NotFinite, naming the topmost layer where relevance is NaN or infinite."""
        finite = torch.stack([torch.isfinite(found).flatten(1).all(dim=1) for found in self.hidden])
        return Answer(Fetched(finite), partial(_refuse_not_finite, rules))

    @property
    def _sums(self) -> Tensor:
        """Relevance at each layer, ``batch layer``."""
        return torch.stack([relevance.flatten(1).sum(dim=1) for relevance in self.hidden], dim=1)


def _refuse_not_finite(rules: str, finite: np.ndarray, _targets: object = None) -> None:
    if not finite.all():
        layer, example = np.argwhere(finite == 0)[-1]
        raise NotFinite(
            f"relevance by the rules {rules!r} is not finite at layer {layer} (0 is the "
            f"embedding) of text {example} of the batch; load the model in float32 or float64."
        )


@torch.inference_mode(mode=False)
def send(recording: Recording, targets: Sequence[ResolvedTarget], route: Route) -> Flow:
    """Put relevance in at the logits of ``targets``, one an example, and catch it on its way down; only a
    rewritten gradient, which is linear, takes several logits at once."""
    passage, logits = recording.passage, recording.logits
    assert passage is not None, "this recording was made without a site of relevance"
    at, weights = terms_of(logits, targets)
    seed = torch.zeros_like(logits)
    value = torch.ones_like(at[0], dtype=logits.dtype) if weights is None else weights
    seed[at] = value * logits.detach()[at] if route.rules.starts_at_value else value
    rewritten = route.rules.rewrites_gradients
    hidden = recording.hidden[-1:] if route.top_only else recording.hidden
    attention = recording.attention[-1:] if route.top_only else recording.attention
    if rewritten:
        # h^0: of a model that writes after a source, its encoder's and its decoder's.
        parts, attention = recording.parts, ()
        hidden = hidden[:1] if parts is None else hidden[:: parts.states][:2]
    caught = [*hidden, *attention]
    with passage.carrying(route.rules), _gated(recording, route.gates) as before:
        source, put_in = logits, seed
        if route.spread:
            (top,) = torch.autograd.grad(logits, recording.hidden[-1:], seed, retain_graph=True)
            real = recording.real.to(top)
            source = recording.hidden[-1]
            shares = (real / real.sum(dim=1, keepdim=True))[..., None]
            put_in = top.sum(dim=1, keepdim=True) * shares
        found = torch.autograd.grad(source, caught, put_in, retain_graph=True, allow_unused=True)
    start = seed.flatten(1).sum(dim=1)
    layers = []
    for layer, relevance in enumerate(found[: len(hidden)]):
        if relevance is None:
            raise UnsupportedModel(
                f"no relevance arrives at hidden state {layer} (0 is the embedding) as this model "
                "reports it, so nothing can be said of its tokens; choose a method that reads no "
                "layer, such as occlusion."
            )
        layers.append(relevance)
    if rewritten:
        start = torch.where(seed == 0, 0, seed * logits.detach()).flatten(1).sum(dim=1)
        pairs = zip(hidden, layers, strict=True)
        layers = [widened(state.detach()) * gradient for state, gradient in pairs]
    # Where none arrives (an attention map that counts as a constant) relevance is zero.
    maps = [
        torch.zeros_like(tensor) if relevance is None else relevance
        for tensor, relevance in zip(attention, found[len(hidden) :], strict=True)
    ]
    return Flow(layers, maps, start, [before[block] for block in sorted(before)])


@contextmanager
def _gated(recording: Recording, gates: Mapping[int, Gate]) -> Iterator[dict[int, Tensor]]:
    """Put ``gates`` in the way of relevance at attention contexts; gives what arrived before each."""
    if gates and not recording.contexts:
        raise UnsupportedModel(
            "relevance can only be masked by head where attention goes through transformers' "
            "attention interface, and this model's does not; use transatt, which needs no mask."
        )
    arrived: dict[int, Tensor] = {}

    def through(block: int, relevance: Tensor) -> Tensor:
        arrived[block] = relevance
        return gates[block](relevance)

    with ExitStack() as undo:
        for block in gates:
            context: Any = recording.contexts[block]  # register_hook is not typed
            undo.callback(context.register_hook(partial(through, block)).remove)
        yield arrived
