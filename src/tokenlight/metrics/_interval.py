"""Means and other statistics with 95 % bootstrap intervals over texts."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

import numpy as np

from tokenlight.errors import MissingExtra

RESAMPLES = 2000
CURVE_RESAMPLES = 1000
CONFIDENCE = 0.95
EDGES = (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE))  # in per cent
CELLS = 4_000_000  # drawn at once, so that many texts do not fill the memory


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic of ``count`` texts and the interval that holds it with 95 % confidence.

    Texts that are all equal, or a single one, give an interval of width zero: read ``count``
    beside it. No text gives NaN.
    """

    mean: float
    low: float
    high: float
    count: int


def plain(value: Any) -> Any:
    """JSON values of numbers, intervals, and tables of them: NaN, which JSON has no word for, is None."""
    if isinstance(value, Interval):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Mean over texts; the interval is bias-corrected and accelerated (BCa, Efron 1987)."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        return Interval(np.nan, np.nan, np.nan, 0)
    mean = float(sample.mean())
    if len(sample) == 1 or float(np.ptp(sample)) == 0.0:
        return Interval(mean, mean, mean, len(sample))
    low, high = _bootstrap(sample, "BCa", seed)
    if not np.isfinite([low, high]).all():  # BCa divides by the jackknife's spread
        low, high = _bootstrap(sample, "percentile", seed)
    return Interval(mean, float(low), float(high), len(sample))


def curve_intervals(curves: Sequence[Sequence[float]], *, seed: int = 0) -> tuple[Interval, ...]:
    """Means point by point with percentile intervals; all curves stand on one grid."""
    kept = [curve for curve in curves if len(curve)]
    if not kept:
        return ()
    table = np.asarray(kept, dtype=np.float64)  # text point
    means = table.mean(axis=0)
    # How often each text is drawn, times the table: all points at once, one product a piece.
    generator = np.random.default_rng(seed)
    piece, draws = max(1, CELLS // len(table)), []
    for first in range(0, CURVE_RESAMPLES, piece):
        size = min(piece, CURVE_RESAMPLES - first)
        times = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), size=size)
        draws.append(times @ table / len(table))  # resample point
    low, high = np.percentile(np.concatenate(draws), EDGES, axis=0)
    return tuple(
        Interval(float(m), float(a), float(b), len(table))
        for m, a, b in zip(means, low, high, strict=True)
    )


def statistic_interval(
    count: int, statistic: Callable[[np.ndarray], float], *, seed: int = 0, resamples: int = 200
) -> Interval:
    """A statistic of a set of texts that is no mean; ``statistic`` takes the texts' numbers.

    Drawing texts with repetition shifts such a statistic (fewer different words, other lists), so the
    spread of the draws around their own mean is laid around the value of the real set.
    """
    everything = np.arange(count)
    value = float(statistic(everything)) if count else np.nan
    if count < 2 or not np.isfinite(value):
        return Interval(value, value, value, count)
    generator = np.random.default_rng(seed)
    draws = [statistic(generator.choice(everything, count, replace=True)) for _ in range(resamples)]
    finite = np.asarray(draws)[np.isfinite(draws)]
    if not len(finite):
        return Interval(value, value, value, count)
    low, high = value + np.percentile(finite, EDGES) - finite.mean()
    return Interval(value, min(value, float(low)), max(value, float(high)), count)


def _bootstrap(sample: np.ndarray, method: str, seed: int) -> tuple[Any, Any]:
    stats = MissingExtra.importing("scipy.stats", "bench", "a confidence interval")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a degenerate draw is looked for in the result instead
        found = stats.bootstrap(
            (sample,),
            np.mean,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, CELLS // sample.size),
            confidence_level=CONFIDENCE,
            method=method,
            random_state=np.random.default_rng(seed),  # rng since scipy 1.15, which reads both
        )
    return found.confidence_interval.low, found.confidence_interval.high
