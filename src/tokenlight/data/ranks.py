"""Ranks of scores, equal ones counted alike."""

from collections.abc import Sequence

import numpy as np


def compute_midranks(scores: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return ranks from 1, lowest score first; equal scores share the mean of their ranks."""
    values = np.asarray(scores, dtype=np.float64)
    # Equal values form a group, which occupies consecutive ranks.
    _, group_indices, group_sizes = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(group_sizes)
    mean_ranks = last_ranks - (group_sizes - 1) / 2
    return np.asarray(mean_ranks[group_indices])
