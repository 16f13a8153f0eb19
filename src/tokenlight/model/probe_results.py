"""Results of probing a model, kept for as long as the model lives.

Several ``ModelRunner`` objects may wrap one model (each ``Explainer`` makes its own), so these facts belong
to the model and not to the wrapper. The dictionary below is the only module-level state of this folder; it
holds models weakly and must therefore never store anything that refers back to its model. What hooks
remember between passes is in ``hooks/model_cache.py``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from torch import nn

from tokenlight.accel.modules import list_modules

if TYPE_CHECKING:
    from tokenlight.model.embedding_hooks import EmbeddingHooks, EmbeddingSite
    from tokenlight.model.regimes import ThresholdSides
    from tokenlight.model.runner import AttentionRoute


class FirstTokenProbe:
    """Whether a classifier reads the last hidden state of the first token alone, as long as it is the same.

    Attributes:
        is_confirmed: Whether it reads no other token.
    """

    def __init__(self, model: nn.Module, *, is_confirmed: bool) -> None:
        self.is_confirmed = is_confirmed
        modules = list_modules(model)
        self._modules = [ref(module) for module in modules]
        self._forwards = [type(module).forward for module in modules]

    def holds_for(self, model: nn.Module) -> bool:
        """Return whether no module of the probed model, and no ``forward`` of its classes, was replaced."""
        modules = list_modules(model)
        if len(modules) != len(self._modules):
            return False
        probed_modules = [reference() for reference in self._modules]
        forwards = [type(module).forward for module in modules]
        is_same = map(operator.is_, [*modules, *forwards], [*probed_modules, *self._forwards])
        return all(is_same)


@dataclass
class ProbeResults:
    """Results of probes of one model; None if the probe has not run yet.

    Attributes:
        is_padding_invariant: Whether padding leaves the logits of a short row unchanged.
        is_batch_invariant: Whether another row of the batch leaves them unchanged.
        padding_invariance_by_sides: The same as ``is_padding_invariant`` for longer rows, by the sides
            of the length thresholds (see ``regimes.py``) and by whether eager attention maps are read.
        verified_route: The route by which attention was recorded without a change of the logits.
        first_token_probe: Whether the head reads the last hidden state of the first token and of no other.
        embedding_hooks: Where the embeddings of a text enter the model.
    """

    is_padding_invariant: bool | None = None
    is_batch_invariant: bool | None = None
    padding_invariance_by_sides: dict[tuple[ThresholdSides, bool], bool] = field(
        default_factory=dict
    )
    verified_route: AttentionRoute | None = None
    first_token_probe: FirstTokenProbe | None = None
    embedding_hooks: dict[EmbeddingSite, EmbeddingHooks] = field(default_factory=dict)


_results_by_model: WeakKeyDictionary[nn.Module, ProbeResults] = WeakKeyDictionary()


def get_probe_results(model: nn.Module) -> ProbeResults:
    """Return the results of ``model``, empty ones on the first call."""
    results = _results_by_model.get(model)
    if results is None:
        # setdefault, because another thread may have stored results in the meantime.
        results = _results_by_model.setdefault(model, ProbeResults())
    return results
