"""State that a model keeps between passes, restored after each of our passes.

Some models change themselves while they run. BigBird replaces its attention permanently once a text is short,
rotary embeddings keep the frequencies of the last text, routers keep the capacity of the first batch. Without
restoring, a pass would depend on the one before it, and the user's model would stay changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from tokenlight.hooks.compat import (
    NON_PERSISTENT_BUFFERS,
    count_writes,
    get_attribute_tables,
    list_weights,
)

# Layers of these packages compute only from their weights, or keep a packed form that no text changes.
STATELESS_PACKAGES = frozenset({
    "torch", "bitsandbytes", "gptqmodel", "auto_gptq", "awq", "hqq", "optimum", "quanto", "torchao",
    "compressed_tensors", "aqlm", "eetq", "vptq",
})  # fmt: skip
_MISSING = object()
_TORCH_ATTRIBUTES = frozenset(vars(nn.Module()))


@dataclass
class StatefulParts:
    """Where a model may keep state. Modules are given by index, so that none of them is held.

    Attributes:
        modules: Modules that are not plain layers.
        containers: A module and the name of its attribute that is a list, a dict or a set.
        swaps_modules: Whether some module replaces others while it runs.
        replacements: By length regime, what a pass changed when it replaced modules, so that they are
            made only once.
    """

    modules: list[int]
    containers: list[tuple[int, str]]
    swaps_modules: bool
    replacements: dict[Any, list["Change"]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A value that a pass stored under ``name`` in one of the model's tables."""

    table: dict[str, Any]
    name: str
    value: Any

    def apply(self) -> None:
        """Store the value again, or remove the name where it was missing."""
        if self.value is _MISSING:
            self.table.pop(self.name, None)
        else:
            self.table[self.name] = self.value


@dataclass
class PassState:
    """Changes that a pass made to its model; empty until the pass has ended."""

    changes: list[Change] = field(default_factory=list)

    def reapply(self) -> None:
        """Bring the model into the state at the end of the pass."""
        for change in self.changes:
            change.apply()


def find_stateful_parts(modules: Sequence[nn.Module]) -> StatefulParts:
    """Find the modules and containers that a pass may change."""
    indices = list[int]()
    containers = list[tuple[int, str]]()
    for index, module in enumerate(modules):
        package = type(module).__module__.partition(".")[0]
        is_module_container = isinstance(module, nn.ModuleList | nn.ModuleDict)
        if package in STATELESS_PACKAGES and not is_module_container:
            continue
        indices.append(index)
        containers.append((index, NON_PERSISTENT_BUFFERS))
        for name, value in vars(module).items():
            if type(value) in (list, dict, set) and name not in _TORCH_ATTRIBUTES:
                containers.append((index, name))
    swaps_modules = any(hasattr(module, "set_attention_type") for module in modules)
    return StatefulParts(indices, containers, swaps_modules)


@contextmanager
def preserved_state(
    modules: Sequence[nn.Module],
    configs: Sequence[Any],
    parts: StatefulParts,
    regime: tuple[int, ...] = (),
) -> Iterator[PassState]:
    """Restore attributes, buffers, submodules and configs at the end of the block.

    A pass that writes into weights is not undone: what it noted elsewhere belongs to the new weights.

    Args:
        modules: All modules of the model, in the order of ``parts``.
        configs: Configs that its modules read.
        parts: Where state may be kept.
        regime: The length regime in which the pass runs.

    Yields:
        What the pass changed, filled in at the end of the block.
    """
    backup = _StateBackup(modules, configs, parts)
    state = PassState()
    for change in parts.replacements.get(regime, ()):
        change.apply()
    try:
        # A module that the model rebuilds draws random weights that are never read.
        with torch.random.fork_rng(devices=[], enabled=parts.swaps_modules):
            yield state
    finally:
        state.changes += backup.restore()
        if parts.swaps_modules and _has_new_modules(state.changes):
            parts.replacements[regime] = [
                change for change in state.changes if not isinstance(change.value, Tensor)
            ]


class _StateBackup:
    """Copies of everything in a model that a pass may change."""

    def __init__(
        self, modules: Sequence[nn.Module], configs: Sequence[Any], parts: StatefulParts
    ) -> None:
        self._tables: list[dict[str, Any]] = []
        for index in parts.modules:
            self._tables.extend(get_attribute_tables(modules[index]))
        self._tables.extend(vars(config) for config in configs)
        self._table_copies = [table.copy() for table in self._tables]
        self._containers = [vars(modules[index])[name] for index, name in parts.containers]
        self._container_copies = [container.copy() for container in self._containers]
        self._weights = list_weights(modules)
        self._weight_writes = _count_all_writes(self._weights)

    def restore(self) -> list[Change]:
        """Restore the model and return what had been changed; do nothing if weights were written."""
        if _count_all_writes(self._weights) != self._weight_writes:
            return []
        changes: list[Change] = []
        for table, copy in zip(self._tables, self._table_copies, strict=True):
            # The quick comparison first: hardly any table changes.
            if len(table) != len(copy) or not all(map(is_, table.values(), copy.values())):
                changes += _restore_table(table, copy)
        for container, copy in zip(self._containers, self._container_copies, strict=True):
            if not _has_same_objects(container, copy):
                _restore_container(container, copy)
        return changes


def _count_all_writes(weights: Sequence[Tensor]) -> list[int]:
    """Count in-place writes of each weight; torch does not count those of inference tensors."""
    return [count_writes(weight) for weight in weights if not weight.is_inference()]


def _has_new_modules(changes: Sequence[Change]) -> bool:
    return any(isinstance(change.value, nn.Module) for change in changes)


def _restore_table(table: dict[str, Any], copy: dict[str, Any]) -> list[Change]:
    """Restore the values of ``table`` and their order; return what had been changed."""
    changes = list[Change]()
    for name in {**copy, **table}:
        old_value = copy.get(name, _MISSING)
        new_value = table.get(name, _MISSING)
        if old_value is not new_value:
            changes.append(Change(table, name, new_value))
            Change(table, name, old_value).apply()
    if list(table) != list(copy):
        table.clear()
        table.update(copy)
    return changes


def _has_same_objects(container: Any, copy: Any) -> bool:
    """Return whether a list, a dict or a set holds the very objects of ``copy``."""
    if len(container) != len(copy) or not all(map(is_, container, copy)):
        return False
    return not isinstance(container, dict) or all(map(is_, container.values(), copy.values()))


def _restore_container(container: Any, copy: Any) -> None:
    """Fill a list, a dict or a set with the items of ``copy``."""
    container.clear()
    if isinstance(container, list):
        container.extend(copy)
    else:
        container.update(copy)
