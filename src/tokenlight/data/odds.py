"""Probabilities and log-odds of a target, as metrics and regressions watch them."""

import numpy as np

from tokenlight.data.head import Head
from tokenlight.data.probabilities import compute_continuation_log_probability
from tokenlight.data.target import ResolvedTarget

# Lower bound of 1 − p, so that the odds stay finite where p rounds to 1.
TINY_PROBABILITY = float(np.finfo(np.float64).tiny)


def compute_target_log_probability(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    """Return ln p of a continuation (the product over its tokens), of a token or of a class.

    For a contrast, p is the probability of the first among those it names.

    Args:
        head: The meaning of the logits.
        target: The target, resolved for the text that the logits are of.
        logits: The logits of the text, as the head returns them.
    """
    if target.kind == "continuation":
        return compute_continuation_log_probability(logits[target.continuation_positions])
    return -float(np.logaddexp(0, -compute_target_log_odds(head, target, logits)))


def compute_target_log_odds(head: Head, target: ResolvedTarget, logits: np.ndarray) -> float:
    r"""Return :math:`\ln\frac{p}{1-p}` of a continuation, a token or a class, which does not saturate.

    Cohen-Wang et al. (ContextCite) regress on this value. The value of a contrast of two, of a multi-label
    output, of a regression output and of a span is returned unchanged: it is such a difference already, or
    has no probability.

    Args:
        head: The meaning of the logits.
        target: The target, resolved for the text that the logits are of.
        logits: The logits of the text, as the head returns them.
    """
    if target.kind == "continuation":
        log_probability = compute_target_log_probability(head, target, logits)
        complement = max(-np.expm1(log_probability), TINY_PROBABILITY)
        return log_probability - float(np.log(complement))
    if target.kind == "contrast" and _has_several_alternatives(target):
        (_, *others) = (logits[coordinate] for coordinate, _ in target.terms)
        return float(logits[target.terms[0][0]] - np.logaddexp.reduce(others))
    if target.index is None or head.problem_type != "single" or len(logits) < 2:
        return float(target.compute_value(logits))
    # ln p/(1 − p) of a softmax is the logit minus ln Σ exp of all other logits. A token's own logit: the
    # alternatives that it was contrasted with stand for all others.
    other_logits = np.delete(logits, target.index)
    return float(logits[target.index] - np.logaddexp.reduce(other_logits))


def _has_several_alternatives(target: ResolvedTarget) -> bool:
    """Return whether a contrast is of one token with several others."""
    return len(target.terms) > 2 and sum(weight > 0 for _, weight in target.terms) == 1
