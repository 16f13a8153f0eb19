"""How alike methods rank the tokens of the same texts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokenlight.data.intervals import Interval


@dataclass(frozen=True, slots=True)
class Agreement:
    """The mean rank correlation between every two methods.

    Attributes:
        methods: Names of the methods.
        pairs: Two methods to the mean over texts with its interval.
    """

    methods: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Interval]

    @property
    def matrix(self) -> np.ndarray:
        """The means, of shape ``method method``, with 1 on the diagonal; NaN if no text can be compared."""
        matrix = np.full((len(self.methods), len(self.methods)), np.nan)
        np.fill_diagonal(matrix, 1.0)
        for (first, second), interval in self.pairs.items():
            i = self.methods.index(first)
            j = self.methods.index(second)
            matrix[i, j] = interval.mean
            matrix[j, i] = interval.mean
        return matrix
