"""How alike two score vectors rank their tokens."""

from typing import Literal

import numpy as np

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.metrics._ranking import midranks

Similarity = Literal["spearman", "kendall"]


def require_ranks(scores: np.ndarray) -> None:
    """Refuse scores that put no token before another."""
    if len(scores) < 2 or float(np.ptp(scores)) == 0.0:
        raise BadInput(
            "all scores of this text are equal (or it has one token), so they rank nothing and "
            "a rank correlation is not defined."
        )


def similarity(first: np.ndarray, second: np.ndarray, how: Similarity) -> float:
    """Rank correlation in [−1, 1]: Spearman's rho, or Kendall's tau-b (scipy)."""
    for scores in (first, second):
        require_ranks(scores)
    if how == "spearman":
        return float(np.corrcoef(midranks(first), midranks(second))[0, 1])
    try:
        from scipy.stats import kendalltau
    except ImportError as missing:
        raise MissingExtra.naming("scipy", "bench", "Kendall's tau") from missing
    return float(kendalltau(first, second).statistic)
