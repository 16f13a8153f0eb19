"""ContextCite: a sparse linear model of an answer's log-odds over the presence of sources."""

import numpy as np

from tokenlight.data.odds import compute_target_log_odds
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import Unit
from tokenlight.errors import NotFinite
from tokenlight.methods._perturbation import UnitMethod
from tokenlight.methods.base import Extras
from tokenlight.perturb.variants import ReplacementIds
from tokenlight.plugin import Count, PassCounts, Perturber, Seed, Tape

NUM_BOOTSTRAP_FITS = 200  # fits to resampled ablations, for the intervals
MAX_SWEEPS = 10_000
# The descent ends when no coefficient moves by more than this share of the largest one.
CONVERGENCE_TOLERANCE = 1e-9
MIN_SPREAD = 1e-9  # a column with a smaller deviation never changes


class ContextCite(UnitMethod):
    r"""Coefficients of a LASSO of the answer's log-odds on the presence of sources.

    .. math:: s = \arg\min_\beta \min_{\beta_0} \frac1{2S}\sum_{m=1}^S \Bigl( \frac1T
        \ln\frac{p(R\mid C_m)}{1-p(R\mid C_m)} - \beta_0 - \beta^\top \tilde z_m \Bigr)^2 +
        \alpha\lVert\beta\rVert_1

    :math:`C_m` lacks each source with probability one half; :math:`p(R\mid C_m)` is the probability of
    the answer, or of a span of it, of :math:`T` tokens; :math:`\tilde z_m` are standardized presence
    bits, ``unit``, and the coefficients, times :math:`T`, those of the bits themselves. Sources are units
    of the documents; the tokens of a unit share its coefficient, and ``extras["units"]`` has a 95 %
    interval for it, from fits to resampled ablations. All settings are those of the authors' code.
    Differs from the paper: tokens are deleted from the encoded prompt instead of from the text; in a
    picture or for an answer span they are replaced.

    Args:
        units: What a source is.
        num_samples: The number of ablations S.
        alpha: The weight of the L1 penalty.
        seed: Seed of the ablations.
    """

    units: Unit = "sentence"
    num_samples: Count = 64
    alpha: float = 0.01
    seed: Seed = 0
    cites = "cohenwang2024contextcite"
    stochastic = True

    def count_passes(self, num_tokens: int) -> PassCounts:  # noqa: ARG002 - passes do not depend on the length
        return PassCounts(1 + self.num_samples, 0)

    def estimate(self, draws: np.ndarray) -> np.ndarray:
        """Return the first fit, which is the one to all ablations."""
        return np.asarray(draws[0])

    def measure_extras(self, tape: Tape) -> Extras:
        extras = []
        for row, fits in zip(tape.rows, self.get_measurements(tape), strict=True):
            low, high = np.percentile(fits[1:], (2.5, 97.5), axis=0)
            extras.append(self.build_interval_extras(row, low, high))
        return extras

    def measure_units(self, tape: Tape) -> list[np.ndarray]:
        """Return for each example the fit to all ablations, then those to resampled ones."""
        runner = tape.extra_passes.runner
        replacement_ids = ReplacementIds.from_model(runner, runner.tokenizer)
        presence = []
        variants = []
        for row, units in zip(tape.rows, self.make_unit_masks(tape), strict=True):
            perturber = Perturber(row, replacement_ids)
            # If the answer is a position in the text, no token may move.
            ablate = perturber.remove_tokens
            if tape.has_span_targets:
                ablate = perturber.replace_tokens
            is_present = row.make_generator(self.seed).random((self.num_samples, len(units))) < 0.5
            presence.append(is_present)
            variants.append(
                [ablate(positions) for positions in _find_removed_positions(units, is_present)]
            )
        values = tape.extra_passes.compute_target_values(
            variants, lambda *arguments: compute_target_log_odds(runner.head, *arguments)
        )
        fits = []
        for row, target, is_present, log_odds in zip(
            tape.rows, tape.targets, presence, values, strict=True
        ):
            num_continuation_tokens = 1
            if target.kind == "continuation":
                num_continuation_tokens = len(target.continuation_positions)
            coefficients = fit_lasso(
                is_present.astype(float),
                log_odds / num_continuation_tokens,
                self._fit_weights(row),
                self.alpha,
            )
            fits.append(coefficients * num_continuation_tokens)
        return fits

    def _fit_weights(self, row: TokenRow) -> np.ndarray:
        """Return ``fit sample``: equal weights first, then those of bootstrap samples."""
        generator = row.make_generator(self.seed, 1)
        equal = np.full(self.num_samples, 1 / self.num_samples)
        counts = generator.multinomial(self.num_samples, equal, NUM_BOOTSTRAP_FITS)
        return np.concatenate((np.ones((1, self.num_samples)), counts)) / self.num_samples


def _find_removed_positions(units: np.ndarray, is_present: np.ndarray) -> list[np.ndarray]:
    """Return for each sample the positions of the tokens whose units are absent."""
    return [np.flatnonzero(units[~present_units].any(axis=0)) for present_units in is_present]


def fit_lasso(
    features: np.ndarray, values: np.ndarray, weights: np.ndarray, alpha: float
) -> np.ndarray:
    r"""Fit LASSO regressions by coordinate descent (Friedman et al. 2010).

    .. math:: \min_{\beta,\beta_0} \tfrac12 \sum_m w_m (y_m - \beta_0 - \beta^\top \tilde z_m)^2 +
        \alpha \lVert\beta\rVert_1

    :math:`\tilde z` are the features, each column standardized under the weights.

    Args:
        features: ``example feature``.
        values: The y, ``example``.
        weights: One fit per row, ``fit example``; each row sums to one.
        alpha: The weight of the penalty.

    Returns:
        Coefficients of the features as they are, ``fit feature``; 0 for a column that never changes.

    Raises:
        NotFinite: The descent did not converge.
    """
    # Weighted means, covariances, and covariances with the values, for each fit.
    means = weights @ features
    mean_values = weights @ values
    covariance = np.einsum("fm,mi,mj->fij", weights, features, features, optimize=True)
    covariance -= means[:, :, None] * means[:, None, :]
    value_covariance = weights * values @ features - means * mean_values[:, None]
    # Standardize.
    spread = np.sqrt(np.maximum(np.einsum("fii->fi", covariance), 0))
    varies = spread > MIN_SPREAD
    scale = np.where(varies, spread, 1.0)
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    residual = np.where(varies, value_covariance / scale, 0.0)
    coefficients = np.zeros_like(residual)
    for _ in range(MAX_SWEEPS):
        largest_change = 0.0
        for feature in range(features.shape[1]):
            is_active = varies[:, feature]
            unpenalized = residual[:, feature] + coefficients[:, feature] * is_active
            magnitude = np.maximum(np.abs(unpenalized) - alpha, 0)
            updated = np.sign(unpenalized) * magnitude * is_active
            change = updated - coefficients[:, feature]
            coefficients[:, feature] = updated
            residual -= correlation[:, feature] * change[:, None]
            largest_change = max(largest_change, float(np.abs(change).max()))
        largest = max(float(np.abs(coefficients).max()), alpha)
        if largest_change <= CONVERGENCE_TOLERANCE * largest:
            return coefficients / scale
    raise NotFinite(
        f"The regression did not converge in {MAX_SWEEPS} sweeps. Use more samples.",
        code="lasso-not-converged",
    )
