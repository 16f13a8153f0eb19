"""Per-model cache of facts that are expensive to recompute.

What probes found out about a model, such as whether padding changes it, is in ``model/probe_results.py``.
"""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from torch import nn
from transformers import PreTrainedModel

from tokenlight.hooks.compat import has_attention_switch
from tokenlight.hooks.embedding_layers import list_embedding_inputs
from tokenlight.hooks.locks import OrderedLock, get_locks
from tokenlight.hooks.state import StatefulParts, find_stateful_parts


@dataclass(frozen=True, slots=True)
class SavedHook:
    """A hook of transformers, with the index of its module, the table that holds it, and its key there."""

    module_index: int
    table_name: str
    key: int
    hook: Any

    def find_table(self, modules: Sequence[nn.Module]) -> dict[int, Any]:
        """Return the table of the module that holds the hook."""
        table: dict[int, Any] = getattr(modules[self.module_index], self.table_name)
        return table


@dataclass
class ModelLayout:
    """Structure of a model. Modules are held by weak reference or index, so that the model can be freed.

    Attributes:
        modules: All modules.
        configs: Configs that choose an attention implementation, each once.
        locks: The locks of modules and configs.
        embedding_indices: The modules at which the graph of a pass begins.
        stateful: Where the model may keep state.
        output_hooks: Hooks with which transformers collects hidden states and maps.
        marked_modules: The modules that transformers marks as having these hooks.
        switchable_attention: Attention implementations to which the model was switched with success.
        has_unbroken_graph: Whether a pass was seen whose graph reaches from the logits to the embeddings.
    """

    modules: list[ReferenceType[nn.Module]]
    configs: list[Any]
    locks: list[OrderedLock]
    embedding_indices: list[int]
    stateful: StatefulParts
    output_hooks: list[SavedHook] = field(default_factory=list)
    marked_modules: list[int] = field(default_factory=list)
    switchable_attention: set[str] = field(default_factory=set)
    has_unbroken_graph: bool = False

    def is_made_of(self, modules: list[nn.Module]) -> bool:
        """Return whether the model still has these modules."""
        return [reference() for reference in self.modules] == modules


@dataclass(eq=False)
class ModelCache:
    """Everything that is remembered of one model.

    Attributes:
        checked_passes: Kinds of passes in which every operation was found to have a relevance rule.
        first_block_takes_embeddings: Whether the first block was seen to take h^0 as its input.
    """

    checked_passes: set[Hashable] = field(default_factory=set)
    first_block_takes_embeddings: bool = False
    _layout: ModelLayout | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get_layout(self, model: PreTrainedModel, modules: list[nn.Module]) -> ModelLayout:
        """Return the layout of ``model``, which is recomputed if its modules have changed."""
        with self._lock:
            if self._layout is None or not self._layout.is_made_of(modules):
                self._layout = _find_layout(model, modules)
            return self._layout


# This dictionary stays global: a user may wrap one model in several explainers, which share what is known of
# it, and an attribute of the model itself would be copied, saved and compared together with it.
_caches: WeakKeyDictionary[nn.Module, ModelCache] = WeakKeyDictionary()
_caches_lock = threading.Lock()


def get_model_cache(model: nn.Module) -> ModelCache:
    """Return the cache of ``model``, which lives as long as the model."""
    with _caches_lock:
        cache = _caches.get(model)
        if cache is None:
            cache = ModelCache()
            _caches[model] = cache
        return cache


def _find_layout(model: PreTrainedModel, modules: list[nn.Module]) -> ModelLayout:
    embedding_indices = [modules.index(module) for module in list_embedding_inputs(model)]
    # Configs have no hash, so they are told apart by id.
    configs_by_id: dict[int, Any] = {}
    for module in modules:
        config = vars(module).get("config")
        if has_attention_switch(config):
            configs_by_id[id(config)] = config
    configs = list(configs_by_id.values())
    return ModelLayout(
        modules=[ref(module) for module in modules],
        configs=configs,
        locks=get_locks([*modules, *configs]),
        embedding_indices=embedding_indices,
        stateful=find_stateful_parts(modules),
    )
