"""From logits to probabilities."""

import numpy as np


def log_probability(logits: np.ndarray) -> float:
    """ln P of an answer, from ``written 2``: each token's logit, and ln Σ exp of all others'."""
    return -float(np.logaddexp(0, logits[:, 1] - logits[:, 0]).sum())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Shares of all numbers together."""
    powers = np.exp(logits - logits.max())
    shares: np.ndarray = powers / powers.sum()
    return shares
