"""Further passes over the texts of a tape: another backward over the recorded graph, forward and backward
at other embeddings, forward over other tokens; and relevance, sent down through the recorded graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.attention import Unkept
from tokenlight.capture.entrance import At, embedded, entrance_of
from tokenlight.capture.live import Inputs
from tokenlight.capture.objective import Objective, Of, slopes, terms_of
from tokenlight.capture.packing import in_halves
from tokenlight.capture.perturbation import StandIns, Variant, stream_logits
from tokenlight.capture.transfer import all_widened, sent, widened
from tokenlight.capture.turns import pause
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.relevance.fork import carrying
from tokenlight.relevance.rules import Operation, RuleCase, RuleSet

if TYPE_CHECKING:
    from tokenlight.capture.tape import Recording

StandIn = Literal["pad", "mask", "unk", "zero"]
# Without a graph a batch may be wider than one of an explanation.
WIDER = {"cuda": 4}
Found = TypeVar("Found")
Read = Callable[[ResolvedTarget, np.ndarray], float]
# Changes the relevance that reaches one block's attention context, ``batch head token width``.
Gate = Callable[[Tensor], Tensor]


class Rerun:
    """Further passes over one recording for its targets, packed by the recording's token budget."""

    def __init__(
        self, recording: Recording, targets: Sequence[ResolvedTarget], rules: RuleSet | None = None
    ) -> None:
        self.recording, self.targets, self.rules = recording, tuple(targets), rules
        self.live = recording.live
        self._known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """What ``compute`` gave on the first call: scores and measurements come from the same passes."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]  # type: ignore[no-any-return]

    @cached_property
    @torch.inference_mode(mode=False)
    def objective(self) -> Objective:
        """What is explained of each example."""
        logits = self.recording.logits
        lengths = sent([len(row) for row in self.recording.rows], logits.device)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return Objective.of(self.live.head, self.targets, lengths, dtype)

    @cached_property
    def value(self) -> Tensor:
        """``batch``: the target as the recorded pass gives it."""
        return self.objective(self.recording.logits.detach(), self._everyone)

    @torch.inference_mode(mode=False)
    def slopes(self, at: Sequence[Tensor], of: Of = "target") -> list[Tensor]:
        """Gradients at tensors of the recording, which must have kept its graph (Site.GRAPH)."""
        with torch.enable_grad():
            total = self.objective(self.recording.logits, self._everyone, of).sum()
        with carrying(self.recording.passage, self.rules):
            found = slopes(self.live.model, total, at, retain_graph=True)
        return [self._out(gradient) for gradient in found]

    def gradients(
        self, examples: Tensor, point: Callable[[Tensor], Tensor], *, at: At, of: Of = "target"
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run each example as often as ``examples`` names it, with other embeddings. ``point``: numbers of
        passes (positions in ``examples``) to their embeddings, ``pass place hidden``. Gives, pack by pack:
        numbers of passes, value (``pass``), gradient at the embeddings (``pass place hidden``)."""
        size = max(1, self.recording.budget // self.recording.real.shape[1])
        every = torch.arange(len(examples), device=examples.device)

        def run(pack: Tensor, part: slice) -> list[tuple[Tensor, Tensor, Tensor]]:
            numbers = pack[part]
            return [(numbers, *self.at_point(examples[numbers], point(numbers), at=at, of=of))]

        for pack in torch.split(every, size):
            yield from in_halves(partial(run, pack), len(pack))
            pause()

    @torch.inference_mode(mode=False)
    def at_point(
        self, examples: Tensor, vectors: Tensor, *, at: At, of: Of = "target"
    ) -> tuple[Tensor, Tensor]:
        """One forward and backward of ``examples`` with embeddings ``vectors``: value, gradient."""
        examples, vectors = _normal(examples), _normal(vectors)
        begin = vectors.detach().to(self.live.dtype).requires_grad_(True)
        values = self._pass(examples, begin, at, of)
        (gradient,) = slopes(self.live.model, values.sum(), [begin])
        return values.detach(), self._out(gradient)

    @torch.inference_mode(mode=False)
    def value_at(self, vectors: Tensor, *, at: At) -> Tensor:
        """``batch``: the target with the embeddings ``vectors``, ``batch place hidden``."""
        with torch.no_grad():
            return self._pass(self._everyone, vectors.to(self.live.dtype), at, "target")

    def _pass(self, examples: Tensor, vectors: Tensor, at: At, of: Of) -> Tensor:
        first = self.recording.rows[0]
        entering = entrance_of(self.live, first, at).given(self.live.model, vectors, first.source)
        gradients = vectors.requires_grad
        with torch.set_grad_enabled(gradients):
            passed = self.live.run(self._inputs, entering, gradients=gradients, examples=examples)
            return self.objective(passed[1], examples, of)

    def embedded(self, rows: Sequence[TokenRow], at: At = "hidden") -> Tensor:
        """h^0 of other tokens (one row an example, as long as it): ``batch place hidden``."""
        entrance = entrance_of(self.live, self.recording.rows[0], at)
        return self._out(embedded(self.live, rows, self.recording.real.shape[1], entrance))

    def values(
        self, variants: Sequence[Sequence[Variant]], read: Read = ResolvedTarget.value
    ) -> list[np.ndarray]:
        """The target at each changed text of each example, or what ``read`` makes of its logits. Tokens
        may be replaced but not moved where a target names places, as a span's does."""
        budget = self.recording.budget * WIDER.get(self.live.device.type, 1)
        logits = stream_logits(self.live, chain.from_iterable(variants), batch_tokens=budget)
        return [
            np.array([float(read(target, next(logits))) for _ in own])
            for target, own in zip(self.targets, variants, strict=True)
        ]

    def stand_in(self, name: StandIn | int) -> int:
        """The token id that a named baseline puts in a token's place; ``zero`` is the id 0."""
        if name == "pad":
            return StandIns.of(self.live, self.live.tokenizer).pad
        given = 0 if name == "zero" else getattr(self.live.tokenizer, f"{name}_token_id", None)
        given = name if isinstance(name, int) else given
        if given is None or not 0 <= given < self.live.vocabulary:
            raise BadInput(
                f"baseline={name!r} is not a token: this model knows ids 0 to {self.live.vocabulary - 1}, "
                "and others by the names its tokenizer has, if any; use baseline='pad' or an id."
            )
        return int(given)

    def replaced(self, row: TokenRow, hidden: np.ndarray, by: int) -> TokenRow:
        """The row with the id ``by`` where ``hidden`` (``token``) is true; the rest stays."""
        ids = tuple(by if gone else i for i, gone in zip(row.ids, hidden, strict=True))
        return replace(row, ids=ids)

    def _out(self, tensor: Tensor) -> Tensor:
        return widened(tensor, self.recording.logits.device)

    @cached_property
    @torch.inference_mode(mode=False)
    def _everyone(self) -> Tensor:
        return torch.arange(len(self.recording.rows), device=self.recording.logits.device)

    @cached_property
    @torch.inference_mode(mode=False)
    def _inputs(self) -> Inputs:
        return self.live.inputs(self.recording.rows, self.recording.real.shape[1])


def _normal(tensor: Tensor) -> Tensor:
    """What a method made inside torch.inference_mode(), as a tensor that gradients may pass."""
    return tensor.clone() if tensor.is_inference() else tensor


@dataclass(frozen=True, eq=False)
class Route:
    """How relevance is sent down. ``top_only``: no lower than the last block's attention map. ``spread``:
    the row of an answer position is laid over all tokens, as the official question-answering code does.
    ``gates``: block (0 is the lowest) to gate; ``key`` then tells these gates from others."""

    rules: RuleSet
    top_only: bool = False
    spread: bool = False
    gates: Mapping[int, Gate] = field(default_factory=dict)
    key: int = 0


@dataclass(frozen=True, eq=False)
class Flow:
    """Relevance where it was caught; layers in order, bottom first. ``hidden``: at h^l, each ``batch token
    hidden`` (``top_only``: at the last alone, of a rewritten gradient: at h^0 alone); ``attention``: at A^l,
    each ``batch head query key``; ``start``: ``batch``, put in; ``contexts``: arrived before each gate."""

    hidden: list[Tensor]
    attention: Sequence[Tensor]
    start: Tensor
    contexts: list[Tensor] = field(default_factory=list)

    @property
    def conservation(self) -> Tensor:
        """The meter: relevance at each layer over that at the output, ``batch layer``; 1: nothing is lost."""
        sums = torch.stack([relevance.flatten(1).sum(dim=1) for relevance in self.hidden], dim=1)
        return sums / torch.where(self.start == 0, 1.0, self.start)[:, None]


@torch.inference_mode(mode=False)
def send(recording: Recording, targets: Sequence[ResolvedTarget], route: Route) -> Flow:
    """Put relevance in at the logits of ``targets``, one an example, and catch it on its way down; only a
    rewritten gradient, which is linear, takes several logits at once."""
    passage, logits = recording.passage, recording.logits
    at, weights = terms_of(logits, targets)
    seed = torch.zeros_like(logits)
    value = torch.ones_like(at[0], dtype=logits.dtype) if weights is None else weights
    seed[at] = value * logits.detach()[at] if route.rules.starts_at_value else value
    rewritten = route.rules.rewrites_gradients
    hidden = recording.hidden[-1:] if route.top_only else recording.hidden
    attention: Sequence[Tensor] = [own.context for own in recording.unkept] or recording.attention
    attention = attention[-1:] if route.top_only else attention
    if rewritten:
        # h^0: of a model that writes after a source, its encoder's and its decoder's.
        parts, attention = recording.parts, ()
        hidden = hidden[:1] if parts is None else hidden[:: parts.states][:2]
    caught = [*hidden, *attention]
    with carrying(passage, route.rules), _gated(recording, route.gates) as (before, passed):
        source, put_in = logits, seed
        if route.spread:
            (top,) = torch.autograd.grad(logits, recording.hidden[-1:], seed, retain_graph=True)
            real, source = recording.real.to(top), recording.hidden[-1]
            shares = (real / real.sum(dim=1, keepdim=True))[..., None]
            put_in = top.sum(dim=1, keepdim=True) * shares
        found = torch.autograd.grad(source, caught, put_in, retain_graph=True, allow_unused=True)
    start = seed.flatten(1).sum(dim=1)
    layers = [relevance for relevance in found[: len(hidden)] if relevance is not None]
    if len(layers) != len(hidden):
        missing = next(layer for layer, relevance in enumerate(found) if relevance is None)
        raise UnsupportedModel(
            f"no relevance arrives at hidden state {missing} (0 is the embedding) as this model reports "
            "it; choose a method that reads no layer, such as occlusion."
        )
    if rewritten:
        start = torch.where(seed == 0, 0, seed * logits.detach()).flatten(1).sum(dim=1)
        pairs = zip(hidden, layers, strict=True)
        layers = [widened(state.detach()) * gradient for state, gradient in pairs]
    # Where none arrives (an attention map that counts as a constant) relevance is zero.
    maps: Sequence[Tensor] = [
        torch.zeros_like(tensor) if relevance is None else relevance
        for tensor, relevance in zip(attention, found[len(hidden) :], strict=True)
    ]
    if recording.unkept:
        sent_on = [passed.get(i, own) for i, own in enumerate(maps)]
        given = list(zip(recording.unkept[-len(maps) :], sent_on, strict=True))
        maps = all_widened(given, partial(_at_map, len(recording.rows), route.rules), in_turn=True)
    return Flow(layers, maps, start, [before[block] for block in sorted(before)])


def _at_map(examples: int, rules: RuleSet, _number: int, given: tuple[Unkept, Tensor]) -> Tensor:
    """Relevance at a map, of that at its product with the values."""
    made_of, relevance = given
    maps = widened(made_of.map())
    operands, output = (maps, widened(made_of.values)), widened(made_of.context.detach())
    case = RuleCase(output, operands, examples, active=(True, True))
    found = rules.rules[Operation.MATMUL](widened(relevance), case)[0]
    return torch.zeros_like(maps) if found is None else found


@contextmanager
def _gated(
    recording: Recording, gates: Mapping[int, Gate]
) -> Iterator[tuple[dict[int, Tensor], dict[int, Tensor]]]:
    """Put ``gates`` in the way of relevance at attention contexts; gives what arrived before each, and
    what went on."""
    if gates and not recording.contexts:
        raise UnsupportedModel(
            "relevance can only be masked by head where attention goes through transformers' interface, "
            "and this model's does not; use transatt, which needs no mask."
        )
    arrived: dict[int, Tensor] = {}
    passed: dict[int, Tensor] = {}

    def through(block: int, relevance: Tensor) -> Tensor:
        arrived[block] = relevance
        passed[block] = gates[block](relevance)
        return passed[block]

    with ExitStack() as undo:
        for block in gates:
            context: Any = recording.contexts[block]  # register_hook is not typed
            undo.callback(context.register_hook(partial(through, block)).remove)
        yield arrived, passed
