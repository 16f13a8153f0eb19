"""Texts with some tokens replaced by a baseline token, asked of the model all together."""

import abc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.perturbation import Variant
from tokenlight.capture.rerun import StandIn
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit, sources
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.methods._method import Cost, Count, Extras, Method, Tape

__all__ = ["Cost", "Count", "Extras", "Tape", "Unit"]  # beside what is written here
Baseline = StandIn | int


class UnitMethod(Method, base=True):
    """Asks about texts without some of their ``units``; what it finds of a unit, its tokens share.
    ``of_tokens``: options that mean nothing of larger units."""

    units: Unit
    slow = True
    needs = frozenset()
    of_tokens: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in self.of_tokens if name in self.options]
        if given and self.units != "token":
            raise BadInput(f"{self.name}'s {given[0]} is of tokens; leave it or units out.")

    def __call__(self, tape: Tape) -> Tensor:
        found = zip(self.units_of(tape), self.found(tape), strict=True)
        scores = [self.estimate(d) @ (own / own.sum(axis=1, keepdims=True)) for own, d in found]
        return laid_out(tape, scores)

    def found(self, tape: Tape) -> list[np.ndarray]:
        """What :meth:`measured` found, measured once."""
        return tape.rerun.once(self, lambda: self.measured(tape))

    @abc.abstractmethod
    def measured(self, tape: Tape) -> list[np.ndarray]:
        """``draw unit``: what each draw says of each unit."""

    def estimate(self, draws: np.ndarray) -> np.ndarray:
        """``unit``: the value of each."""
        return np.asarray(draws.mean(axis=0))

    def units_of(self, tape: Tape) -> list[np.ndarray]:
        """``unit token``: which tokens each unit has that may be taken away. Of units larger than a
        token, a question about documents and what was written are none."""
        return [_units(row, self.units) for row in tape.rows]

    def interval(self, row: TokenRow, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
        """What an Attribution's ``extras`` hold of each unit's interval."""
        places = [np.flatnonzero(own).tolist() for own in _units(row, self.units)]
        ends = {"low": low.tolist(), "high": high.tolist()}
        return {"units": {"unit": self.units, "positions": places, **ends}}


def _units(row: TokenRow, unit: Unit) -> np.ndarray:
    if unit == "token":
        groups = [np.array([place]) for place in np.flatnonzero(~kept_always(row))]
    else:
        groups = sources(row, unit, kept_always(row))
        if row.image is not None and not row.image.places:
            raise UnsupportedModel(f"a picture has no {unit} to take away; give units='token'.")
        if not groups:
            raise BadInput(f"the text has no {unit} that could be taken away.")
    found = np.zeros((len(groups), len(row)), dtype=bool)
    for own, group in zip(found, groups, strict=True):
        own[group] = True
    return found


def kept_always(row: TokenRow, *, special: bool = True) -> np.ndarray:
    """``token``: true where a token is no part of the text (unless ``special`` ones may go, too), or
    is the question itself or the answer foretold."""
    kept = np.array(row.special) & special
    kept[row.needed] = True
    return kept


def tokens_of(units: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """``sample token``: true at the tokens of the units that ``chosen`` (``sample unit``) names."""
    if not len(units):
        return np.zeros((len(chosen), units.shape[1]), dtype=bool)
    found: np.ndarray = chosen[:, units.argmax(axis=0)] & units.any(axis=0)
    return found


def values_without(tape: Tape, gone: Sequence[np.ndarray], baseline: Baseline) -> list[np.ndarray]:
    """The target of each example for each of its ``gone`` (``variant token``, true where the baseline
    token stands); attention, segments and places stay."""
    by, variants = tape.rerun.stand_in(baseline), []
    for row, own in zip(tape.rows, gone, strict=True):
        whole = Variant.of(row)
        ids = np.where(own, by, whole.ids).astype(np.int32)
        variants.append([replace(whole, ids=line) for line in ids])
    return tape.rerun.values(variants)


def laid_out(tape: Tape, scores: Sequence[np.ndarray]) -> Tensor:
    """Scores of each example as ``batch token``, zero at padding."""
    table = np.zeros(tuple(tape.real.shape))
    for into, own in zip(table, scores, strict=True):
        into[: len(own)] = own
    return torch.from_numpy(table)
