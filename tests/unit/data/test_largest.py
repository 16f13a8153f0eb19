"""The largest values come in the order of a stable sort."""

from __future__ import annotations

import numpy as np
import pytest

from tokenlight.data.largest import find_largest_indices


@pytest.mark.parametrize("count", [1, 2, 7, 59, 60, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_values_are_those_of_a_stable_sort_with_ties(count, seed):
    values = np.random.default_rng(seed).integers(0, 12, 60).astype(np.float32)
    expected = np.argsort(-values, kind="stable")[:count]
    assert find_largest_indices(values, count).tolist() == expected.tolist()


def test_equal_values_come_in_their_own_order():
    assert find_largest_indices(np.zeros(9), 4).tolist() == [0, 1, 2, 3]
    assert find_largest_indices(np.array([1.0, -np.inf, 1.0, 2.0]), 3).tolist() == [3, 0, 2]
