"""Orders and ranks of scores, and correlations between two rankings."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, MissingExtra

RankOrder = Literal["top", "bottom"]
RankCorrelation = Literal["spearman", "kendall"]


def rank_positions(scores: Sequence[float] | np.ndarray, order: RankOrder = "top") -> np.ndarray:
    """Return the positions by score, highest first (``bottom``: lowest first).

    Equal scores keep the order of the text, and NaN comes last either way. The official codes of papers sort
    unstably, so their order of equal scores is arbitrary.

    Args:
        scores: One score per token.
        order: ``"top"`` for the highest score first, ``"bottom"`` for the lowest first.

    Returns:
        The positions of the tokens in that order.

    Example:
        >>> from tokenlight.plugin import rank_positions
        >>> rank_positions([0.1, 0.7, 0.3]).tolist()
        [1, 2, 0]
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.argsort(-values if order == "top" else values, kind="stable")


def rank_subset(scores: np.ndarray, positions: np.ndarray, order: RankOrder = "top") -> np.ndarray:
    """Return ``positions`` ordered by their scores; see :func:`rank_positions`.

    Args:
        scores: Scores of all tokens.
        positions: The tokens to rank.
        order: ``"top"``: the highest score first; for the others see :func:`rank_positions`.
    """
    return np.asarray(positions[rank_positions(scores[positions], order)])


def compute_midranks(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return ranks from 1, lowest score first; equal scores share the mean of their ranks."""
    values = np.asarray(scores, dtype=np.float64)
    # Equal values form a group, which occupies consecutive ranks.
    _, group_indices, group_sizes = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(group_sizes)
    mean_ranks = last_ranks - (group_sizes - 1) / 2
    return np.asarray(mean_ranks[group_indices])


def is_constant(scores: np.ndarray) -> bool:
    """Return whether the scores rank no token above another."""
    return len(scores) < 2 or float(np.ptp(scores)) == 0.0


def check_rankable(scores: np.ndarray) -> None:
    """Raise :class:`BadInput` if the scores rank no token above another."""
    if is_constant(scores):
        raise BadInput(
            "A rank correlation is not defined, because all scores of this text are equal (or it has one "
            "token).",
            code="equal-scores",
        )


def rank_correlation(first: np.ndarray, second: np.ndarray, kind: RankCorrelation) -> float:
    """Return a rank correlation in [−1, 1]: Spearman's rho, or Kendall's tau-b (scipy).

    Args:
        first: One value per item.
        second: Values of the same items.
        kind: ``"spearman"`` or ``"kendall"``. Equal values share a rank in both.

    Raises:
        BadInput: All values of one side are equal.
    """
    check_rankable(first)
    check_rankable(second)
    if kind == "spearman":
        return float(np.corrcoef(compute_midranks(first), compute_midranks(second))[0, 1])
    stats = MissingExtra.import_or_raise("scipy.stats", "bench", "Kendall's tau")
    return float(stats.kendalltau(first, second).statistic)


def compute_normalized_ranks(attribution: Attribution) -> np.ndarray | None:
    """Return the ranks of the tokens that are not special, centered and of length 1.

    The dot product of two such vectors is Spearman's correlation. None if all scores are equal.
    """
    is_special = np.array(attribution.row.special_tokens_mask, dtype=bool)
    scores = attribution.scores[~is_special]
    if is_constant(scores):
        return None
    ranks = compute_midranks(scores)
    ranks = ranks - ranks.mean()
    return np.asarray(ranks / np.sqrt(ranks @ ranks))
