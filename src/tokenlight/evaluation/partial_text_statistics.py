"""Statistics of partial texts: do sums of scores follow the log-odds, and do their signs and sizes hold?"""

from enum import IntEnum

import numpy as np

TIE_TOLERANCE = 1e-9  # changes this close count as equal


class RandomPoint(IntEnum):
    """The partial texts of each random order, named by what they lack."""

    # A few words, as many as the top words.
    FEW = 0
    FIRST_HALF = 1
    SECOND_HALF = 2


def rank_first(values: np.ndarray) -> float:
    """Return the mid-rank of the first value among the others, from 0 to 1."""
    first = values[0]
    others = values[1:]
    num_below = (others < first - TIE_TOLERANCE).sum()
    num_tied = (np.abs(others - first) <= TIE_TOLERANCE).sum()
    return float((num_below + 0.5 * num_tied + 0.5) / (len(others) + 1))


def correlate_partial_texts(sums: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Correlate sums of scores with log-odds among partial texts of one size, and average over the sizes.

    Two halves of one order are compared with each other: what shortening a text does by itself, and what two
    words do only together, is the same in both.

    Args:
        sums: Of shape ``order point shuffle``; the points are those of :class:`RandomPoint`.
        log_odds: Of shape ``order point``.

    Returns:
        The mean correlation of each shuffle; 0 where nothing varies.
    """
    few_sums = sums[:, RandomPoint.FEW] - sums[:, RandomPoint.FEW].mean(axis=0)
    few_log_odds = log_odds[:, RandomPoint.FEW] - log_odds[:, RandomPoint.FEW].mean()
    half_sums = sums[:, RandomPoint.FIRST_HALF] - sums[:, RandomPoint.SECOND_HALF]
    half_log_odds = log_odds[:, RandomPoint.FIRST_HALF] - log_odds[:, RandomPoint.SECOND_HALF]
    return np.asarray(
        (_compute_cosine(few_sums, few_log_odds) + _compute_cosine(half_sums, half_log_odds)) / 2
    )


def _compute_cosine(sums: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
    """Return the cosine of each column of ``sums`` with ``log_odds``; 0 where one of them is 0."""
    products = log_odds @ sums
    sizes = np.sqrt(np.square(sums).sum(axis=0) * np.square(log_odds).sum())
    is_zero = sizes <= TIE_TOLERANCE
    return np.where(is_zero, 0.0, products / np.where(is_zero, 1.0, sizes))


def contrast_partial_texts(values: np.ndarray) -> np.ndarray:
    """Return the comparisons of partial texts of one size: those of a few words, then the two halves.

    Both have about the same variance.

    Args:
        values: Of shape ``order point …``; the points are those of :class:`RandomPoint`.

    Returns:
        Of shape ``comparison …``: each few words against their mean, and the halves of each order.
    """
    few = values[:, RandomPoint.FEW] - values[:, RandomPoint.FEW].mean(axis=0)
    halves = (values[:, RandomPoint.FIRST_HALF] - values[:, RandomPoint.SECOND_HALF]) / np.sqrt(2)
    return np.concatenate([few, halves])


def rank_beyond(sums: np.ndarray, log_odds: np.ndarray, controls: np.ndarray) -> float:
    """Rank how well sums of scores follow the log-odds beyond what other quantities explain.

    Args:
        sums: Of shape ``comparison shuffle``; the first column is that of the scores themselves.
        log_odds: One per comparison.
        controls: Of shape ``comparison control``: what is explained first, by least squares.

    Returns:
        The mid-rank of the scores among their shuffles, from 0 to 1; a half where nothing is left to explain.
    """
    basis, sizes, _ = np.linalg.svd(controls, full_matrices=False)
    basis = basis[:, sizes > TIE_TOLERANCE * max(sizes.max(initial=0.0), 1.0)]
    remaining_sums = sums - basis @ (basis.T @ sums)
    remaining_log_odds = log_odds - basis @ (basis.T @ log_odds)
    # What rounding leaves of sums that the controls explain is no evidence.
    scale = float(np.square(sums).sum(axis=0).max())
    if np.square(remaining_sums[:, 0]).sum() <= TIE_TOLERANCE * scale:
        return 0.5
    return rank_first(_compute_cosine(remaining_sums, remaining_log_odds))


def compute_zero_shift(
    removed_score_sums: np.ndarray, num_removed: np.ndarray, log_odds_falls: np.ndarray
) -> float:
    r"""Return what must be added to every word for sums of scores to follow partial texts of all sizes best.

    Fits :math:`\Delta = a\,(\Sigma + k\,n)` by least squares, where :math:`\Delta` is the fall of the
    log-odds, :math:`\Sigma` the sum of the scores of the :math:`n` removed words, and :math:`k` the
    result. Signs claim that words with a positive sum lower the log-odds when they are removed and others
    raise them, so that :math:`k = 0`.

    Args:
        removed_score_sums: The sum of the removed scores in each partial text.
        num_removed: The number of removed words in each.
        log_odds_falls: The fall of the log-odds in each.

    Returns:
        The shift; infinite if the scores predict nothing beyond the number of words.
    """
    design = np.stack([removed_score_sums, num_removed], axis=1)
    (slope, size_effect), *_ = np.linalg.lstsq(design, log_odds_falls, rcond=None)
    if slope <= 0:
        return float("inf")
    return float(size_effect / slope)
