"""Percentages that are shown together sum to 100, and names are short."""

import random
from dataclasses import replace

import pytest

from tests.helpers.handmade_attributions import make_attribution, make_row
from tokenlight.plots.descriptions import (
    build_badges,
    format_percent,
    round_segment_shares,
    round_to_percents,
    shorten_model_name,
)


@pytest.mark.parametrize(
    ("shares", "percents"),
    [
        ([0.335, 0.335, 0.33], [34, 33, 33]),
        ([1 / 3, 1 / 3, 1 / 3], [34, 33, 33]),
        ([0.006, 0.497, 0.497], [0, 50, 50]),
        ([0.29, 0.71], [29, 71]),  # 100 * 0.29 is 28.999999999999996
        ([0.125] * 8, [13, 13, 13, 13, 12, 12, 12, 12]),
        ([0.996, 0.004], [100, 0]),
        ([0.2, 0.3], [20, 30]),
        ([1.0], [100]),
        ([0.0, 0.0], [0, 0]),
        ([], []),
    ],
)
def test_percentages_sum_to_the_rounded_sum(shares, percents):
    assert round_to_percents(shares) == percents


@pytest.mark.parametrize(
    ("gap_percent", "remarks"),
    [(0.0, []), (0.04, []), (1.3, ["sum of the scores off by 1.3 %"])],
)
def test_a_sum_of_scores_that_is_off_is_a_remark_and_one_that_holds_is_not(gap_percent, remarks):
    row = make_row(["a film"], [[(0, 1), (2, 6)]])
    extras = {"convergence": {"gap_percent": gap_percent, "rise": 1.0, "steps": 50}}
    attribution = replace(make_attribution(row, [0.0, 0.5, 0.2, 0.0]), extras=extras)
    assert [badge for badge in build_badges(attribution) if "sum" in badge] == remarks


def test_percentages_of_a_whole_sum_to_100():
    generator = random.Random(0)
    for size in range(1, 40):
        weights = [generator.random() for _ in range(size)]
        shares = [weight / sum(weights) for weight in weights]
        percents = round_to_percents(shares)
        assert sum(percents) == 100
        for share, percent in zip(shares, percents, strict=True):
            assert abs(100 * share - percent) < 1


def test_shares_of_segments_sum_to_100_percent():
    row = make_row(["good", "bad"], [[(0, 4)], [(0, 3)]])
    parts = round_segment_shares(make_attribution(row, [0.11, 0.335, 0.11, 0.335, 0.11]))
    assert [part.name for part in parts] == ["first", "second", "special"]
    assert [part.percent for part in parts] == [34, 33, 33]


def test_a_model_is_named_without_the_folders_above_it():
    assert shorten_model_name("/home/anna/runs/first/checkpoint-500") == "…/first/checkpoint-500"
    for name in ("tokenlight/sentiment", "runs/first/checkpoint-500", "/models/bert", ""):
        assert shorten_model_name(name) == name


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (0.99903, "99.9 %"),
        (0.9996, ">99.9 %"),
        (1.0, "100.0 %"),
        (0.00097, "0.1 %"),
        (0.0004, "<0.1 %"),
        (0.0, "0.0 %"),
    ],
)
def test_only_what_would_round_to_all_or_nothing_is_given_as_a_bound(probability, expected):
    assert format_percent(probability) == expected
