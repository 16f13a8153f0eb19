"""Probabilities from logits."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities that sum to 1 over all entries."""
    # Without the maximum, exp could overflow; the quotient is the same.
    exponentials = np.exp(logits - logits.max())
    probabilities: np.ndarray = exponentials / exponentials.sum()
    return probabilities


def compute_continuation_log_probability(logits: np.ndarray) -> float:
    """Return ln p of a continuation, the sum over its tokens.

    Args:
        logits: ``token 2``: each token's logit, and ln Σ exp of all other tokens' logits.
    """
    return -float(np.logaddexp(0, logits[:, 1] - logits[:, 0]).sum())
