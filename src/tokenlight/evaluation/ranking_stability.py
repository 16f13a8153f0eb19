"""Whether the order of methods depends on how tokens are removed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from tokenlight.data.ranks import is_constant, rank_correlation
from tokenlight.metrics.base import Metric
from tokenlight.perturb.variants import ReplacementIds

MIN_TAU = 0.6  # two orders with a smaller Kendall's tau count as different
MIN_METHODS = 3  # an order of fewer methods says nothing
# How tokens are removed, by the option ``perturb`` or the token that replaces them.
PERTURB_PHRASES = {
    "delete": "deleted",
    "pad": "replaced by [PAD]",
    "mask": "replaced by [MASK]",
    "unk": "replaced by the unknown token",
    "eos": "replaced by the end-of-text token",
    "patch": "hidden",
}


def group_removals_by_metric(metrics: Mapping[str, Metric]) -> dict[Metric, dict[str, str]]:
    """Group metrics that differ only in the option ``perturb``.

    Returns:
        The metric with ``perturb="delete"``, to each value of ``perturb`` with the key of its metric.
    """
    groups: dict[Metric, dict[str, str]] = {}
    for key, metric in metrics.items():
        component: Any = metric
        if "perturb" in component.__dataclass_fields__:
            base_metric = replace(component, perturb="delete")
            groups.setdefault(base_metric, {})[component.perturb] = key
    return groups


def _list_distinct_removals(
    keys_by_perturb: Mapping[str, str], replacement_ids: ReplacementIds | None
) -> dict[str, str]:
    """Return the phrase of each removal to the key of its metric; equal removals are listed once."""
    if replacement_ids is None:
        return {PERTURB_PHRASES[perturb]: key for perturb, key in keys_by_perturb.items()}
    # A model without [PAD] or [MASK] uses another token, which the phrase names.
    token_names = {"pad": replacement_ids.pad_name, "mask": replacement_ids.mask_name}
    phrases_and_keys: dict[str | int, tuple[str, str]] = {}
    for perturb, key in keys_by_perturb.items():
        phrase = PERTURB_PHRASES[token_names.get(perturb, perturb)]
        phrases_and_keys.setdefault(replacement_ids.find_replacement(perturb), (phrase, key))
    return dict(phrases_and_keys.values())


def check_ranking_stability(
    metrics: Mapping[str, Metric],
    means: Mapping[str, Mapping[str, float]],
    replacement_ids: ReplacementIds | None = None,
) -> Iterator[tuple[bool, str]]:
    """Check whether the order of methods depends on how tokens are removed.

    Each metric that is given with several values of ``perturb`` and the same other options is checked. The
    order is stable if Kendall's tau between every two removals is high and the same method is first.

    Args:
        metrics: Metrics by key.
        means: Key of the metric to method to mean.
        replacement_ids: Replacement tokens of the model. Removals that are the same for it are not compared.

    Yields:
        Whether the order is stable, and a sentence that says so.
    """
    for metric, keys_by_perturb in group_removals_by_metric(metrics).items():
        removals = _list_distinct_removals(keys_by_perturb, replacement_ids)
        methods, goodness = _collect_goodness(metric, removals, means)
        if len(removals) < 2 or len(methods) < MIN_METHODS:
            continue
        # A removal under which all methods are equally good orders nothing.
        if any(is_constant(row) for row in goodness.values()):
            continue
        yield _describe_stability(metric, methods, goodness)


def _collect_goodness(
    metric: Metric, removals: Mapping[str, str], means: Mapping[str, Mapping[str, float]]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the methods that all removals measured, and their means by removal; higher is better."""
    means_by_removal = {phrase: means.get(key, {}) for phrase, key in removals.items()}
    first_means = next(iter(means_by_removal.values()))
    methods = []
    for method in first_means:
        values = [row.get(method, np.nan) for row in means_by_removal.values()]
        if np.isfinite(values).all():
            methods.append(method)
    # A metric for which lower is better is negated.
    sign = -1.0 if metric.direction == "lower" else 1.0
    goodness = {}
    for phrase, row in means_by_removal.items():
        goodness[phrase] = sign * np.array([row[method] for method in methods])
    return methods, goodness


def _describe_stability(
    metric: Metric, methods: Sequence[str], goodness: Mapping[str, np.ndarray]
) -> tuple[bool, str]:
    """Return whether the order of the methods is stable, and a sentence that says so."""
    # Kendall's tau of every two removals, and the best method of each.
    taus = {}
    for (phrase_a, row_a), (phrase_b, row_b) in combinations(goodness.items(), 2):
        taus[phrase_a, phrase_b] = rank_correlation(row_a, row_b, "kendall")
    best_methods = {phrase: methods[int(row.argmax())] for phrase, row in goodness.items()}
    lowest_pair = min(taus, key=taus.__getitem__)
    first, second = lowest_pair
    tau = f"Kendall's tau {taus[lowest_pair]:.2f} between tokens {first} and {second}"
    has_one_best = len(set(best_methods.values())) == 1
    if taus[lowest_pair] >= MIN_TAU and has_one_best:
        return True, (
            f"{metric.name} orders the {len(methods)} methods alike however tokens are removed (lowest: "
            f"{tau}); {best_methods[first]} is first."
        )
    listed = ", ".join(f"“{method}” ({phrase})" for phrase, method in best_methods.items())
    return False, (
        f"The order of the {len(methods)} methods by {metric.name} depends on how tokens are removed: {tau}; "
        f"first is {listed}. Do not rank methods by one of these alone."
    )
