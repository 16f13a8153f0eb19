"""Agreement between methods: how alike they rank the tokens of the same texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.metrics._interval import Interval, mean_interval
from tokenlight.metrics._ranking import midranks


@dataclass(frozen=True, slots=True)
class Agreement:
    """``matrix[method, method]``: mean rank correlation over texts; 1 on the diagonal.

    ``pairs`` holds the interval of each pair; a pair without any comparable text is NaN.
    """

    methods: tuple[str, ...]
    matrix: np.ndarray
    pairs: Mapping[tuple[str, str], Interval]


def unit_ranks(attribution: Attribution) -> np.ndarray | None:
    """Ranks of the tokens that are not special, centred, of length 1: the product of two such is
    Spearman's correlation. None where all scores are equal, which ranks nothing."""
    scores = attribution.scores[~np.array(attribution.row.special, dtype=bool)]
    if len(scores) < 2 or float(np.ptp(scores)) == 0.0:
        return None
    ranks = midranks(scores)
    ranks = ranks - ranks.mean()
    unit: np.ndarray = ranks / np.sqrt(ranks @ ranks)
    return unit


def agreement(
    found: Mapping[tuple[str, str], Sequence[float]], methods: Sequence[str], *, seed: int = 0
) -> Agreement:
    """The matrix, from the correlations found for each pair of methods, one a text."""
    if len(methods) < 2:
        raise BadInput("agreement compares methods; give the explanations of two or more.")
    matrix = np.full((len(methods), len(methods)), np.nan)
    np.fill_diagonal(matrix, 1.0)
    pairs = {pair: mean_interval(values, seed=seed) for pair, values in found.items()}
    for (one, other), interval in pairs.items():
        i, j = methods.index(one), methods.index(other)
        matrix[i, j] = matrix[j, i] = interval.mean
    return Agreement(tuple(methods), matrix, pairs)
