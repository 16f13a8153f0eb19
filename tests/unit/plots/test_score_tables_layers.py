"""The table of layers: its numbers, whatever their size."""

from __future__ import annotations

import numpy as np
import pytest

from tokenlight.plots.score_tables import ScoreTable


@pytest.mark.parametrize("size", [1e-300, 1e-12, 1.0, 1e300])
def test_a_normalized_table_has_norm_one_over_the_texts_own_tokens(size):
    values = size * np.array([[3.0, 1.0, -2.0], [4.0, 0.5, 9.0]])
    table = ScoreTable(
        ("L0", "Sum"), ("a", "b", "[SEP]"), (False, False, True), values, np.isnan(values)
    )
    expected = values / size / np.sqrt(9 + 1 + 16 + 0.25)
    np.testing.assert_allclose(table.normalize().values, expected, rtol=1e-12)


def test_a_table_of_zeros_is_not_scaled():
    table = ScoreTable(("L0",), ("a",), (False,), np.zeros((1, 1)), np.zeros((1, 1), bool))
    assert table.normalize().values.tolist() == [[0.0]]
