"""Shapley values by sampling: tokens join in random orders."""

from typing import Literal

import numpy as np
import torch

from tokenlight.methods import _presence
from tokenlight.methods._presence import Baseline, Cost, Count, Extras, Tape, Unit


class Shapley(_presence.UnitMethod):
    r"""What the target gains when a token joins, averaged over random orders of joining.

    .. math:: s_i = \frac1S \sum_{s=1}^S \bigl( y(x_{P_s(i) \cup \{i\}}) - y(x_{P_s(i)}) \bigr)

    :math:`P_s(i)` are the tokens before i in order s; in :math:`x_P`, ``token``, the others are the
    token ``baseline``. Of larger ``units`` the tokens share what it brings. Special tokens always stay
    and score zero. The scores sum to :math:`y(x) - y(x_\emptyset)` exactly; ``extras["sampling"]`` has
    the largest standard error of one, ``extras["units"]`` a 95 % interval for each larger unit. Captum's
    ShapleyValueSampling with draws that belong to the text; ``preset="captum"`` draws Captum's own,
    those of a text explained alone after ``torch.manual_seed(seed)``.
    Differs from the paper: nothing.
    """

    samples: Count = 25
    baseline: Baseline = "pad"
    orders: Literal["text", "captum"] = "text"
    units: Unit = "token"
    seed: int = 0
    cites = "castro2009polynomial"
    draws = True
    of_tokens = ("orders",)
    presets = {"captum": {"orders": "captum"}}

    def cost(self, tokens: int) -> Cost:
        return Cost(2 + self.samples * (tokens - 1), 0)

    def extras(self, tape: Tape) -> Extras:
        found = []
        for row, gains in zip(tape.rows, self.found(tape), strict=True):
            spread = gains.std(axis=0, ddof=1) if len(gains) > 1 else np.ptp(gains)
            error, mean = spread / len(gains) ** 0.5, gains.mean(axis=0)
            largest = float(np.max(error, initial=0.0))
            found.append({"sampling": {"orders": len(gains), "standard_error": largest}})
            if self.units != "token":
                found[-1] |= self.interval(row, mean - 1.96 * error, mean + 1.96 * error)
        return found

    def measured(self, tape: Tape) -> list[np.ndarray]:
        """What each brought when it joined."""
        orders, gone, back = [], [], []
        for row, units in zip(tape.rows, self.units_of(tape), strict=True):
            if self.orders == "captum":
                own = self._captums(units)
            else:
                several = np.tile(np.arange(len(units)), (self.samples, 1))
                own = row.generator(self.seed).permuted(several, axis=1)
            sets, places = np.unique(_prefixes(own), axis=0, return_inverse=True)
            orders.append(own)
            gone.append(_presence.tokens_of(units, sets))
            back.append(places.reshape(len(own), -1))
        found = _presence.values_without(tape, gone, self.baseline)
        wholes, gains = tape.rerun.value.tolist(), []
        for own, values, places, whole in zip(orders, found, back, wholes, strict=True):
            steps = np.concatenate((values[places], np.full((len(own), 1), whole)), axis=1)
            brought = np.zeros(own.shape)
            np.put_along_axis(brought, own, np.diff(steps, axis=1)[:, : own.shape[1]], axis=1)
            gains.append(brought)
        return gains

    def _captums(self, units: np.ndarray) -> np.ndarray:
        """Captum shuffles all tokens; those that always stay bring nothing where they join."""
        stream = torch.Generator().manual_seed(self.seed)  # what torch.manual_seed(seed) begins
        joining, tokens = np.flatnonzero(units.any(axis=0)), units.shape[1]
        shuffled = [torch.randperm(tokens, generator=stream).numpy() for _ in range(self.samples)]
        kept = [order[np.isin(order, joining)] for order in shuffled]
        return np.searchsorted(joining, np.stack(kept))


def _prefixes(orders: np.ndarray) -> np.ndarray:
    """Who is still gone before each joins: ``order × step, unit``; the full text is known."""
    joins = np.argsort(orders, axis=1)  # the place of each unit in its order
    steps = max(orders.shape[1], 1)
    gone = joins[:, None, :] >= np.arange(steps)[:, None]
    return gone.reshape(len(orders) * steps, orders.shape[1])
