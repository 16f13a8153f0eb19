"""Shapley values by sampling: tokens join in random orders."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.data.tokens import TokenRow
from tokenlight.methods._method import Cost, Method
from tokenlight.methods._path import at_least_one
from tokenlight.methods._presence import Baseline, laid_out, players, values_without


class Shapley(Method):
    r"""What the target gains when a token joins, averaged over random orders of joining.

    .. math:: s_i = \frac1S \sum_{s=1}^S \bigl( y(x_{P_s(i) \cup \{i\}}) - y(x_{P_s(i)}) \bigr)

    :math:`P_s(i)` are the tokens before i in order s; in :math:`x_P`, ``token``, the others are the
    token ``baseline``. Special tokens always stay and score zero. Signed; the scores sum to
    :math:`y(x) - y(x_\emptyset)` exactly, and ``extras["sampling"]`` has the largest standard error
    of one. A set that several orders pass through is asked once. Captum's ShapleyValueSampling with
    draws that belong to the text; ``orders="captum"`` (``preset="captum"``) draws Captum's own, those
    of a text explained alone right after ``torch.manual_seed(seed)``.
    Differs from the paper: nothing.
    """

    samples: int = 25
    baseline: Baseline = "pad"
    orders: Literal["text", "captum"] = "text"
    seed: int = 0
    cites = "castro2009polynomial"
    slow = True
    draws = True
    presets = {"captum": {"orders": "captum"}}
    needs = frozenset()

    def cost(self, tokens: int) -> Cost:
        return Cost(2 + self.samples * (tokens - 1), 0)

    def __call__(self, tape: Tape) -> Tensor:
        return laid_out(tape, [gains.mean(axis=0) for gains in self._gains(tape)])

    def extras(self, tape: Tape) -> Sequence[dict[str, Any]]:
        found = []
        for gains in self._gains(tape):
            spread = (
                gains.std(axis=0, ddof=1).max() if len(gains) > 1 else gains.max() - gains.min()
            )
            error = float(spread) / len(gains) ** 0.5
            found.append({"sampling": {"orders": len(gains), "standard_error": error}})
        return found

    def _gains(self, tape: Tape) -> list[np.ndarray]:
        """``order token``: what each token brought when it joined."""
        return tape.rerun.once(self, lambda: self._asked(tape))

    def _asked(self, tape: Tape) -> list[np.ndarray]:
        at_least_one("samples", self.samples)
        orders = [self._orders(row) for row in tape.rows]
        gone, back = [], []
        for row, own in zip(tape.rows, orders, strict=True):
            sets, places = np.unique(_prefixes(own, len(row)), axis=0, return_inverse=True)
            gone.append(sets)
            back.append(places.reshape(len(own), -1))
        found = values_without(tape, gone, self.baseline)
        gains = []
        for row, own, values, places, whole in zip(
            tape.rows, orders, found, back, tape.rerun.value.tolist(), strict=True
        ):
            steps = np.concatenate((values[places], np.full((len(own), 1), whole)), axis=1)
            brought = np.zeros((len(own), len(row)))
            np.put_along_axis(brought, own, np.diff(steps, axis=1)[:, : own.shape[1]], axis=1)
            gains.append(brought)
        return gains

    def _orders(self, row: TokenRow) -> np.ndarray:
        """``order player``: places of tokens as they join."""
        if self.orders == "captum":
            return self._captums(row)
        several = np.tile(players(row), (self.samples, 1))
        return row.generator(self.seed).permuted(several, axis=1)

    def _captums(self, row: TokenRow) -> np.ndarray:
        """Captum shuffles all tokens; those that always stay bring nothing where they join."""
        stream = torch.Generator().manual_seed(self.seed)  # what torch.manual_seed(seed) begins
        joining = players(row)
        shuffled = [torch.randperm(len(row), generator=stream).numpy() for _ in range(self.samples)]
        return np.stack([order[np.isin(order, joining)] for order in shuffled])


def _prefixes(orders: np.ndarray, tokens: int) -> np.ndarray:
    """Who is still gone before each joins: ``order × step, token``; the full text is known."""
    count, players_ = orders.shape
    joins = np.full((count, tokens), -1)
    np.put_along_axis(joins, orders, np.arange(players_), axis=1)
    gone = joins[:, None, :] >= np.arange(max(players_, 1))[:, None]
    return gone.reshape(-1, tokens)
