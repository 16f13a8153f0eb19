"""Shapley values by sampling: tokens join in random orders."""

from typing import Literal

import numpy as np
import torch

from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.methods import _perturbation
from tokenlight.methods._perturbation import Baseline
from tokenlight.methods.base import Extras
from tokenlight.plugin import Count, PassCounts, Seed, Tape


class Shapley(_perturbation.UnitMethod):
    r"""What the target gains when a token joins, averaged over random orders of joining.

    .. math:: s_i = \frac1S \sum_{s=1}^S \bigl( y(x_{P_s(i) \cup \{i\}}) - y(x_{P_s(i)}) \bigr)

    :math:`P_s(i)` are the tokens before i in order s; in :math:`x_P`, ``token``, all others are the baseline
    token. Special tokens always stay and score zero. The scores sum to :math:`y(x) - y(x_\emptyset)`
    exactly. Each has a standard error from the spread over orders; ``extras["sampling"]`` has the largest of
    them, ``extras["units"]`` a 95 % interval for each unit larger than a token. Equals Captum's
    ShapleyValueSampling, except that the draws depend only on the text.
    Differs from the paper: nothing.

    Args:
        num_samples: The number of orders S.
        baseline: The token that stands for a missing one.
        orders: ``"captum"`` draws the orders of Captum for a text explained alone after
            ``torch.manual_seed(seed)``.
        units: What joins; the tokens of a larger unit share its gain.
        seed: Seed of the orders.
    """

    num_samples: Count = 25
    baseline: Baseline = "pad"
    orders: Literal["text", "captum"] = "text"
    units: Unit = "token"
    seed: Seed = 0
    cites = "castro2009polynomial"
    stochastic = True
    token_only_options = ("orders",)
    presets = {"captum": {"orders": "captum"}}

    def count_passes(self, num_tokens: int) -> PassCounts:
        return PassCounts(2 + self.num_samples * (num_tokens - 1), 0)

    def measure_extras(self, tape: Tape) -> Extras:
        extras = []
        examples = zip(
            tape.rows, self.make_unit_masks(tape), self.get_measurements(tape), strict=True
        )
        for row, units, gains in examples:
            mean = gains.mean(axis=0)
            # A single order has no deviation; its range stands for it.
            spread = gains.std(axis=0, ddof=1) if len(gains) > 1 else np.ptp(gains)
            error = np.broadcast_to(spread / len(gains) ** 0.5, mean.shape)
            largest_error = float(np.max(error, initial=0.0))
            # The tokens of a unit share its gain, and its error.
            token_errors = error @ (units / units.sum(axis=1, keepdims=True))
            example = {
                "sampling": {"orders": len(gains), "standard_error": largest_error},
                "standard_errors": token_errors.tolist(),
            }
            if self.units != "token":
                low = mean - 1.96 * error
                high = mean + 1.96 * error
                example |= self.build_interval_extras(row, low, high)
            extras.append(example)
        return extras

    def measure_units(self, tape: Tape) -> list[np.ndarray]:
        """Return for each example ``order unit``: what each unit adds when it joins."""
        all_orders = []
        removed_tokens = []
        set_indices = []
        for row, units in zip(tape.rows, self.make_unit_masks(tape), strict=True):
            orders = self._draw_orders(row, units)
            # Different orders pass through the same sets of units, which are measured once.
            sets, inverse = np.unique(_find_missing_before(orders), axis=0, return_inverse=True)
            all_orders.append(orders)
            removed_tokens.append(_perturbation.expand_units(units, sets))
            set_indices.append(inverse.reshape(len(orders), -1))
        values = _perturbation.compute_values_without(tape, removed_tokens, self.baseline)
        full_values = tape.extra_passes.target_value.tolist()

        all_gains = []
        for example, orders in enumerate(all_orders):
            before = values[example][set_indices[example]]  # ``order step``
            complete = np.full((len(orders), 1), full_values[example])
            step_gains = np.diff(np.concatenate((before, complete), axis=1), axis=1)
            gains = np.zeros(orders.shape)
            np.put_along_axis(gains, orders, step_gains[:, : orders.shape[1]], axis=1)
            all_gains.append(gains)
        return all_gains

    def _draw_orders(self, row: TokenRow, units: np.ndarray) -> np.ndarray:
        """Return ``order step``: the unit that joins at each step of each order."""
        if self.orders == "captum":
            return self._draw_captum_orders(units)
        unshuffled = np.tile(np.arange(len(units)), (self.num_samples, 1))
        return row.make_generator(self.seed).permuted(unshuffled, axis=1)

    def _draw_captum_orders(self, units: np.ndarray) -> np.ndarray:
        """Return the orders of Captum, which shuffles all tokens.

        Tokens that always stay add nothing when they join, so they are left out of the orders.
        """
        generator = torch.Generator().manual_seed(self.seed)  # as after torch.manual_seed(seed)
        joining = np.flatnonzero(units.any(axis=0))
        orders = []
        for _ in range(self.num_samples):
            shuffled = torch.randperm(units.shape[1], generator=generator).numpy()
            orders.append(shuffled[np.isin(shuffled, joining)])
        return np.searchsorted(joining, np.stack(orders))


def _find_missing_before(orders: np.ndarray) -> np.ndarray:
    """Return ``order × step, unit``: which units are still missing before each step."""
    join_steps = np.argsort(orders, axis=1)  # ``order unit``: the step at which each unit joins
    num_steps = max(orders.shape[1], 1)
    is_missing = join_steps[:, None, :] >= np.arange(num_steps)[:, None]
    return is_missing.reshape(len(orders) * num_steps, orders.shape[1])
