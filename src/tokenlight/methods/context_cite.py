"""ContextCite: a sparse linear model of how sure an answer is, over which sources are there."""

import numpy as np

from tokenlight.capture.perturbation import Original, StandIns
from tokenlight.data.target import log_odds
from tokenlight.errors import NotFinite
from tokenlight.methods._presence import Cost, Count, Extras, Tape, Unit, UnitMethod

FITS = 200  # bootstrap fits behind the intervals
SWEEPS = 10_000
STILL = 1e-9  # of the largest coefficient: a sweep that moves none by more ends the descent


class ContextCite(UnitMethod):
    r"""Coefficients of a LASSO of the answer's log-odds on the presence of sources.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \frac1{2S}\sum_{m=1}^S \Bigl( \frac1T
        \ln\frac{p(R\mid C_m)}{1-p(R\mid C_m)} - \beta_0 - \beta^\top \tilde z_m \Bigr)^2 +
        \alpha\lVert\beta\rVert_1

    :math:`C_m` lacks each source with probability one half; :math:`p(R\mid C_m)` is the probability of
    the answer, or of a span of it, of :math:`T` tokens; :math:`\tilde z_m` are standardised presence
    bits, ``unit``, and the coefficients, times :math:`T`, those of the bits themselves. Sources are
    ``units`` of the documents; a unit's tokens share its coefficient, and ``extras["units"]`` has a 95 %
    interval for it, by refitting on resampled ablations. All settings are the authors' code's.
    Differs from the paper: tokens are deleted from the encoded prompt instead of from the text; in a
    picture or for an answer span they are replaced.
    """

    units: Unit = "sentence"
    samples: Count = 64
    alpha: float = 0.01
    seed: int = 0
    cites = "cohenwang2024contextcite"
    draws = True

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, 0)

    def estimate(self, draws: np.ndarray) -> np.ndarray:
        return np.asarray(draws[0])

    def extras(self, tape: Tape) -> Extras:
        found = []
        for row, own in zip(tape.rows, self.found(tape), strict=True):
            low, high = np.percentile(own[1:], (2.5, 97.5), axis=0)
            found.append(self.interval(row, low, high))
        return found

    def measured(self, tape: Tape) -> list[np.ndarray]:
        """The fit to all ablations, and behind it those to resampled ones."""
        live, count = tape.rerun.live, self.samples
        stand_ins = StandIns.of(live, live.tokenizer)
        variants, there = [], []
        for row, units in zip(tape.rows, self.units_of(tape), strict=True):
            original = Original(row, stand_ins)
            # Where the answer is a place in the text, none may move.
            without = original.replaced if tape.spans else original.taken
            there.append(row.generator(self.seed).random((count, len(units))) < 0.5)
            gone = (np.flatnonzero(units[~own].any(axis=0)) for own in there[-1])
            variants.append([without(places) for places in gone])
        values = tape.rerun.values(variants, lambda *asked: log_odds(live.head, *asked))
        sizes = [len(target.terms) if target.kind == "answer" else 1 for target in tape.targets]
        fits = []
        for row, own, outcomes, size in zip(tape.rows, there, values, sizes, strict=True):
            drawn = row.generator(self.seed, 1).multinomial(count, np.full(count, 1 / count), FITS)
            weights = np.concatenate((np.ones((1, count)), drawn)) / count
            fits.append(lasso(own.astype(float), outcomes / size, weights, self.alpha) * size)
        return fits


def lasso(table: np.ndarray, values: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    r"""Coefficients, ``fit feature``, one fit for each row of ``weights`` (``fit example``; they sum to one).

    .. math:: \min_{\beta,\beta_0} \tfrac12 \sum_m w_m (y_m - \beta_0 - \beta^\top \tilde z_m)^2 +
        \alpha \lVert\beta\rVert_1

    :math:`\tilde z`: ``table`` (``example feature``), each column standardised under the weights; the
    coefficients are those of the columns as they are, 0 of one that never changes. Coordinates are
    visited in order until they stand still (Friedman et al. 2010).
    """
    means, targets = weights @ table, weights @ values
    moments = np.einsum("fm,mi,mj->fij", weights, table, table, optimize=True)
    moments -= means[:, :, None] * means[:, None, :]
    slopes = weights * values @ table - means * targets[:, None]
    spread = np.sqrt(np.maximum(np.einsum("fii->fi", moments), 0))
    moves = spread > 1e-9
    scale = np.where(moves, spread, 1.0)
    moments = moments / (scale[:, :, None] * scale[:, None, :])
    left = np.where(moves, slopes / scale, 0.0)
    found = np.zeros_like(left)
    for _ in range(SWEEPS):
        largest = 0.0
        for feature in range(table.shape[1]):
            wanted = left[:, feature] + found[:, feature] * moves[:, feature]
            shrunk = np.sign(wanted) * np.maximum(np.abs(wanted) - alpha, 0) * moves[:, feature]
            change = shrunk - found[:, feature]
            found[:, feature] = shrunk
            left -= moments[:, feature] * change[:, None]
            largest = max(largest, float(np.abs(change).max()))
        if largest <= STILL * max(float(np.abs(found).max()), alpha):
            return found / scale
    raise NotFinite(f"the regression did not settle in {SWEEPS} sweeps; take more samples.")
