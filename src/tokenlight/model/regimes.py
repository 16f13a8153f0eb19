"""Which rows may share a batch, since a model may compute a row by its length or by its neighbors.

A regime is what a model chooses by the length of the batch: the factors of its rotary embedding, or full
instead of block-sparse attention. It sees the longest row, padding included, so rows of two regimes never
share a batch. A model without such a choice has one regime, the empty tuple.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from tokenlight.accel.modules import list_modules
from tokenlight.model.model_row import ModelRow
from tokenlight.model.packing import compute_shape_key

Regime = tuple[int, ...]  # one number per choice; 0 below its threshold
ThresholdSides = tuple[int, ...]  # one number per choice: 0 below its threshold, 1 beyond it
RowT = TypeVar("RowT", bound=ModelRow)
LengthRule = Callable[[int], int]
GROWING_ROPE_TYPES = ("dynamic", "longrope", "su", "yarn_dynamic")  # they follow the batch length


class BatchRules:
    """Conditions under which rows of one model may share a batch.

    Attributes:
        is_batch_invariant: Whether a row's result is independent of the other rows of its batch.
        padding_sensitive: The sides (see :meth:`find_threshold_sides`) on which padding changes a row.
    """

    def __init__(self, model: nn.Module) -> None:
        self._rules = find_length_rules(model)
        self.is_batch_invariant = not shares_capacity(model)
        self.padding_sensitive: set[ThresholdSides] = set()

    @property
    def has_thresholds(self) -> bool:
        """Whether the model computes differently by the length of a batch."""
        return bool(self._rules)

    def find_regime_of_length(self, length: int) -> Regime:
        """Return the regime of a batch that is ``length`` tokens wide."""
        return tuple(rule(length) for rule in self._rules)

    def find_regime_of_pass(self, arguments: Mapping[str, Tensor], token_mask: Tensor) -> Regime:
        """Return the regime of a batch, by the tokens that the encoder reads if there is one."""
        input_ids = arguments.get("input_ids")
        if input_ids is None:
            return self.find_regime_of_length(token_mask.shape[1])
        return self.find_regime_of_length(input_ids.shape[1])

    def find_regime(self, row: ModelRow) -> Regime:
        """Return the regime of a row by itself; for a source and a continuation, both regimes joined."""
        if not self._rules:
            return ()
        source_length = row.source_length
        if source_length is None:
            return self.find_regime_of_length(len(row))
        return self.find_regime_of_length(source_length) + self.find_regime_of_length(
            len(row) - source_length
        )

    def find_threshold_sides(self, row: ModelRow) -> ThresholdSides:
        """Return for each threshold 1 if the row is beyond it, else 0.

        A model is verified once for each combination.
        """
        return _find_sides(self.find_regime(row))

    def compute_regime_key(self, row: ModelRow) -> tuple[int, ...]:
        """Return what rows of one batch have in common, apart from the shapes of their inputs."""
        if not self._rules:
            return ()
        regime = self.find_regime(row)
        if self.find_threshold_sides(row) in self.padding_sensitive:
            return (*regime, len(row))
        return regime

    def compute_batch_keys(self, rows: Sequence[ModelRow]) -> list[tuple[int, ...]]:
        """Return a key for each row; rows with different keys may not share a batch."""
        if not self._rules:
            return [compute_shape_key(row) for row in rows]
        return [(*self.compute_regime_key(row), *compute_shape_key(row)) for row in rows]

    def pick_probe_rows(self, rows: Sequence[RowT]) -> list[RowT]:
        """Return the first row of each combination of sides: those with which the model is verified."""
        if not self._rules:
            return list(rows[:1])
        first_rows: dict[ThresholdSides, RowT] = {}
        for row in rows:
            first_rows.setdefault(self.find_threshold_sides(row), row)
        return list(first_rows.values())

    def find_longest_length_on_short_sides(self, longest: int) -> int:
        """Return the largest length up to ``longest`` on the same side of every threshold as one token."""
        if not self._rules:
            return longest
        sides = self._find_threshold_sides_of_length(1)
        return max(
            length
            for length in range(1, longest + 1)
            if self._find_threshold_sides_of_length(length) == sides
        )

    def find_shortest_length_on_sides_of(self, length: int) -> int:
        """Return the smallest length on the same side of every threshold as ``length``.

        It is found by halving: a rule that is positive at some length is so at all greater ones.
        """
        low = 1
        high = length
        sides = self._find_threshold_sides_of_length(length)
        while low < high:
            middle = (low + high) // 2
            if self._find_threshold_sides_of_length(middle) == sides:
                high = middle
            else:
                low = middle + 1
        return low

    def _find_threshold_sides_of_length(self, length: int) -> ThresholdSides:
        return _find_sides(self.find_regime_of_length(length))

    def may_be_padded(self, length: int, width: int) -> bool:
        """Return whether a row of ``length`` tokens stays in its regime when padded to ``width``."""
        return self.find_regime_of_length(length) == self.find_regime_of_length(width)


def _find_sides(regime: Regime) -> ThresholdSides:
    return tuple(int(choice > 0) for choice in regime)


def find_length_rules(model: nn.Module) -> list[LengthRule]:
    """Find every choice that the model makes by the length of a batch."""
    rules: dict[Any, LengthRule] = {}
    for module in list_modules(model):
        for key, rule in _iter_module_rules(module):
            rules.setdefault(key, rule)  # the same choice, made by many modules, is one rule
    if not rules and _names_growing_rope(model):
        rules["unknown"] = _exact_length_regime
    return list(rules.values())


def _iter_module_rules(module: nn.Module) -> Iterator[tuple[Any, LengthRule]]:
    """Yield the choices of one module by length, each with a key that equal choices share."""
    yield from _iter_rope_rules(module)
    if hasattr(module, "set_attention_type") and hasattr(module, "config"):
        yield "sparse", partial(_block_sparse_regime, module)
    for field in ("index_topk", "keep_window_size"):  # DeepSeek's and Doge's sparse attention
        max_selected = getattr(module, field, None)
        if isinstance(max_selected, int):
            yield ("sparse index", max_selected), partial(_sparse_index_regime, max_selected)
    if hasattr(module, "chunk_length") and hasattr(module, "num_buckets"):
        yield "buckets", partial(_bucket_regime, module)


def _iter_rope_rules(module: Any) -> Iterator[tuple[Any, LengthRule]]:
    """Yield the rotary embeddings of one module that depend on the length."""
    for rope_type, layer_type in _list_rope_types(module):
        if rope_type == "longrope":
            threshold = _read_longrope_threshold(module, layer_type)
            yield ("longrope", threshold), partial(_regime_beyond_threshold, threshold)
        elif "dynamic" in rope_type:
            key = ("dynamic", module.original_max_seq_len, layer_type)
            yield key, partial(_dynamic_rope_regime, module, layer_type)
        if rope_type not in ("default", "longrope") and _has_mscale_threshold(module):
            threshold = _read_longrope_threshold(module, layer_type)
            yield ("longrope", threshold), partial(_regime_beyond_threshold, threshold)
    if type(getattr(module, "long_factor", None)) is list:  # modeling code that comes with a model
        threshold = int(module.original_max_position_embeddings)
        yield ("longrope", threshold), partial(_regime_beyond_threshold, threshold)


def shares_capacity(model: nn.Module) -> bool:
    """Return whether tokens of a batch compete for the capacity of experts, so that rows interact."""
    for module in list_modules(model):
        if hasattr(module, "expert_capacity"):
            fraction = getattr(module, "moe_eval_capacity_token_fraction", 0.0)
            if fraction < 1:  # with 1 or more every expert can take all tokens
                return True
    return False


def _list_rope_types(module: nn.Module) -> list[tuple[str, str | None]]:
    """Return the rotary embeddings of one module, each with the type of layer it is for."""
    if not hasattr(module, "original_max_seq_len"):
        return []
    rope_type = getattr(module, "rope_type", None)
    if isinstance(rope_type, dict):
        return [(str(name), layer_type) for layer_type, name in rope_type.items()]
    return [(str(rope_type), None)]


def _read_longrope_threshold(module: Any, layer_type: str | None) -> int:
    parameters = module.config.rope_parameters
    if layer_type is not None:
        parameters = parameters[layer_type]
    return int(parameters["original_max_position_embeddings"])


def _has_mscale_threshold(module: Any) -> bool:
    """Return whether a rotary embedding is scaled by the length whatever its type, as PhiMoE's is."""
    parameters = module.config.rope_parameters
    return bool(parameters.get("short_mscale") != parameters.get("long_mscale"))


def _names_growing_rope(model: Any) -> bool:
    """Return whether the config asks for factors that follow the batch, in code that is not known here."""
    config = model.config.get_text_config()
    for name in ("rope_parameters", "rope_scaling"):
        parameters = getattr(config, name, None)
        if isinstance(parameters, dict):
            rope_type = parameters.get("rope_type", parameters.get("type"))
            if rope_type in GROWING_ROPE_TYPES:
                return True
    return False


# --- length rules ----------------------------------------------------------------------------------
# Each returns the choice for a batch of ``length`` tokens: 0 below its threshold, else a number that equal
# computations share. A rule has one threshold: where it is positive, it is so for all longer batches.


def _regime_beyond_threshold(threshold: int, length: int) -> int:
    return int(length > threshold)


def _exact_length_regime(length: int) -> int:
    return length


def _dynamic_rope_regime(module: Any, layer_type: str | None, length: int) -> int:
    """Dynamic NTK: beyond the longest text so far, each length has factors of its own."""
    original = int(module.original_max_seq_len)
    cached = module.max_seq_len_cached
    if layer_type is not None:
        cached = getattr(module, f"{layer_type}_max_seq_len_cached", cached)
    if length > int(cached):
        return length
    has_grown = int(cached) > original  # by a text that went through before
    return int(has_grown and length >= original)


def _block_sparse_regime(module: Any, length: int) -> int:
    """BigBird: texts up to a threshold are read with full attention."""
    if module.attention_type != "block_sparse":
        return 0
    config = module.config
    return _regime_beyond_threshold((5 + 2 * config.num_random_blocks) * config.block_size, length)


def _sparse_index_regime(max_selected: int, length: int) -> int:
    """Sparse attention: which of several equal scores are selected depends on the length."""
    return length if length > max_selected else 0


def _bucket_regime(module: Any, length: int) -> int:
    """Reformer: if the config does not set the number of buckets, the length does."""
    return length if module.num_buckets is None else 0
