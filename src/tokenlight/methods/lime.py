"""LIME: a linear model of the target over the presence of tokens."""

from typing import Annotated, Any, Literal

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.errors import MissingExtra
from tokenlight.methods import _perturbation
from tokenlight.methods._perturbation import Baseline
from tokenlight.plugin import Count, PassCounts, Range, Seed, Tape


class Lime(_perturbation.UnitMethod):
    r"""Coefficients of a ridge regression of the target on presence bits.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \sum_{m=1}^S \pi_m \bigl( y(x_{z_m}) - \beta_0 -
        \beta^\top z_m \bigr)^2 + \alpha \lVert \beta \rVert^2

    :math:`z_m`, ``token``, has a bit for each token; :math:`\pi_m` is the share of tokens that stayed.
    Special tokens stay and score zero. Needs scikit-learn.
    Differs from the Thermostat code (``preset="thermostat"``): it regresses on token ids in place of
    bits, so that a coefficient shrinks with the value of the id, over 512 positions.
    Differs from the paper: similarity is a share in place of an exponential kernel, and no features
    are selected.

    Args:
        num_samples: The number of variants S.
        mask_probability: The probability that a token is replaced.
        alpha: The weight of the L2 penalty.
        features: What is regressed on: presence bits (``"binary"``) or token ids (``"ids"``).
        baseline: The token that replaces others.
        width: The number of tokens that the share is taken of; by default the length of the text.
        units: What has a bit; the tokens of a larger unit share its coefficient.
        seed: Seed of the variants.
    """

    num_samples: Count = 25
    mask_probability: Annotated[float, Range(0.001, 0.999)] = 0.3  # all or none would say nothing
    alpha: Annotated[float, Range(0, 10**9)] = 1.0
    features: Literal["binary", "ids"] = "binary"
    baseline: Baseline = "pad"
    width: int | None = None
    units: Unit = "token"
    seed: Seed = 0
    cites = "ribeiro2016should"
    stochastic = True
    token_only_options = ("features",)
    presets = {"thermostat": {"features": "ids", "width": 512}}

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        return PassCounts(1 + self.num_samples, 0)

    def measure_units(self, tape: Tape) -> list[np.ndarray]:
        linear = MissingExtra.import_or_raise(
            "sklearn.linear_model", "baselines", "lime", "scikit-learn"
        )
        baseline_id = tape.extra_passes.find_baseline_id(self.baseline)
        unit_masks = self.make_unit_masks(tape)
        removed_units = [  # ``sample unit`` of each example
            self._draw_removed_units(row, len(units))
            for row, units in zip(tape.rows, unit_masks, strict=True)
        ]
        removed_tokens = [  # ``sample token`` of each example
            _perturbation.expand_units(units, is_removed)
            for units, is_removed in zip(unit_masks, removed_units, strict=True)
        ]
        values = _perturbation.compute_values_without(tape, removed_tokens, self.baseline)

        fits = []
        for example, row in enumerate(tape.rows):
            original_ids = np.array(row.ids)
            ids = np.where(removed_tokens[example], baseline_id, original_ids)
            num_changed = (ids != original_ids).sum(axis=1)
            weights = 1 - num_changed / max(self.width or 0, len(row))
            features = self._select_features(ids, removed_tokens[example], removed_units[example])
            ridge = linear.Ridge(alpha=self.alpha)
            coefficients = _fit_varying(ridge, features, values[example], weights)
            if self.units == "token":
                coefficients = unit_masks[example] @ coefficients
            fits.append(coefficients[None])
        return fits

    def _draw_removed_units(self, row: TokenRow, num_units: int) -> np.ndarray:
        """Draw which units each sample removes, ``sample unit``."""
        draws = row.make_generator(self.seed).random((self.num_samples, num_units))
        return np.asarray(draws < self.mask_probability)

    def _select_features(
        self, ids: np.ndarray, removed_tokens: np.ndarray, removed_units: np.ndarray
    ) -> np.ndarray:
        """Return the columns that are regressed on, ``sample feature``."""
        if self.features == "ids":
            return ids
        if self.units == "token":
            # Tokens that always stay have a column, too, as in the Thermostat code.
            return ~removed_tokens
        return ~removed_units


def _fit_varying(
    ridge: Any, features: np.ndarray, values: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Fit a ridge regression; the coefficient of a column that never changes is 0."""
    ridge.fit(features.astype(np.float64), values, weights)
    # The coefficient of a column that never changes would be a rounding error.
    varies = np.ptp(features.astype(int), axis=0)
    return np.where(varies, ridge.coef_, 0.0)
