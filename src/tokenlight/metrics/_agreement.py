"""Agreement: how alike methods rank the tokens of texts, and ways of removing tokens the methods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput
from tokenlight.metrics._interval import Interval, mean_interval
from tokenlight.metrics._metric import Metric
from tokenlight.metrics._ranking import midranks, ranking, similarity

LEAST = 0.6  # Kendall's tau below which two orders differ
FEWEST = 3  # methods below which an order says nothing
WORDS = {"delete": "deleted", "pad": "replaced by [PAD]", "mask": "replaced by [MASK]"}


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


@dataclass(frozen=True, slots=True)
class Replacements:
    """The orders that one metric gives ``methods`` methods as tokens are removed in several ways.

    ``taus``: pair of ways to Kendall's tau of their orders; ``first``: way to the method that is best.
    """

    metric: str
    methods: int
    taus: Mapping[tuple[str, str], float]
    first: Mapping[str, str]

    @property
    def steady(self) -> bool:
        """Whether every two orders are alike and have the same method first."""
        return min(self.taus.values()) >= LEAST and len(set(self.first.values())) == 1

    def __str__(self) -> str:
        (one, other), tau = min(self.taus.items(), key=lambda pair: pair[1])
        alike = f"Kendall's tau {tau:.2f} between tokens {WORDS[one]} and {WORDS[other]}"
        if self.steady:
            name = next(iter(self.first.values()))
            least = "" if len(self.taus) == 1 else "at least, "
            return (
                f"{self.metric} orders the {self.methods} methods alike however tokens are removed "
                f"({least}{alike}); {name} is first."
            )
        firsts = ", ".join(f"“{name}” ({WORDS[way]})" for way, name in self.first.items())
        return (
            f"The order of the {self.methods} methods by {self.metric} depends on how tokens are removed: "
            f"{alike}; first is {firsts}. Do not rank methods by one of these alone."
        )


def replacements(
    metrics: Mapping[str, Metric], means: Mapping[str, Mapping[str, float]]
) -> Iterator[Replacements]:
    """For each metric that is there with several values of ``perturb`` and the same other options.

    ``means``: key of the metric to method to mean, where there is one.
    """
    groups: dict[Metric, dict[str, str]] = {}
    for key, metric in metrics.items():
        known: Any = metric
        if getattr(metric, "perturb", None) in WORDS:
            groups.setdefault(replace(known, perturb="delete"), {})[known.perturb] = key
    for metric, ways in groups.items():
        own = [means.get(key, {}) for key in ways.values()]
        common = [n for n in own[0] if all(np.isfinite(one.get(n, np.nan)) for one in own)]
        sign = -1.0 if metric.direction == "lower" else 1.0
        lists = {
            way: sign * np.array([one[name] for name in common])
            for way, one in zip(ways, own, strict=True)
        }
        if len(ways) < 2 or len(common) < FEWEST or not all(map(np.ptp, lists.values())):
            continue
        taus = {
            (one, other): similarity(lists[one], lists[other], "kendall")
            for one, other in combinations(lists, 2)
        }
        first = {way: common[int(ranking(values)[0])] for way, values in lists.items()}
        yield Replacements(metric.name, len(common), taus, first)
