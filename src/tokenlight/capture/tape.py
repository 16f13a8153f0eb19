"""The tape: what one forward pass leaves behind, and its gradients for one target.

A :class:`Recording` is one forward over a padded batch. A :class:`Tape` is that recording seen from
one target an example: gradients are asked of recorded tensors only, never of weights.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.attention import Unkept
from tokenlight.capture.blocks import Mixing, Parts
from tokenlight.capture.entrance import Entered
from tokenlight.capture.live import LiveModel
from tokenlight.capture.maps import Maps
from tokenlight.capture.objective import (
    Predicted,
    first_not_finite,
    read_somewhere,
    slopes,
    sum_of_targets,
)
from tokenlight.capture.rerun import Flow, Rerun, Route, send
from tokenlight.capture.transfer import Answer, Fetched, dotted, sent, widened
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import NotFinite
from tokenlight.relevance.fork import Passage, carrying
from tokenlight.relevance.rules import Operation, RuleSet
from tokenlight.relevance.rulesets import ATTENTION_CONSTANT


class Site(enum.Enum):
    """A place a method may read. What no method needs is not computed.

    ATTENTION: the maps A^l, ``batch head query key``; ATTENTION_GRADIENT: ∂y/∂A^l.
    RECEIVED: mean attention each token receives, ``batch token``, without the n × n map.
    HIDDEN: h^0 … h^L, ``batch token hidden``; HIDDEN_GRADIENT: ∂y/∂h^l.
    READOUT: which tokens the head reads. RELEVANCE: relevance at h^l and A^l by any rule set.
    RELEVANCE_GRADIENT: relevance at h^l by rewritten gradients, without the n × n map.
    VALUES: attention contexts and values. MIXING: how each block adds attention to its input.
    EMBEDDED: h^0 wherever the text comes in, its decoder included; EMBEDDED_GRADIENT: ∂y/∂h^0 there.
    WORDS: token embeddings, before positions and norm. GRAPH: the graph, kept for ``Tape.rerun``.
    """

    ATTENTION = "attention"
    ATTENTION_GRADIENT = "attention gradient"
    RECEIVED = "attention received"
    HIDDEN = "hidden states"
    HIDDEN_GRADIENT = "hidden gradient"
    READOUT = "read-out"
    RELEVANCE = "relevance"
    RELEVANCE_GRADIENT = "relevance by gradients"
    VALUES = "attention values"
    MIXING = "mixing"
    EMBEDDED = "embeddings"
    EMBEDDED_GRADIENT = "embedding gradient"
    WORDS = "token embeddings"
    GRAPH = "graph"


Sites = frozenset[Site]
ENTERED = frozenset({Site.EMBEDDED, Site.EMBEDDED_GRADIENT, Site.WORDS, Site.GRAPH})
STATES = frozenset({Site.HIDDEN, Site.HIDDEN_GRADIENT, Site.READOUT, Site.RELEVANCE_GRADIENT})
UNLISTENED = ENTERED | STATES  # need no attention
GRADIENTS = UNLISTENED - {Site.HIDDEN, Site.EMBEDDED} | {Site.ATTENTION_GRADIENT, Site.RELEVANCE}
MAPS = frozenset(
    {Site.ATTENTION, Site.ATTENTION_GRADIENT, Site.RELEVANCE, Site.VALUES, Site.MIXING}
)


@dataclass(frozen=True, eq=False)
class Recording:
    """One forward pass over a right-padded batch."""

    rows: tuple[TokenRow, ...]
    real: Tensor  # batch token: no padding
    logits: Tensor  # on the graph
    fetched: Fetched  # the same numbers, on their way from the device
    hidden: tuple[Tensor, ...]
    attention: Sequence[Tensor]
    received: tuple[Tensor, ...]
    sites: Sites
    live: LiveModel
    budget: int  # tokens that may go through the model at once
    passage: Passage | None = None  # to relevance, where it was asked for
    contexts: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()
    mixings: tuple[Mixing, ...] = ()
    embedded: Entered | None = None
    words: Entered | None = None
    sunk: bool = False  # each row of attention left some to a sink, which is no token
    parts: Parts | None = None  # an encoder's and a decoder's, where the rows are read by both
    padded: bool = False  # some row is shorter than the batch is wide
    unkept: tuple[Unkept, ...] = ()  # what the maps are made of, where each is made when it is read

    @cached_property
    def read(self) -> np.ndarray:
        """The logits, float64; here the device is waited for, as far as the forward."""
        values = self.fetched.arrived()
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            text, states = int(finite.argmin()), self.hidden
            if len(states) < 2:  # a pass that read the embeddings alone did not keep them
                given = self.live.inputs(self.rows, self.real.shape[1])
                outputs, _ = self.live.run(given, output_hidden_states=True)
                states = self.live.hidden_states_of(outputs)
            raise NotFinite(
                f"{first_not_finite(state[text] for state in states)} of text {text} of the batch is NaN"
                " or infinite; check the weights, or load the model in float32 or bfloat16."
            )
        return values

    @torch.inference_mode(mode=False)
    def tape(self, targets: Sequence[ResolvedTarget], *, last: bool) -> "Tape":
        """The recording seen from ``targets``, one an example; ``last`` lets the graph go."""
        targets = targets if isinstance(targets, Predicted) else tuple(targets)
        with torch.enable_grad():
            value = sum_of_targets(self.logits, targets)
        wanted = self._wanted()
        if not wanted:
            return Tape(self, targets)
        sides = self.live.head.kind == "span" and any(len(target.terms) > 1 for target in targets)
        # The graph may have a use after the gradients: relevance, a rerun, an answer's sides.
        again = sides or not last or self.passage is not None or Site.GRAPH in self.sites
        at = [*chain(*wanted.values())]
        found = iter(slopes(self.live.model, value, at, retain_graph=again))
        gradients = {k: [next(found).to(one.dtype) for one in own] for k, own in wanted.items()}
        return Tape(self, targets, gradients)

    def laid(self, number: int, maps: Tensor | Unkept) -> Tensor:
        """A map or its gradient over all tokens, half precision in float32."""
        maps = maps.map() if isinstance(maps, Unkept) else maps
        found = widened(maps.detach(), self.logits.device)
        return found if self.parts is None else self.parts.map(number, found)

    def _wanted(self) -> dict[str, Sequence[Tensor]]:
        """At what a gradient is taken; of the read-out alone, at the last hidden state."""
        wanted: dict[str, Sequence[Tensor]] = {}
        if {Site.HIDDEN_GRADIENT, Site.READOUT} & self.sites:
            whole = Site.HIDDEN_GRADIENT in self.sites
            wanted["hidden state"] = self.hidden if whole else self.hidden[-1:]
        constant = self.passage is not None and self.passage.rules is ATTENTION_CONSTANT
        if Site.ATTENTION_GRADIENT in self.sites and not constant:
            wanted["attention map"] = [own.context for own in self.unkept] or self.attention
        if Site.EMBEDDED_GRADIENT in self.sites and self.embedded is not None:
            wanted["embedding"] = self.embedded.tensors
        return wanted


@dataclass(frozen=True, eq=False)
class Tape:
    """Values and gradients of one batch for one target per example; layers in order, bottom first.

    Half-precision recordings are handed out in float32. Gradients of attention maps are zero at
    padding, on both axes.
    """

    recording: Recording
    targets: Sequence[ResolvedTarget]
    _gradients: dict[str, list[Tensor]] = field(default_factory=dict)
    _flows: dict[tuple[object, ...], Flow] = field(default_factory=dict)
    _parts: dict[tuple[object, ...], "Tape"] = field(default_factory=dict)
    rules: RuleSet | None = None  # by which its gradients are rewritten
    # What is asked of the device's answers, and of the targets, before any score is believed.
    checks: list[Answer] = field(default_factory=list)

    def rewritten(self, rules: RuleSet | None) -> "Tape":
        """With gradients rewritten by ``rules`` (Site.RELEVANCE_GRADIENT), or the model's own."""
        return self if rules is self.rules else self._seen_from(self.targets, rules)

    def _seen_from(self, targets: Sequence[ResolvedTarget], rules: RuleSet | None) -> "Tape":
        key = targets, rules and rules.name
        if key not in self._parts:
            with carrying(self.recording.passage, rules):
                seen = self.recording.tape(targets, last=False)
            self._parts[key] = replace(seen, rules=rules, checks=self.checks)
        return self._parts[key]

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The tokens of each example."""
        return self.recording.rows

    @property
    def spans(self) -> bool:
        """Whether the targets are answer spans: then the rows read are those of answer tokens."""
        return self.recording.live.head.kind == "span"

    @cached_property
    def real(self) -> Tensor:
        """``batch token``, true where a token is no padding."""
        return self.recording.real.to(self.recording.logits.device)

    @cached_property
    def lengths(self) -> Tensor:
        """``batch``: number of real tokens."""
        return self.real.sum(dim=1)

    @cached_property
    def maps(self) -> Maps:
        """A^l, ∂y/∂A^l, and their means over heads."""
        # Of a product's gradient a rewritten one leaves each factor its share.
        share = self.rules.splits[Operation.MATMUL]((True, True))[0] if self.rules else 1.0
        return Maps(self.recording, self._gradients.get("attention map"), share)

    @property
    def attention(self) -> Sequence[Tensor]:
        """A^1 … A^L, each ``batch head query key``."""
        return self.maps.attention

    @property
    def attention_gradient(self) -> Sequence[Tensor]:
        """∂y/∂A^1 … ∂y/∂A^L, each ``batch head query key``."""
        return self.maps.gradient

    @cached_property
    def received(self) -> Tensor:
        """Attention each token receives, mean over heads and real queries: ``batch layer token``."""
        if self.recording.received:
            shares = torch.stack([self._out(share) for share in self.recording.received], dim=1)
            return shares.sum(dim=2) if shares.dim() == 4 else shares  # a kernel leaves heads apart
        means, parts = self.maps.mean_attention(), self.recording.parts
        if parts is None:
            return torch.stack([self.mean_query(mean) for mean in means], dim=1)
        return torch.stack(parts.received(means, self.real), dim=1)

    @cached_property
    def activations(self) -> Tensor:
        r""":math:`\sum_k h^l_{i,k}\,\partial y/\partial h^l_{i,k}` of h^0 … h^L: ``batch layer token``."""
        states, slopes = self.recording.hidden, self._gradients["hidden state"]
        if self.recording.parts is not None:
            states, slopes = tuple(self.hidden), self.hidden_gradient
        return dotted(states, slopes, self.recording.logits.device)

    @cached_property
    def hidden(self) -> list[Tensor]:
        """h^0 … h^L, each ``batch token hidden``."""
        return [self._state(i, state) for i, state in enumerate(self.recording.hidden)]

    @cached_property
    def hidden_gradient(self) -> list[Tensor]:
        """∂y/∂h^0 … ∂y/∂h^L, each ``batch token hidden``."""
        return [self._state(i, one) for i, one in enumerate(self._gradients["hidden state"])]

    def states(self, which: Literal["input", "output"]) -> list[int]:
        """The hidden states that enter a block, or leave one."""
        count, parts = len(self.recording.hidden), self.recording.parts
        if which == "input":
            return list(range(count - 1))  # an encoder's last enters its decoder's blocks
        return [i for i in range(1, count) if parts is None or i != parts.states]

    @property
    def embedded(self) -> Entered:
        """h^0 wherever the text comes in; its ``values`` are ``batch place hidden``."""
        assert self.recording.embedded is not None, "this recording was made without Site.EMBEDDED"
        return self.recording.embedded

    @property
    def words(self) -> Entered:
        """The token tables' output, likewise."""
        assert self.recording.words is not None, "this recording was made without Site.WORDS"
        return self.recording.words

    @cached_property
    def embedded_gradient(self) -> Tensor:
        """∂y/∂h^0, ``batch place hidden``."""
        return self.embedded.joined(self._gradients["embedding"])

    @cached_property
    def readout(self) -> Tensor:
        """Which tokens the head reads, ``batch token``: equal shares, summing to one, where the gradient
        at the last hidden state is not zero; no table of architectures."""
        top = len(self.recording.hidden) - 1
        last = self._state(top, self._gradients["hidden state"][-1])
        read = (last.abs().amax(dim=-1) > 0) & self.real
        count = read.sum(dim=1)
        self.checks.append(Answer(Fetched(count), read_somewhere))
        return read.to(self._dtype) / count.clamp(min=1)[:, None].to(self._dtype)

    @cached_property
    def read_alone(self) -> Tensor:
        """``batch token``: the one token that is read, where there is only one ([CLS], the last)."""
        return self.readout == 1

    def read(self, matrix: Tensor, *, zero_readout: bool = True) -> Tensor:
        """Row(s) of ``matrix`` (``batch query key``) that the head reads, their mean where several.

        ``zero_readout``, as most row-reading official codes do: :meth:`without_own_cell` first.
        """
        if zero_readout:
            matrix = self.without_own_cell(matrix)
        return torch.einsum("bq,bqk->bk", self.readout.to(matrix.dtype), matrix)

    def without_own_cell(self, matrix: Tensor) -> Tensor:
        """``batch query key`` with zero where a class's single read-out token looks at itself; for
        answers at cell [0, 0], wherever they stand: their own tokens matter."""
        own = self._cleared
        return matrix.masked_fill(own[:, :, None] & own[:, None, :], 0.0)

    def without_readout(self, scores: Tensor) -> Tensor:
        """Scores (``batch token``) with zero at a class's single read-out token; for answers at the
        first token, as the official codes have it."""
        return scores.masked_fill(self._cleared, 0.0)

    @cached_property
    def _cleared(self) -> Tensor:
        """``batch token``: the token that says nothing of itself."""
        if not self.spans:
            return self.read_alone
        first = torch.zeros_like(self.real)
        first[:, 0] = True
        return first

    def mean_query(self, matrix: Tensor) -> Tensor:
        """Mean over real queries of ``batch query key``: ``batch key``."""
        share = self.real.to(matrix.dtype) / self.lengths[:, None].to(matrix.dtype)
        return torch.einsum("bq,bqk->bk", share, matrix)

    @property
    def terms(self) -> list[tuple[Tensor, "Tape"]]:
        """Each logit of the target by itself, with its weight (``batch``): relevance of a sum is not
        the sum of relevances, so a contrast or a span goes down once a logit."""
        return self._parted(
            lambda own: [(weight, replace(own, terms=((at, 1.0),))) for at, weight in own.terms]
        )

    @property
    def sides(self) -> list[tuple[Tensor, "Tape"]]:
        """An answer's start and its end by themselves, weight 1 (``batch``; 0 where the target has no
        such side): its map is the sum of theirs. Any other target stays whole."""
        return self._parted(lambda own: [(1.0, side) for side in own.sides])

    def _parted(
        self, split: Callable[[ResolvedTarget], list[tuple[float, ResolvedTarget]]]
    ) -> list[tuple[Tensor, "Tape"]]:
        """The targets that each example's target falls into, with their weights, turn by turn; never kept,
        for a tape that held itself would hold its graph until Python looks for cycles."""
        if isinstance(self.targets, Predicted):  # of one logit each
            return [(torch.ones_like(self.lengths, dtype=self._dtype), self)]
        found, parts = [], [split(own) for own in self.targets]
        for turn in range(max(map(len, parts))):
            # Targets with fewer parts than others ride along with weight 0.
            weights, targets = zip(
                *(own[turn] if turn < len(own) else (0.0, own[-1][1]) for own in parts), strict=True
            )
            scales = sent(weights, self.real.device, self._dtype)
            whole = targets == self.targets
            found.append((scales, self if whole else self._seen_from(targets, self.rules)))
        return found

    @cached_property
    def rerun(self) -> Rerun:
        """Further passes over these texts for these targets."""
        return Rerun(self.recording, self.targets, self.rules)

    def relevance(self, route: Route) -> Flow:
        """Relevance of the target, of one logit unless gradients are rewritten; a route is followed once."""
        key = (route.rules.name, route.spread, route.key)
        for whole in (False, route.top_only):  # a flow to the bottom has passed the top, too
            if (*key, whole) in self._flows:
                return self._flows[*key, whole]
        flow = self._flows[*key, route.top_only] = send(self.recording, self.targets, route)
        return flow

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.recording.logits.dtype, torch.float32)

    def _state(self, layer: int, tensor: Tensor) -> Tensor:
        parts, tensor = self.recording.parts, self._out(tensor)
        return tensor if parts is None else parts.state(layer, tensor)

    def _out(self, tensor: Tensor) -> Tensor:
        return widened(tensor.detach(), self.recording.logits.device)
