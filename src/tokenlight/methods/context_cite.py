"""ContextCite: a sparse linear model of how sure an answer is, over which sources are there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tokenlight.capture.perturbation import Original, StandIns, Variant
from tokenlight.capture.tape import Tape
from tokenlight.data.target import log_odds
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.methods._lasso import lasso
from tokenlight.methods._method import Cost, Method
from tokenlight.methods._path import at_least_one
from tokenlight.methods._presence import interval, laid_out, spread_over, units_of

FITS = 200  # bootstrap fits behind the intervals


class ContextCite(Method):
    r"""Coefficients of a LASSO of the answer's log-odds on the presence of sources.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \frac1{2S}\sum_{m=1}^S \Bigl( \frac1T
        \ln\frac{p(R\mid C_m)}{1-p(R\mid C_m)} - \beta_0 - \beta^\top \tilde z_m \Bigr)^2 +
        \alpha\lVert\beta\rVert_1

    :math:`C_m` lacks each source with probability one half; :math:`p(R\mid C_m)` is the probability of
    the answer, or of a span of it, of :math:`T` tokens; :math:`\tilde z_m` are standardised presence bits,
    ``unit``, and the coefficients, times :math:`T`, those of the bits themselves. Sources are
    ``units`` of the documents; question, template and answer stay. A unit's tokens share its
    coefficient evenly, and ``extras["units"]`` has a 95 % interval for it, by refitting on
    resampled ablations. Signed.
    Response, 64 subsets, ``alpha`` and scaling are those of the authors' code.
    Differs from the paper: tokens are deleted from the encoded prompt instead of from the text, so the
    blank lines between documents stay; in a picture or for an answer span they are replaced.
    """

    units: Unit = "sentence"
    samples: int = 64
    alpha: float = 0.01
    seed: int = 0
    cites = "cohenwang2024contextcite"
    slow = True
    draws = True
    needs = frozenset()

    def cost(self, tokens: int) -> Cost:  # noqa: ARG002 - passes do not depend on the length
        return Cost(1 + self.samples, 0)

    def __call__(self, tape: Tape) -> Tensor:
        fits = zip(tape.rows, self._fits(tape), strict=True)
        return laid_out(tape, [spread_over(units_of(row, self.units), own[0]) for row, own in fits])

    def extras(self, tape: Tape) -> Sequence[dict[str, Any]]:
        found = []
        for row, own in zip(tape.rows, self._fits(tape), strict=True):
            low, high = np.percentile(own[1:], (2.5, 97.5), axis=0)
            found.append(interval(row, self.units, low, high))
        return found

    def _fits(self, tape: Tape) -> list[np.ndarray]:
        """``fit unit``: the fit to all ablations, and behind it those to resampled ones."""
        return tape.rerun.once(self, lambda: self._asked(tape))

    def _asked(self, tape: Tape) -> list[np.ndarray]:
        at_least_one("samples", self.samples)
        here = [self._there(row) for row in tape.rows]
        live = tape.rerun.live
        stand_ins = StandIns.of(live, live.tokenizer)
        variants = [
            _without(Original(row, stand_ins), units_of(row, self.units), own, tape.spans)
            for row, own in zip(tape.rows, here, strict=True)
        ]
        values = tape.rerun.values(variants, lambda *asked: log_odds(live.head, *asked))
        sizes = [len(target.terms) if target.kind == "answer" else 1 for target in tape.targets]
        return [self._fitted(*one) for one in zip(tape.rows, here, values, sizes, strict=True)]

    def _there(self, row: TokenRow) -> np.ndarray:
        """``sample unit``: true where a source is there."""
        size = self.samples, len(units_of(row, self.units))
        return row.generator(self.seed).random(size) < 0.5

    def _fitted(
        self, row: TokenRow, there: np.ndarray, outcomes: np.ndarray, tokens: int
    ) -> np.ndarray:
        count = self.samples
        drawn = row.generator(self.seed, 1).multinomial(count, np.full(count, 1 / count), FITS)
        weights = np.concatenate((np.ones((1, count)), drawn)) / count
        return lasso(there.astype(float), outcomes / tokens, weights, self.alpha) * tokens


def _without(
    original: Original, units: np.ndarray, there: np.ndarray, places: bool
) -> list[Variant]:
    """The text without the units that are not there; ``places``: none may move."""
    gone = (np.flatnonzero(units[~own].any(axis=0)) for own in there)
    return [original.replaced(own) if places else original.taken(own) for own in gone]
