"""The tape: what one forward pass leaves behind, and its gradients for one target.

A :class:`Recording` is one forward over a padded batch. A :class:`Tape` is that recording seen from
one target an example: gradients are asked of recorded tensors only, never of weights.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tokenlight.capture import seam
from tokenlight.capture.live import LiveModel, hidden_states_of
from tokenlight.capture.rewired import rewired
from tokenlight.errors import NotFinite, UnsupportedModel
from tokenlight.target import ResolvedTarget
from tokenlight.tokens import TokenRow


class Site(enum.Enum):
    """A place a method may read. What no method needs is not computed.

    ATTENTION: the maps A^l, ``batch head query key``; ATTENTION_GRADIENT: ∂y/∂A^l.
    RECEIVED: mean attention each token receives, ``batch token``, without the n × n map.
    HIDDEN: h^0 … h^L, ``batch token hidden``; HIDDEN_GRADIENT: ∂y/∂h^l.
    READOUT: which tokens the head reads.
    """

    ATTENTION = "attention"
    ATTENTION_GRADIENT = "attention gradient"
    RECEIVED = "attention received"
    HIDDEN = "hidden states"
    HIDDEN_GRADIENT = "hidden gradient"
    READOUT = "read-out"


Sites = frozenset[Site]
GRADIENTS = frozenset({Site.ATTENTION_GRADIENT, Site.HIDDEN_GRADIENT, Site.READOUT})


@dataclass(frozen=True, eq=False)
class Recording:
    """One forward pass over a right-padded batch."""

    rows: tuple[TokenRow, ...]
    real: Tensor  # batch token: no padding
    logits: Tensor  # on the graph
    hidden: tuple[Tensor, ...]
    attention: tuple[Tensor, ...]
    received: tuple[Tensor, ...]
    sites: Sites

    def tape(self, targets: Sequence[ResolvedTarget], *, last: bool) -> Tape:
        """The recording seen from ``targets``, one an example; ``last`` lets the graph go."""
        value = torch.stack(
            [target.value(logits) for target, logits in zip(targets, self.logits, strict=True)]
        )
        wanted = self._wanted()
        if not wanted:
            return Tape(self, tuple(targets))
        found = torch.autograd.grad(
            value.sum(), [tensor for _, tensor in wanted], retain_graph=not last, allow_unused=True
        )
        hidden: dict[int, Tensor] = {}
        attention: dict[int, Tensor] = {}
        for ((kind, layer), tensor), gradient in zip(wanted, found, strict=True):
            if gradient is None:
                raise UnsupportedModel(
                    f"the target does not depend on {kind} {layer} as this model reports it; its "
                    "gradient cannot be taken, so the model is refused."
                )
            (hidden if kind == "hidden state" else attention)[layer] = gradient.to(tensor.dtype)
        return Tape(self, tuple(targets), hidden, attention)

    def _wanted(self) -> list[tuple[tuple[str, int], Tensor]]:
        wanted = []
        if Site.HIDDEN_GRADIENT in self.sites:
            wanted += [(("hidden state", i), state) for i, state in enumerate(self.hidden)]
        elif Site.READOUT in self.sites:
            wanted.append((("hidden state", len(self.hidden) - 1), self.hidden[-1]))
        if Site.ATTENTION_GRADIENT in self.sites:
            wanted += [(("attention map", i), maps) for i, maps in enumerate(self.attention)]
        return wanted


@dataclass(frozen=True, eq=False)
class Readout:
    """Which tokens the head reads: where the gradient at the last hidden state is not zero.

    ``weights``: ``batch token``, equal over the rows that are read, summing to one. ``single``:
    ``batch``, true where one token alone is read ([CLS], the last token, a span's start).
    """

    weights: Tensor
    single: Tensor


@dataclass(frozen=True, eq=False)
class Tape:
    """Values and gradients of one batch for one target an example; layers in order, bottom first.

    Half-precision recordings are handed out in float32. Gradients of attention maps are zero at
    padding, on both axes.
    """

    recording: Recording
    targets: tuple[ResolvedTarget, ...]
    _hidden: dict[int, Tensor] = field(default_factory=dict)
    _attention: dict[int, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[TokenRow, ...]:
        """The tokens of each example."""
        return self.recording.rows

    @cached_property
    def real(self) -> Tensor:
        """``batch token``, true where a token is no padding."""
        return self.recording.real.to(self.recording.logits.device)

    @cached_property
    def lengths(self) -> Tensor:
        """``batch``: number of real tokens."""
        return self.real.sum(dim=1)

    @cached_property
    def padded(self) -> bool:
        """Whether any example is shorter than the batch is wide."""
        return not bool(self.real.all())

    @cached_property
    def attention(self) -> list[Tensor]:
        """A^1 … A^L, each ``batch head query key``."""
        return [self._out(maps) for maps in self.recording.attention]

    @cached_property
    def attention_gradient(self) -> list[Tensor]:
        """∂y/∂A^1 … ∂y/∂A^L, each ``batch head query key``."""
        gradients = [self._out(self._attention[i]) for i in sorted(self._attention)]
        if self.padded:  # a padded key has attention 0 but not gradient 0
            padding = ~(self.real[:, None, :, None] & self.real[:, None, None, :])
            gradients = [gradient.masked_fill(padding, 0.0) for gradient in gradients]
        return gradients

    @cached_property
    def received(self) -> list[Tensor]:
        """Attention each token receives, mean over heads and real queries; each ``batch token``."""
        if self.recording.received:
            return [self._out(share) for share in self.recording.received]
        return [self.mean_query(maps.mean(dim=1)) for maps in self.attention]

    @cached_property
    def hidden(self) -> list[Tensor]:
        """h^0 … h^L, each ``batch token hidden``."""
        return [self._out(state) for state in self.recording.hidden]

    @cached_property
    def hidden_gradient(self) -> list[Tensor]:
        """∂y/∂h^0 … ∂y/∂h^L, each ``batch token hidden``."""
        return [self._out(self._hidden[i]) for i in sorted(self._hidden)]

    @cached_property
    def readout(self) -> Readout:
        """Found from the gradient at the last hidden state; no table of architectures."""
        last = self._hidden[len(self.recording.hidden) - 1].to(self.real.device)
        read = (last.abs().amax(dim=-1) > 0) & self.real
        count = read.sum(dim=1)
        if bool((count == 0).any()):
            row = int((count == 0).nonzero()[0])
            raise NotFinite(
                f"the target {self.targets[row].name!r} has gradient zero at every token of text "
                f"{row} of the batch, so the token the head reads cannot be found; the head may be "
                "saturated or dead for this text."
            )
        weights = read.to(self._dtype) / count[:, None].to(self._dtype)
        return Readout(weights, count == 1)

    def read(self, matrix: Tensor, *, zero_readout: bool = True) -> Tensor:
        """Row(s) of ``matrix`` (``batch query key``) that the head reads, their mean where several.

        A single read-out token's own score is set to zero, as all row-reading official codes do.
        """
        row = torch.einsum("bq,bqk->bk", self.readout.weights.to(matrix.dtype), matrix)
        if not zero_readout:
            return row
        own = (self.readout.weights > 0) & self.readout.single[:, None]
        return row.masked_fill(own, 0.0)

    def mean_query(self, matrix: Tensor) -> Tensor:
        """Mean over real queries of ``batch query key``: ``batch key``."""
        share = self.real.to(matrix.dtype) / self.lengths[:, None].to(matrix.dtype)
        return torch.einsum("bq,bqk->bk", share, matrix)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.recording.logits.dtype, torch.float32)

    def _out(self, tensor: Tensor) -> Tensor:
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        return tensor.detach().to(self.recording.logits.device, dtype)


def record(live: LiveModel, rows: Sequence[TokenRow], sites: Sites) -> Recording:
    """Run the model once over ``rows`` and keep what ``sites`` asks for."""
    arguments, real, filler = live.inputs(rows)
    maps = bool({Site.ATTENTION, Site.ATTENTION_GRADIENT} & sites)
    wanted: seam.Wanted = "maps" if maps else "received" if Site.RECEIVED in sites else "nothing"
    eager = live.route == "eager" and wanted != "nothing"
    name = seam.NAME if live.route == "seam" else "own"
    listener = seam.Listener(wanted, real, live.listens_to)
    flags = {"output_attentions": True} if eager else {}
    with (
        rewired(live.model, attention=name, gradients=bool(GRADIENTS & sites), filler=filler),
        seam.listening(listener),
    ):
        outputs = live.call(arguments, output_hidden_states=True, **flags)
        logits = live.logits_of(outputs)
        hidden = hidden_states_of(live, outputs)
        attention = tuple(listener.maps)
        if eager:
            attention = _eager_maps(live, outputs)
    _one_map_a_block(live, wanted, eager, len(attention) or len(listener.received), hidden, real)
    if not bool(torch.isfinite(logits.detach()).all()):
        bad = int((~torch.isfinite(logits.detach().flatten(1)).all(dim=1)).nonzero()[0])
        raise NotFinite(_first_not_finite(hidden, bad))
    kept = _maps_kept(attention, sites) if wanted != "nothing" else ()
    return Recording(tuple(rows), real, logits, hidden, kept, tuple(listener.received), sites)


def _maps_kept(attention: tuple[Tensor, ...], sites: Sites) -> tuple[Tensor, ...]:
    on_graph = Site.ATTENTION_GRADIENT in sites
    return attention if on_graph else tuple(maps.detach() for maps in attention)


def _eager_maps(live: LiveModel, outputs: object) -> tuple[Tensor, ...]:
    name = "encoder_attentions" if live.model.config.is_encoder_decoder else "attentions"
    maps = getattr(outputs, name, None) or ()
    if not maps or any(not isinstance(found, Tensor) for found in maps):
        raise UnsupportedModel(
            f"{type(live.model).__name__} neither routes its attention through transformers' "
            "interface nor gives its attention maps; methods that read attention cannot work on it."
        )
    return tuple(maps)


def _one_map_a_block(
    live: LiveModel, wanted: str, eager: bool, maps: int, hidden: tuple[Tensor, ...], real: Tensor
) -> None:
    if len({state.shape for state in hidden}) > 1 or hidden[0].shape[:2] != real.shape:
        raise UnsupportedModel(
            f"{type(live.model).__name__} changes the number or width of its tokens between layers "
            f"({', '.join(str(tuple(state.shape)) for state in hidden)}); scores could not be laid "
            "over the input's tokens."
        )
    if wanted != "nothing" and maps != len(hidden) - 1:
        route = "its attentions" if eager else "the attention seam"
        raise UnsupportedModel(
            f"{type(live.model).__name__} has {len(hidden) - 1} blocks but {maps} self-attention "
            f"maps came through {route}; methods that read attention need exactly one a block "
            "(state-space and hybrid models have none in some)."
        )


def _first_not_finite(hidden: tuple[Tensor, ...], example: int) -> str:
    for layer, state in enumerate(hidden):
        if not bool(torch.isfinite(state.detach()[example]).all()):
            return (
                f"hidden state {layer} (0 is the embedding) of text {example} of the batch holds "
                "NaN or infinity; check the weights, or load the model in float32 or bfloat16."
            )
    return f"the head gives NaN or infinity for text {example} of the batch."
