"""Four words of known weight, for values of metrics that can be computed by hand."""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np

from tests.helpers.planted_model import VOCABULARY
from tokenlight import Explainer
from tokenlight.data.attribution import Attribution

WORDS = [10, 11, 12, 13]  # weights for class 1 against class 0: +2, +1, 0, −1


def make_weights(**changes: float) -> np.ndarray:
    """Return the weights, token × label, of the planted words; ``w20=3`` sets that of token 20."""
    table = np.zeros((VOCABULARY, 2))
    table[10:14, 1] = [2, 1, 0, -1]
    for token, weight in changes.items():
        table[int(token[1:]), 1] = weight
    return table


def sigmoid(x: float) -> float:
    """Return the probability of class 1 for a difference of logits."""
    return 1 / (1 + exp(-x))


def measure_value(
    explainer: Explainer, attribution: Attribution, metric: Any, **options: Any
) -> tuple[float, Any]:
    """Return the value and the curve of a metric on one attribution."""
    (row,) = explainer.evaluate(attribution, metric, **options).rows
    key = metric if isinstance(metric, str) else metric[0]
    assert row[f"{key}.skipped"] is None, row[f"{key}.skipped"]
    return row[key], row.get(f"{key}.curve")
