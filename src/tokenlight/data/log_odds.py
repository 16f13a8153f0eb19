"""How sure a model is of a target, on scales that do not saturate: ln p, and ln p/(1−p)."""

import numpy as np

from tokenlight.data.chances import log_probability
from tokenlight.data.target import Head, ResolvedTarget

SMALLEST = float(np.finfo(np.float64).tiny)  # of 1 − p, where all of p is taken


def log_chance(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    """ln of the probability of an answer (the product over its tokens) or of a class; of a contrast
    the first class's share in the two."""
    if target.kind == "answer":
        return log_probability(logits[[place for (place, _), _ in target.terms]])
    return -float(np.logaddexp(0, -log_odds(head, target, logits)))


def log_odds(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    r"""What Cohen-Wang et al. regress on: :math:`\ln\frac{p}{1-p}` of an answer or of a class.

    A contrast, a label that excludes no other, a number and the two ends of a span stand for
    themselves: they are such differences already, or have no probability.
    """
    if target.kind == "answer":
        chance = log_chance(head, target, logits)
        return chance - float(np.log(max(-np.expm1(chance), SMALLEST)))
    value = float(target.value(logits))
    if target.index is None or head.problem != "single" or len(logits) < 2:
        return value
    return value - float(np.logaddexp.reduce(np.delete(logits, target.index)))
