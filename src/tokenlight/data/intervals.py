"""Means and other statistics with 95 % bootstrap intervals over texts."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

import numpy as np

from tokenlight.errors import MissingExtra

NUM_RESAMPLES = 2000
NUM_CURVE_RESAMPLES = 1000
CONFIDENCE_LEVEL = 0.95
PERCENTILES = (50 * (1 - CONFIDENCE_LEVEL), 50 * (1 + CONFIDENCE_LEVEL))  # in percent
MAX_CELLS = 4_000_000  # values drawn at once, to limit memory


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic over texts with its 95 % confidence interval.

    A single text, or texts with equal values, give an interval of width zero, so read it together with
    ``count``. No text gives NaN.

    Attributes:
        mean: The statistic.
        low: Lower end of the interval.
        high: Upper end of the interval.
        count: Number of texts.

    Example:
        >>> from tokenlight.plugin import Interval
        >>> Interval(0.5, low=0.4, high=0.6, count=20).mean
        0.5
    """

    mean: float
    low: float
    high: float
    count: int


def to_json_value(value: Any) -> Any:
    """Convert numbers, intervals, and collections of them to JSON values; NaN becomes None."""
    if isinstance(value, Interval):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: to_json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(entry) for entry in value]
    if isinstance(value, float) and isnan(value):
        return None
    return value


def bootstrap_mean(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the mean over texts with a bias-corrected and accelerated interval (BCa, Efron 1987).

    Args:
        values: One value per text.
        seed: Seed of the resampling.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(sample.mean())
    is_constant = float(np.ptp(sample)) == 0.0
    if len(sample) == 1 or is_constant:
        return Interval(mean, mean, mean, len(sample))
    low, high = _bootstrap(sample, "BCa", seed)
    # BCa divides by the spread of the jackknife, which can be zero.
    if not np.isfinite([low, high]).all():
        low, high = _bootstrap(sample, "percentile", seed)
    return Interval(mean, float(low), float(high), len(sample))


def bootstrap_curve(curves: Sequence[Sequence[float]], *, seed: int = 0) -> tuple[Interval, ...]:
    """Return the mean at each point with a percentile interval.

    Args:
        curves: One curve per text, all over the same points; empty ones are left out.
        seed: Seed of the resampling.
    """
    measured_curves = [curve for curve in curves if len(curve)]
    if not measured_curves:
        return ()
    table = np.asarray(measured_curves, dtype=np.float64)  # text point
    num_texts = len(table)
    # How often each text is drawn, times the table, gives all points with one product per chunk.
    generator = np.random.default_rng(seed)
    probabilities = np.full(num_texts, 1 / num_texts)
    chunk_size = max(1, MAX_CELLS // num_texts)
    resampled_means = []
    for start in range(0, NUM_CURVE_RESAMPLES, chunk_size):
        size = min(chunk_size, NUM_CURVE_RESAMPLES - start)
        draw_counts = generator.multinomial(num_texts, probabilities, size=size)
        resampled_means.append(draw_counts @ table / num_texts)  # resample point
    lows, highs = np.percentile(np.concatenate(resampled_means), PERCENTILES, axis=0)
    intervals = []
    for mean, low, high in zip(table.mean(axis=0), lows, highs, strict=True):
        intervals.append(Interval(float(mean), float(low), float(high), num_texts))
    return tuple(intervals)


def bootstrap_statistic(
    count: int, statistic: Callable[[np.ndarray], float], *, seed: int = 0, resamples: int = 200
) -> Interval:
    """Return a statistic of a set of texts that is not a mean, with its interval.

    Drawing texts with replacement biases such a statistic (fewer different words, other lists), so the spread
    of the draws around their own mean is applied to the value of the real set.

    Args:
        count: Number of texts.
        statistic: Computes the statistic from the indices of texts.
        seed: Seed of the resampling.
        resamples: Number of draws.
    """
    indices = np.arange(count)
    value = float(statistic(indices)) if count else np.nan
    if count < 2 or not np.isfinite(value):
        return Interval(value, value, value, count)
    generator = np.random.default_rng(seed)
    draws = []
    for _ in range(resamples):
        draws.append(statistic(generator.choice(indices, count, replace=True)))
    finite_draws = np.asarray(draws)[np.isfinite(draws)]
    if not len(finite_draws):
        return Interval(value, value, value, count)
    low, high = value + np.percentile(finite_draws, PERCENTILES) - finite_draws.mean()
    return Interval(value, min(value, float(low)), max(value, float(high)), count)


def _bootstrap(sample: np.ndarray, method: str, seed: int) -> tuple[Any, Any]:
    """Return the interval of the mean by scipy; it may be NaN."""
    stats = MissingExtra.import_or_raise("scipy.stats", "bench", "A confidence interval")
    with warnings.catch_warnings():
        # scipy warns about degenerate samples; the caller checks the result instead.
        warnings.simplefilter("ignore")
        result = stats.bootstrap(
            (sample,),
            np.mean,
            vectorized=True,
            n_resamples=NUM_RESAMPLES,
            batch=max(1, MAX_CELLS // sample.size),
            confidence_level=CONFIDENCE_LEVEL,
            method=method,
            # Named rng since scipy 1.15, which reads both.
            random_state=np.random.default_rng(seed),
        )
    return result.confidence_interval.low, result.confidence_interval.high
