"""Further passes over the texts of a tape: the second door of a method.

Three kinds: another backward over the recorded graph (:meth:`Rerun.slopes`), forward and backward at
other embeddings (:meth:`Rerun.gradients`), forward over other tokens (:meth:`Rerun.values`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.entrance import embedded
from tokenlight.capture.entrance_search import At, entrance_of
from tokenlight.capture.live import Inputs
from tokenlight.capture.objective import Objective, Of, slopes
from tokenlight.capture.packing import in_halves
from tokenlight.capture.perturbation import StandIns, Variant, stream_logits
from tokenlight.capture.transfer import sent, widened
from tokenlight.capture.turns import pause
from tokenlight.data.target import ResolvedTarget
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput
from tokenlight.relevance.case import RuleSet
from tokenlight.relevance.fork import carrying

if TYPE_CHECKING:
    from tokenlight.capture.tape import Recording

StandIn = Literal["pad", "mask", "unk", "zero"]
# Without a graph a batch may be wider than one of an explanation.
WIDER = {"cuda": 4}
Found = TypeVar("Found")
Read = Callable[[ResolvedTarget, np.ndarray], float]


class Rerun:
    """Further passes over one recording for its targets, packed by the recording's token budget."""

    def __init__(
        self,
        recording: Recording,
        targets: Sequence[ResolvedTarget],
        rules: RuleSet | None = None,
    ) -> None:
        self.recording, self.targets, self.rules = recording, tuple(targets), rules
        self.live = recording.live
        self._known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, compute: Callable[[], Found]) -> Found:
        """What ``compute`` gives, computed on the first call with this key: a method's scores and
        the measurements beside them come from the same passes."""
        if key not in self._known:
            self._known[key] = compute()
        found: Found = self._known[key]
        return found

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
        named = {f"embedding or hidden state {i}": tensor for i, tensor in enumerate(at)}
        with carrying(self.recording.passage, self.rules):
            found = slopes(self.live.model, total, named, retain_graph=True)
        return [self._out(gradient) for gradient in found]

    def gradients(
        self, examples: Tensor, point: Callable[[Tensor], Tensor], *, at: At, of: Of = "target"
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run each example as often as ``examples`` names it, with other embeddings.

        ``point``: numbers of passes (positions in ``examples``) to their embeddings, ``pass place
        hidden``. Gives, pack by pack: numbers of passes, value (``pass``), gradient at the
        embeddings (``pass place hidden``). A pack that memory does not hold goes in halves.
        """
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
        (gradient,) = slopes(self.live.model, values.sum(), {"the embeddings": begin})
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
        """The target at each changed text of each example, or what ``read`` makes of its logits, all of
        them packed together.

        Tokens may be replaced but not moved where a target names places, as a span's does.
        """
        budget = self.recording.budget * WIDER.get(self.live.device.type, 1)
        logits = stream_logits(self.live, chain.from_iterable(variants), batch_tokens=budget)
        return [
            np.array([float(read(target, next(logits))) for _ in own])
            for target, own in zip(self.targets, variants, strict=True)
        ]

    def stand_in(self, name: StandIn | int) -> int:
        """The token id that a named baseline puts in a token's place; ``zero`` is the id 0."""
        if isinstance(name, int) or name == "zero":
            given = 0 if name == "zero" else int(name)
            if not 0 <= given < self.live.vocabulary:
                raise BadInput(
                    f"baseline={given} is not a token: this model knows ids 0 to "
                    f"{self.live.vocabulary - 1}."
                )
            return given
        tokenizer = self.live.tokenizer
        if name == "pad":
            return StandIns.of(self.live, tokenizer).pad
        found = getattr(tokenizer, f"{name}_token_id", None)
        if found is None:
            raise BadInput(
                f"baseline={name!r} needs a tokenizer with such a token, and "
                f"{type(tokenizer).__name__ if tokenizer is not None else 'this Explainer'} has "
                "none; use baseline='pad' or a token id."
            )
        return int(found)

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
