"""LIME: a linear model of the target over which tokens are there."""

from typing import Literal

import numpy as np

from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.methods._method import Cost, Count, Tape
from tokenlight.methods._presence import Baseline, UnitMethod, tokens_of, values_without


class Lime(UnitMethod):
    r"""Coefficients of a ridge regression of the target on presence bits.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \sum_{m=1}^S \pi_m \bigl( y(x_{z_m}) - \beta_0 -
        \beta^\top z_m \bigr)^2 + \alpha \lVert \beta \rVert^2

    :math:`z_m`, ``token``, has a bit for each token; each that is not special is replaced by the
    token ``baseline`` with probability ``mask_probability``; :math:`\pi_m` is the share of tokens
    that stayed, of ``width`` tokens (default: the text's own number). ``units="document"``
    (``"sentence"``, ``"word"``): a bit for each unit, whose tokens share its coefficient. Special
    tokens score zero. Signed. Needs scikit-learn.
    Differs from the Thermostat code (``preset="thermostat"``): it regresses on token ids in place of
    bits (``features="ids"``), so that a coefficient shrinks with the id's value, over 512 places.
    Differs from the paper: similarity is a share in place of an exponential kernel, and no features
    are selected.
    """

    samples: Count = 25
    mask_probability: float = 0.3
    alpha: float = 1.0
    features: Literal["binary", "ids"] = "binary"
    baseline: Baseline = "pad"
    width: int | None = None
    units: Unit = "token"
    seed: int = 0
    cites = "ribeiro2016should"
    draws = True
    presets = {"thermostat": {"features": "ids", "width": 512}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_probability < 1:
            raise BadInput(
                f"mask_probability={self.mask_probability} replaces no token or all of them; give a "
                "number between 0 and 1."
            )
        if not 0 <= self.alpha < np.inf:  # NaN among them
            raise BadInput(f"lime's alpha={self.alpha} cannot be: give 0 or more, and finite.")
        if self.units != "token" and self.features == "ids":
            raise BadInput("features='ids' are of tokens; leave it or units out.")

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, 0)

    def measured(self, tape: Tape) -> list[np.ndarray]:
        linear = MissingExtra.importing("sklearn.linear_model", "baselines", "lime", "scikit-learn")
        units = self.units_of(tape)
        drawn = [
            row.generator(self.seed).random((self.samples, len(own))) < self.mask_probability
            for row, own in zip(tape.rows, units, strict=True)
        ]
        gone = [tokens_of(own, bits) for bits, own in zip(drawn, units, strict=True)]
        found = values_without(tape, gone, self.baseline)
        by = tape.rerun.stand_in(self.baseline)
        fits = []
        for row, own, bits, out, values in zip(tape.rows, units, drawn, gone, found, strict=True):
            ids = np.where(out, by, np.array(row.ids))
            weights = 1 - (ids != np.array(row.ids)).sum(axis=1) / max(self.width or 0, len(row))
            # Tokens that always stay have a column, too, as in the Thermostat code.
            binary = ~(out if self.units == "token" else bits)
            table = ids if self.features == "ids" else binary
            ridge = linear.Ridge(alpha=self.alpha).fit(table.astype(np.float64), values, weights)
            # A column that never changed has a coefficient of rounding errors.
            fit = np.where(np.ptp(table.astype(int), axis=0), ridge.coef_, 0.0)
            fits.append((own @ fit if self.units == "token" else fit)[None])
        return fits
