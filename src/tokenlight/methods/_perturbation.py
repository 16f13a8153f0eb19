"""Texts with some tokens replaced by a baseline token, and the model's answers to them."""

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit, find_removable_units, make_unit_mask
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.methods.base import Method
from tokenlight.perturb.variants import Variant
from tokenlight.trace.extra_passes import BaselineToken
from tokenlight.trace.tape import Tape

Baseline = BaselineToken | int


class UnitMethod(Method, abstract=True):
    """A method that measures texts without some of their units; the tokens of a unit share its score.

    Args:
        units: What is removed: tokens, words, sentences, documents or roles.

    Attributes:
        token_only_options: Options that have no meaning for larger units.
    """

    units: Unit
    slow = True
    needs = frozenset()
    token_only_options: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units == "token":
            return
        for name in self.token_only_options:
            if name in self.options:
                raise BadInput(
                    f"The option {name} of {self.name} applies to tokens, but units={self.units!r}. Leave "
                    "out one of the two.",
                    code="token-only-option",
                )

    def __call__(self, tape: Tape) -> Tensor:
        scores = []
        for unit_mask, draws in zip(
            self.make_unit_masks(tape), self.get_measurements(tape), strict=True
        ):
            token_shares = unit_mask / unit_mask.sum(axis=1, keepdims=True)
            scores.append(self.estimate(draws) @ token_shares)
        return pad_scores(tape, scores)

    def get_measurements(self, tape: Tape) -> list[np.ndarray]:
        """Return the result of :meth:`measure_units`, computed once per tape."""
        return tape.extra_passes.compute_once(self, lambda: self.measure_units(tape))

    @abc.abstractmethod
    def measure_units(self, tape: Tape) -> list[np.ndarray]:
        """Return for each example ``draw unit``: the value of each unit in each draw."""

    def estimate(self, draws: np.ndarray) -> np.ndarray:
        """Reduce ``draw unit`` to the value of each ``unit``."""
        return np.asarray(draws.mean(axis=0))

    def make_unit_masks(self, tape: Tape) -> list[np.ndarray]:
        """Return for each example ``unit token``: the tokens of each unit that may be removed.

        With units larger than a token, a question about documents and written text are no units.
        """
        return [_build_unit_mask(row, self.units) for row in tape.rows]

    def build_interval_extras(
        self, row: TokenRow, low: np.ndarray, high: np.ndarray
    ) -> dict[str, Any]:
        """Return the interval of each unit for the ``extras`` of an Attribution.

        Args:
            row: The text.
            low: The lower end of each unit's interval, in the order of the units.
            high: The upper end.
        """
        positions = [np.flatnonzero(mask).tolist() for mask in _build_unit_mask(row, self.units)]
        intervals = {
            "unit": self.units,
            "positions": positions,
            "low": low.tolist(),
            "high": high.tolist(),
        }
        return {"units": intervals}


def _build_unit_mask(row: TokenRow, unit: Unit) -> np.ndarray:
    """Return ``unit token``: true at the tokens of each removable unit of one row."""
    protected = find_protected_tokens(row)
    if unit == "token":
        groups = [np.array([position]) for position in np.flatnonzero(~protected)]
    else:
        groups = find_removable_units(row, unit, protected)
        is_picture = row.image is not None and not row.image.token_positions
        if is_picture:
            raise UnsupportedModel(
                f"An image has no {unit} that could be removed. Use units='token'.",
                code="picture-units",
            )
        if not groups:
            raise BadInput(
                f"The text has no {unit} that could be removed. Use smaller units.",
                code="no-removable-units",
            )
    return make_unit_mask(groups, len(row))


def find_protected_tokens(row: TokenRow, *, protect_special: bool = True) -> np.ndarray:
    """Return ``token``: true where a token must stay.

    Args:
        row: The tokens.
        protect_special: Whether special tokens must stay. Tokens that the target is read at always do.
    """
    protected = np.array(row.special_tokens_mask) & protect_special
    protected[row.required_positions] = True
    return protected


def expand_units(units: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Turn chosen units into their tokens.

    Args:
        units: ``unit token``.
        chosen: ``sample unit``.

    Returns:
        ``sample token``: true at the tokens of the chosen units.
    """
    if not len(units):
        return np.zeros((len(chosen), units.shape[1]), dtype=bool)
    unit_of_token = units.argmax(axis=0)
    is_in_unit = units.any(axis=0)
    tokens: np.ndarray = chosen[:, unit_of_token] & is_in_unit
    return tokens


def compute_values_without(
    tape: Tape, removed: Sequence[np.ndarray], baseline: Baseline
) -> list[np.ndarray]:
    """Return the target's value for each variant of each example.

    Args:
        tape: The tape.
        removed: For each example ``variant token``, true where the baseline token replaces the token.
        baseline: The baseline token. Attention, segments and positions stay as they are.
    """
    baseline_id = tape.extra_passes.find_baseline_id(baseline)
    variants = []
    for row, removed_tokens in zip(tape.rows, removed, strict=True):
        original = Variant.from_row(row)
        ids = np.where(removed_tokens, baseline_id, original.ids).astype(np.int32)
        variants.append([replace(original, ids=variant_ids) for variant_ids in ids])
    return tape.extra_passes.compute_target_values(variants)


def pad_scores(tape: Tape, scores: Sequence[np.ndarray]) -> Tensor:
    """Return the scores of each example as ``batch token``, zero at padding."""
    table = np.zeros(tuple(tape.token_mask.shape))
    for table_row, example_scores in zip(table, scores, strict=True):
        table_row[: len(example_scores)] = example_scores
    return torch.from_numpy(table)
