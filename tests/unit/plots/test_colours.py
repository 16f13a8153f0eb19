"""Stronger is darker, the sign decides the hue, and everything stays readable."""

from itertools import pairwise

import pytest

from tests.helpers.colour_contrast import compute_contrast_ratio
from tokenlight.plots.colours import (
    NUM_STEPS,
    PALETTES,
    relative_luminance,
    score_to_step,
    step_colour,
    text_colour,
)

ALL_STEPS = [number for number in range(-NUM_STEPS, NUM_STEPS + 1) if number]


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("sign", [1, -1])
def test_stronger_is_darker_on_a_light_background(palette, sign):
    lights = [
        relative_luminance(step_colour(sign * n, palette=palette)) for n in range(NUM_STEPS + 1)
    ]
    assert all(previous > following for previous, following in pairwise(lights))


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("sign", [1, -1])
def test_stronger_is_lighter_on_a_dark_background(palette, sign):
    lights = [
        relative_luminance(step_colour(sign * n, dark=True, palette=palette))
        for n in range(NUM_STEPS + 1)
    ]
    assert all(previous < following for previous, following in pairwise(lights))


def test_the_sign_decides_the_hue():
    for n in range(1, NUM_STEPS + 1):
        red, green, blue = step_colour(n)
        assert green > red
        assert green > blue
        red, green, blue = step_colour(-n)
        assert red > green
        red, _, blue = step_colour(n, palette="blue_orange")
        assert blue > red
        red, _, blue = step_colour(-n, palette="blue_orange")
        assert red > blue


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("number", ALL_STEPS)
def test_every_colour_step_is_legible(palette, dark, number):
    background = step_colour(number, dark=dark, palette=palette)
    assert compute_contrast_ratio(background, text_colour(background)) >= 4.5


def test_steps_follow_the_score():
    assert [score_to_step(s, 2.0) for s in (-2, -1, 0, 0.01, 1, 2, 5)] == [-12, -6, 0, 0, 6, 12, 12]
    assert score_to_step(1.0, 0.0) == 0


def test_contrast_equals_the_value_of_the_standard():
    assert compute_contrast_ratio((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert compute_contrast_ratio((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
