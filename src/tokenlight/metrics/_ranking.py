"""Orders of tokens by score, and how many of them a step takes."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Order = Literal["top", "bottom"]
PAPER_GRID = tuple(step / 10 for step in range(11))


def ranking(scores: Sequence[float] | np.ndarray, order: Order = "top") -> np.ndarray:
    """Positions, highest score first (``bottom``: lowest first).

    Equal scores keep the order of the text; NaN comes last either way. The official codes sort
    unstably, so their order of equal scores is arbitrary.
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.argsort(-values if order == "top" else values, kind="stable")


def ranked_among(scores: np.ndarray, places: np.ndarray, order: Order = "top") -> np.ndarray:
    """``places``, ordered by their scores."""
    chosen: np.ndarray = places[ranking(scores[places], order)]
    return chosen


def shares_to_counts(shares: Sequence[float], tokens: int) -> list[int]:
    """How many of ``tokens`` each share means: Python's round, so that halves go to even."""
    return [round(share * tokens) for share in shares]


def ninths_to_counts(tokens: int) -> list[int]:
    """The official codes' nine steps: round(t / 9 · n) for t = 1 … 9, special tokens counted."""
    return [round(t / 9 * tokens) for t in range(1, 10)]


def midranks(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, lowest score first; equal scores share the mean of their ranks."""
    values = np.asarray(scores, dtype=np.float64)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    shared: np.ndarray = (last - (sizes - 1) / 2)[group]
    return shared
