"""Orders of tokens and of methods, how alike two are, and which tokens a person marked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.metrics._interval import Interval
from tokenlight.metrics._metric import CharacterSpan, Metric

Order = Literal["top", "bottom"]
Similarity = Literal["spearman", "kendall"]
PAPER_GRID = tuple(step / 10 for step in range(11))
LEAST = 0.6  # Kendall's tau below which two orders differ
FEWEST = 3  # methods below which an order says nothing
WORDS = {"delete": "deleted", "pad": "replaced by [PAD]", "mask": "replaced by [MASK]"}


def ranking(scores: Sequence[float] | np.ndarray, order: Order = "top") -> np.ndarray:
    """Positions, highest score first (``bottom``: lowest first).

    Equal scores keep the order of the text; NaN comes last either way. The official codes sort
    unstably, so their order of equal scores is arbitrary.
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.argsort(-values if order == "top" else values, kind="stable")


def ranked_among(scores: np.ndarray, places: np.ndarray, order: Order = "top") -> np.ndarray:
    """``places``, ordered by their scores."""
    return np.asarray(places[ranking(scores[places], order)])


def shares_to_counts(shares: Sequence[float], tokens: int) -> list[int]:
    """How many of ``tokens`` each share means: Python's round, so that halves go to even."""
    return [round(share * tokens) for share in shares]


def midranks(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Ranks from 1, lowest score first; equal scores share the mean of their ranks."""
    values = np.asarray(scores, dtype=np.float64)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return np.asarray((last - (sizes - 1) / 2)[group])


def require_ranks(scores: np.ndarray) -> None:
    """Refuse scores that put no token before another."""
    if len(scores) < 2 or float(np.ptp(scores)) == 0.0:
        equal = "all scores of this text are equal (or it has one token), so they rank nothing"
        raise BadInput(f"{equal} and a rank correlation is not defined.")


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
    found = np.zeros(len(row), dtype=bool)
    for i, (own, place) in enumerate(zip(row.segments, row.spans, strict=True)):
        if place is not None:
            first, last = place
            found[i] = any(own == at and first < end and start < last for at, start, end in spans)
    return found


def seen_share(row: TokenRow, spans: Sequence[CharacterSpan]) -> float:
    """The share of the marked characters that stand before the cut of a truncated text."""
    if not row.cut:
        return 1.0
    ends: dict[int | None, int] = {}
    for segment, place in zip(row.segments, row.spans, strict=True):
        ends[segment] = max(ends.get(segment, 0), place[1] if place else 0)
    total = sum(end - start for _, start, end in spans)
    seen = sum(max(0, min(end, ends.get(part, 0)) - start) for part, start, end in spans)
    return seen / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Mean rank correlation over texts of each pair of methods, with its interval."""

    methods: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Interval]

    @property
    def matrix(self) -> np.ndarray:
        """``method method``: the means, 1 on the diagonal; NaN where no text can be compared."""
        found = np.full((len(self.methods), len(self.methods)), np.nan)
        np.fill_diagonal(found, 1.0)
        for pair, interval in self.pairs.items():
            i, j = map(self.methods.index, pair)
            found[i, j] = found[j, i] = interval.mean
        return found


def unit_ranks(attribution: Attribution) -> np.ndarray | None:
    """Ranks of the tokens that are not special, centred, of length 1: the product of two such is
    Spearman's correlation. None where all scores are equal, which ranks nothing."""
    scores = attribution.scores[~np.array(attribution.row.special, dtype=bool)]
    if len(scores) < 2 or float(np.ptp(scores)) == 0.0:
        return None
    ranks = midranks(scores)
    ranks = ranks - ranks.mean()
    return np.asarray(ranks / np.sqrt(ranks @ ranks))


def removal_orders(
    metrics: Mapping[str, Metric], means: Mapping[str, Mapping[str, float]]
) -> Iterator[tuple[bool, str]]:
    """Whether methods are ordered alike however tokens are removed, and that in words: for each metric
    that is there with several values of ``perturb`` and the same other options.

    ``means``: key of the metric to method to mean, where there is one. Orders are alike where Kendall's
    tau of every two of them is high and the same method is first.
    """
    groups: dict[Metric, dict[str, str]] = {}
    for key, metric in metrics.items():
        known: Any = metric
        if "perturb" in known.__dataclass_fields__:
            groups.setdefault(replace(known, perturb="delete"), {})[known.perturb] = key
    for metric, ways in groups.items():
        own = [means.get(key, {}) for key in ways.values()]
        common = [n for n in own[0] if all(np.isfinite(one.get(n, np.nan)) for one in own)]
        sign = -1.0 if metric.direction == "lower" else 1.0
        rows = [sign * np.array([one[name] for name in common]) for one in own]
        if len(ways) < 2 or len(common) < FEWEST or not all(map(np.ptp, rows)):
            continue
        pairs = combinations(zip(ways, rows, strict=True), 2)
        taus = {(a, b): similarity(x, y, "kendall") for (a, x), (b, y) in pairs}
        first = {way: common[int(row.argmax())] for way, row in zip(ways, rows, strict=True)}
        one, other = min(taus, key=taus.__getitem__)
        tau = f"Kendall's tau {taus[one, other]:.2f} between tokens {WORDS[one]} and {WORDS[other]}"
        if taus[one, other] >= LEAST and len(set(first.values())) == 1:
            alike = f"orders the {len(common)} methods alike however tokens are removed"
            yield True, f"{metric.name} {alike} (at least, {tau}); {first[one]} is first."
            continue
        firsts = ", ".join(f"“{name}” ({WORDS[way]})" for way, name in first.items())
        order = f"The order of the {len(common)} methods by {metric.name}"
        depends = f"{order} depends on how tokens are removed: {tau}; first is {firsts}."
        yield False, f"{depends} Do not rank methods by one of these alone."
