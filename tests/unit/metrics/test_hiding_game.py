"""The hiding and the revealing game, computed by hand."""

from __future__ import annotations

import pytest

from tests.helpers.planted_model import make_attribution, make_planted_explainer
from tests.helpers.planted_words import WORDS, make_weights, measure_value

COVERED_MODULES = ("metrics/revealing_game",)


def test_hiding_and_revealing_games_equal_the_values_by_hand():
    explainer = make_planted_explainer(make_weights())
    words = [10, 13, 13, 12]  # 2 − 1 − 1 + 0 = 0; argmax of a tie is class 0
    attribution = make_attribution(explainer, words, [4, 3, 2, 1], target=1)
    hiding_score, curve = measure_value(
        explainer, attribution, ("hiding_game", {"num_steps": 4}), labels=[1]
    )
    # left: 0, −2, −1, 0, 0: always class 0
    assert curve == [0, 0, 0, 0, 0]
    assert hiding_score == 0
    revealed, curve = measure_value(
        explainer, attribution, ("revealing_game", {"num_steps": 4}), labels=[1]
    )
    # shown: 0, 2, 1, 0, 0: class 1 at 1/4 and 2/4
    assert curve == [0, 1, 1, 0, 0]
    assert revealed == pytest.approx(0.5)  # trapezoids ⅛ + ¼ + ⅛
    hiding_score, curve = measure_value(
        explainer, attribution, ("hiding_game", {"num_steps": 4}), labels=[0]
    )
    assert curve == [1, 1, 1, 1, 1]
    assert hiding_score == pytest.approx(1)
    least, curve = measure_value(
        explainer, attribution, ("hiding_game", {"num_steps": 4, "order": "bottom"}), labels=[1]
    )
    # hidden 12, 13, 13, 10: left 0, 0, 1, 2, 0
    assert curve == [0, 0, 1, 1, 0]
    assert least == pytest.approx(0.5)


def test_hiding_masks_the_id_and_takes_the_attention_away():
    explainer = make_planted_explainer(make_weights(w4=9))
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    # [MASK] would weigh 9 if it were attended to; hidden tokens are not.
    assert measure_value(explainer, attribution, ("hiding_game", {"num_steps": 1}), labels=[1])[
        1
    ] == [
        1,
        0,
    ]


def test_a_game_against_the_models_own_prediction_needs_no_label():
    explainer = make_planted_explainer(make_weights())
    attribution = make_attribution(explainer, WORDS, [2, 1, 0, -1])
    options = {"num_steps": 4, "target": "predicted"}
    assert measure_value(explainer, attribution, ("hiding_game", options))[1] == [1, 0, 0, 0, 0]
