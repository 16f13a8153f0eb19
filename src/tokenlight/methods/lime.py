"""LIME: a linear model of the target over which tokens are there."""

from typing import Literal

import numpy as np
from torch import Tensor

from tokenlight.capture.tape import Tape
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.methods._method import Cost, Method
from tokenlight.methods._path import at_least_one
from tokenlight.methods._presence import (
    Baseline,
    laid_out,
    spread_over,
    tokens_of,
    units_of,
    values_without,
)


class Lime(Method):
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

    samples: int = 25
    mask_probability: float = 0.3
    alpha: float = 1.0
    features: Literal["binary", "ids"] = "binary"
    baseline: Baseline = "pad"
    width: int | None = None
    units: Unit = "token"
    seed: int = 0
    cites = "ribeiro2016should"
    slow = True
    draws = True
    presets = {"thermostat": {"features": "ids", "width": 512}}
    needs = frozenset()

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, 0)

    def __call__(self, tape: Tape) -> Tensor:
        at_least_one("samples", self.samples)
        if not 0 < self.mask_probability < 1:
            raise BadInput(
                f"mask_probability={self.mask_probability} replaces no token or all of them; give a "
                "number between 0 and 1."
            )
        if self.units != "token" and self.features == "ids":
            raise BadInput("features='ids' are of tokens; leave it or units out.")
        units = [units_of(row, self.units) for row in tape.rows]
        drawn = [
            row.generator(self.seed).random((self.samples, len(own))) < self.mask_probability
            for row, own in zip(tape.rows, units, strict=True)
        ]
        gone = [tokens_of(own, bits) for bits, own in zip(drawn, units, strict=True)]
        found = values_without(tape, gone, self.baseline)
        fitted = []
        by = tape.rerun.stand_in(self.baseline)
        for row, own, bits, values in zip(tape.rows, units, drawn, found, strict=True):
            there = tokens_of(own, bits)
            if self.units == "token":
                fitted.append(self._fit(row, there, values, by))
            else:
                fitted.append(spread_over(own, self._fit(row, there, values, by, bits)))
        return laid_out(tape, fitted)

    def _fit(
        self,
        row: TokenRow,
        gone: np.ndarray,
        values: np.ndarray,
        by: int,
        bits: np.ndarray | None = None,
    ) -> np.ndarray:
        sklearn = MissingExtra.importing(
            "sklearn.linear_model", "baselines", "lime", "scikit-learn"
        )
        ids = np.where(gone, by, np.array(row.ids))
        width = max(self.width or 0, len(row))
        weights = 1 - (ids != np.array(row.ids)).sum(axis=1) / width
        table = ids if self.features == "ids" else ~(gone if bits is None else bits)
        if not 0 <= self.alpha < np.inf:  # NaN among them
            raise BadInput(f"lime's alpha={self.alpha} cannot be: give 0 or more, and finite.")
        ridge = sklearn.Ridge(alpha=self.alpha).fit(table.astype(np.float64), values, weights)
        # A column that never changed has a coefficient of rounding errors.
        coefficients: np.ndarray = np.where(np.ptp(table.astype(int), axis=0), ridge.coef_, 0.0)
        return coefficients
