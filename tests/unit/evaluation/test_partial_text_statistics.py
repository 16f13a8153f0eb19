"""Statistics of random partial texts, on worlds where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from tokenlight.evaluation.partial_text_statistics import contrast_partial_texts, rank_beyond

NUM_WORDS = 16
NUM_ORDERS = 30


def draw_presence(draw):
    """Which words random orders leave: without three words, without the first half, without the second."""
    presence = np.ones((NUM_ORDERS, 3, NUM_WORDS))
    for order in presence:
        words = draw.permutation(NUM_WORDS)
        order[0, words[:3]] = 0
        order[1, words[: NUM_WORDS // 2]] = 0
        order[2, words[NUM_WORDS // 2 :]] = 0
    return presence


def rank_scores(scores, effects, controls, draw):
    """Rank scores where the log-odds are the sum of the effects of the words that are left."""
    comparisons = contrast_partial_texts(draw_presence(draw))
    shuffled = np.stack([scores, *[draw.permutation(scores) for _ in range(200)]])
    return rank_beyond(comparisons @ shuffled.T, comparisons @ effects, comparisons @ controls)


@pytest.mark.parametrize("direction", [1, -1])
def test_an_order_by_position_says_nothing_beyond_positions(direction):
    draw = np.random.default_rng(0)
    positions = np.arange(NUM_WORDS, dtype=float)
    effects = positions + draw.normal(size=NUM_WORDS)
    rank = rank_scores(direction * positions, effects, positions[:, None], draw)
    assert rank == 0.5


def test_scores_that_know_more_than_positions_rank_high():
    draw = np.random.default_rng(1)
    positions = np.arange(NUM_WORDS, dtype=float)
    effects = positions + 4 * draw.normal(size=NUM_WORDS)
    assert rank_scores(effects, effects, positions[:, None], draw) > 0.95
    assert rank_scores(-effects, effects, positions[:, None], draw) < 0.05


def test_ranks_of_random_scores_are_uniform():
    draw = np.random.default_rng(2)
    positions = np.arange(NUM_WORDS, dtype=float)
    effects = positions + draw.normal(size=NUM_WORDS)
    ranks = []
    for _ in range(200):
        scores = draw.normal(size=NUM_WORDS)
        ranks.append(rank_scores(scores, effects, positions[:, None], draw))
    # Three standard errors of a mean of 200 uniform numbers.
    assert np.mean(ranks) == pytest.approx(0.5, abs=3 * np.sqrt(1 / 12 / 200))


def test_controls_of_no_size_explain_nothing():
    draw = np.random.default_rng(3)
    effects = draw.normal(size=NUM_WORDS)
    assert rank_scores(effects, effects, np.zeros((NUM_WORDS, 1)), draw) > 0.99


def test_the_halves_of_an_order_are_compared_with_each_other():
    values = np.array([[1.0, 5.0, 3.0], [3.0, 2.0, 2.0]])
    comparisons = contrast_partial_texts(values)
    assert comparisons == pytest.approx([-1.0, 1.0, 2 / np.sqrt(2), 0.0])
