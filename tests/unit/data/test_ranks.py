"""Orders and counts of tokens, computed by hand."""

from __future__ import annotations

import numpy as np

from tokenlight.data.ranks import compute_midranks, rank_positions
from tokenlight.metrics._perturbation import convert_shares_to_counts


def test_ranks_and_counts_equal_the_values_by_hand():
    # Equal scores keep the text's order.
    assert rank_positions([1, 3, 2, 3]).tolist() == [1, 3, 2, 0]
    assert rank_positions([1, 3, 2, 3], "bottom").tolist() == [0, 2, 1, 3]
    assert rank_positions([np.nan, 1, 2]).tolist() == [2, 1, 0]
    assert rank_positions([np.nan, 1, 2], "bottom").tolist() == [1, 2, 0]
    tenths = [k / 10 for k in range(11)]
    assert convert_shares_to_counts(tenths, 5) == [
        0,
        0,
        1,
        2,
        2,
        2,
        3,
        4,
        4,
        4,
        5,
    ]  # 0.5 → 0, 2.5 → 2
    ninths = [k / 9 for k in range(1, 10)]
    assert convert_shares_to_counts(ninths, 10) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert compute_midranks([5, 1, 5, 9]).tolist() == [2.5, 1, 2.5, 4]
