"""Orders of tokens by score, how alike two are, and which tokens a person marked."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.metrics._metric import CharacterSpan

Order = Literal["top", "bottom"]
Similarity = Literal["spearman", "kendall"]
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
    stats = MissingExtra.importing("scipy.stats", "bench", "Kendall's tau")
    return float(stats.kendalltau(first, second).statistic)


def marked_tokens(row: TokenRow, spans: Sequence[CharacterSpan]) -> np.ndarray:
    """``token``: true where a token shares a character with a span."""
    marks = np.zeros(len(row), dtype=bool)
    for position, (segment, place) in enumerate(zip(row.segments, row.spans, strict=True)):
        if place is not None:
            marks[position] = any(
                segment == part and place[0] < end and start < place[1]
                for part, start, end in spans
            )
    return marks


def seen_share(row: TokenRow, spans: Sequence[CharacterSpan]) -> float:
    """The share of the marked characters that stand before the cut of a truncated text."""
    if not row.cut:
        return 1.0
    ends = {part: 0 for part in range(len(row.texts))}
    for segment, place in zip(row.segments, row.spans, strict=True):
        if segment is not None and place is not None:
            ends[segment] = max(ends[segment], place[1])
    total = sum(end - start for _, start, end in spans)
    seen = sum(max(0, min(end, ends.get(part, 0)) - start) for part, start, end in spans)
    return seen / total if total else 0.0
