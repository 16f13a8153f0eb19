"""Whether the order of methods hangs on what stands in a removed token's place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from tokenlight.metrics._metric import Metric
from tokenlight.metrics._ranking import ranking, similarity

LEAST = 0.6  # Kendall's tau below which two orders differ
FEWEST = 3  # methods below which an order says nothing
WORDS = {"delete": "deleted", "pad": "replaced by [PAD]", "mask": "replaced by [MASK]"}


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
