"""LIME: a linear model of the target over which tokens are there."""

from typing import Annotated, Literal

import numpy as np

from tokenlight.errors import MissingExtra
from tokenlight.methods import _presence
from tokenlight.methods._presence import Baseline, Cost, Count, Tape, Unit
from tokenlight.registry import Range


class Lime(_presence.UnitMethod):
    r"""Coefficients of a ridge regression of the target on presence bits.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \sum_{m=1}^S \pi_m \bigl( y(x_{z_m}) - \beta_0 -
        \beta^\top z_m \bigr)^2 + \alpha \lVert \beta \rVert^2

    :math:`z_m`, ``token``, has a bit for each token; each that is not special is replaced by the
    token ``baseline`` with probability ``mask_probability``; :math:`\pi_m` is the share of tokens
    that stayed, of ``width`` tokens (default: the text's own number). ``units``: a bit for each larger
    unit, whose tokens share its coefficient. Special tokens score zero. Needs scikit-learn.
    Differs from the Thermostat code (``preset="thermostat"``): it regresses on token ids in place of
    bits (``features="ids"``), so that a coefficient shrinks with the id's value, over 512 places.
    Differs from the paper: similarity is a share in place of an exponential kernel, and no features
    are selected.
    """

    samples: Count = 25
    mask_probability: Annotated[float, Range(0.001, 0.999)] = 0.3  # all or none would tell nothing
    alpha: Annotated[float, Range(0, 10**9)] = 1.0
    features: Literal["binary", "ids"] = "binary"
    baseline: Baseline = "pad"
    width: int | None = None
    units: Unit = "token"
    seed: int = 0
    cites = "ribeiro2016should"
    draws = True
    of_tokens = ("features",)
    presets = {"thermostat": {"features": "ids", "width": 512}}

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, 0)

    def measured(self, tape: Tape) -> list[np.ndarray]:
        linear = MissingExtra.importing("sklearn.linear_model", "baselines", "lime", "scikit-learn")
        by, share, fits = tape.rerun.stand_in(self.baseline), self.mask_probability, []
        units, streams = self.units_of(tape), [row.generator(self.seed) for row in tape.rows]
        pairs = zip(streams, units, strict=True)
        drawn = [stream.random((self.samples, len(own))) < share for stream, own in pairs]
        gone = list(map(_presence.tokens_of, units, drawn))
        found = _presence.values_without(tape, gone, self.baseline)
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
