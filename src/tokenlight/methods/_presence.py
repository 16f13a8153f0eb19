"""Texts with some tokens replaced by a baseline token, asked of the model all together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.rerun import StandIn
from tokenlight.capture.tape import Tape
from tokenlight.capture.variants import Variant, asked_of
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit, sources
from tokenlight.errors import BadInput, UnsupportedModel

Baseline = StandIn | int


def players(row: TokenRow) -> np.ndarray:
    """Places of the tokens that may be taken away: all but the special ones, and not the token the
    model is asked about."""
    return np.flatnonzero(~kept_always(row))


def kept_always(row: TokenRow, *, special: bool = True) -> np.ndarray:
    """``token``: true where a token is no part of the text (unless ``special`` ones may go, too), or
    is the question itself or the answer foretold."""
    kept = np.array(row.special) & special
    kept[row.needed] = True
    return kept


def units_of(row: TokenRow, unit: Unit) -> np.ndarray:
    """``unit token``: which tokens each unit has that may be taken away. Of units larger than a token,
    a question about documents and what was written are none."""
    if unit == "token":
        groups = [np.array([place]) for place in players(row)]
    else:
        groups = sources(row, unit, kept_always(row))
    if row.image is not None and not row.image.places and unit != "token":
        raise UnsupportedModel(f"a picture has no {unit} to take away; give units='token'.")
    if not groups and unit != "token":
        raise BadInput(f"the text has no {unit} that could be taken away.")
    found = np.zeros((len(groups), len(row)), dtype=bool)
    for own, group in zip(found, groups, strict=True):
        own[group] = True
    return found


def tokens_of(units: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """``sample token``: true at the tokens of the units that ``chosen`` (``sample unit``) names."""
    if not len(units):
        return np.zeros((len(chosen), units.shape[1]), dtype=bool)
    found: np.ndarray = chosen[:, units.argmax(axis=0)] & units.any(axis=0)
    return found


def spread_over(units: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``token``: the value of each unit, shared evenly by its tokens, so that they sum to it."""
    scores: np.ndarray = values @ (units / units.sum(axis=1, keepdims=True))
    return scores


def interval(row: TokenRow, unit: Unit, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """What an Attribution's ``extras`` hold of each unit's interval."""
    places = [np.flatnonzero(own).tolist() for own in units_of(row, unit)]
    ends = {"low": low.tolist(), "high": high.tolist()}
    return {"units": {"unit": unit, "positions": places, **ends}}


def values_without(tape: Tape, gone: Sequence[np.ndarray], baseline: Baseline) -> list[np.ndarray]:
    """The target of each example for each of its ``gone`` (``variant token``, true where the baseline
    token stands); attention, segments and places stay."""
    by = tape.rerun.stand_in(baseline)
    variants = [_variants(row, own, by) for row, own in zip(tape.rows, gone, strict=True)]
    return tape.rerun.values(variants)


def _variants(row: TokenRow, gone: np.ndarray, by: int) -> list[Variant]:
    ids = np.where(gone, by, np.array(row.ids)).astype(np.int32)
    attention = np.array(row.attention, dtype=np.int8)
    types = None if row.token_types is None else np.array(row.token_types, dtype=np.int8)
    return [Variant(line, attention, types, **asked_of(row)) for line in ids]


def laid_out(tape: Tape, scores: Sequence[np.ndarray]) -> Tensor:
    """Scores of each example as ``batch token``, zero at padding."""
    table = np.zeros(tuple(tape.real.shape))
    for into, own in zip(table, scores, strict=True):
        into[: len(own)] = own
    return torch.from_numpy(table)
