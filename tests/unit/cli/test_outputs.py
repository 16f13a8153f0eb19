"""Percentages of a list add up to what they are parts of."""

import random

import pytest

from tokenlight.cli.outputs import round_percentages


@pytest.mark.parametrize(
    ("shares", "percentages"),
    [
        ([1 / 3, 1 / 3, 1 / 3], [34, 33, 33]),
        ([0.125] * 8, [13, 13, 13, 13, 12, 12, 12, 12]),
        ([0.29, 0.71], [29, 71]),
        ([0.996, 0.004], [100, 0]),
        ([0.2, 0.3], [20, 30]),
        ([0.0, 0.0], [0, 0]),
        ([], []),
    ],
)
def test_percentages_are_rounded_by_the_largest_remainder(shares, percentages):
    assert round_percentages(shares) == percentages


def test_percentages_of_a_whole_sum_to_100():
    generator = random.Random(0)
    for size in range(1, 40):
        weights = [generator.random() for _ in range(size)]
        shares = [weight / sum(weights) for weight in weights]
        percentages = round_percentages(shares)
        assert sum(percentages) == 100
        for share, percentage in zip(shares, percentages, strict=True):
            assert abs(100 * share - percentage) < 1
