"""Turn a score into a colour.

The sign chooses the hue and the magnitude its strength, in ``NUM_STEPS`` steps. With steps, a page needs
few style rules and no colour in any attribute, and a terminal has a shade for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tokenlight.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style

NUM_STEPS = 12
OVERLAY_OPACITY = 0.78  # opacity of the full colour over a picture, which stays visible below it
RGB = tuple[int, int, int]
StepPainter = Callable[[int], "Style"]

# Palette → background → the full colours for and against.
PALETTES: dict[str, dict[str, tuple[RGB, RGB]]] = {
    "green_red": {"light": ((20, 110, 48), (178, 24, 43)), "dark": ((63, 185, 80), (248, 81, 73))},
    # Distinguishable with every common kind of colour vision (after Okabe and Ito).
    "blue_orange": {
        "light": ((0, 84, 160), (190, 84, 0)),
        "dark": ((86, 160, 240), (240, 150, 40)),
    },
}
BACKGROUNDS: dict[str, RGB] = {"light": (255, 255, 255), "dark": (22, 26, 31)}
# Background → indices of a terminal's 256 colours for and against, from the weakest to the strongest.
# Chosen by hand, since the nearest colours to our shades are neither evenly spaced nor of one hue.
ANSI_RAMPS = {
    "dark": ((22, 28, 34, 40), (52, 88, 124, 160)),
    "light": ((194, 157, 71, 28, 22), (224, 217, 167, 124, 88)),
}
ANSI_BLACK = 16
ANSI_WHITE = 231


def score_to_step(score: float, scale: float) -> int:
    """Return the signed colour step of a score, from -NUM_STEPS to NUM_STEPS.

    Args:
        score: The score.
        scale: The magnitude that gets the full colour.

    Example:
        >>> score_to_step(-0.5, 1.0)
        -6
    """
    if not scale:
        return 0
    return round(max(-1.0, min(1.0, score / scale)) * NUM_STEPS)


def step_colour(step: int, *, dark: bool = False, palette: str = "green_red") -> RGB:
    """Return the colour of one step: the background at 0, the full colour at ±NUM_STEPS.

    Args:
        step: From −NUM_STEPS (against the target) to NUM_STEPS (for it).
        dark: Whether the background is dark.
        palette: The name of a palette; ``"blue_orange"`` suits readers who do not tell green from red.
    """
    background_name = "dark" if dark else "light"
    background = BACKGROUNDS[background_name]
    if step == 0:
        return background
    colour_for, colour_against = PALETTES[palette][background_name]
    full_colour = colour_for if step > 0 else colour_against
    share = 0.06 + 0.94 * abs(step) / NUM_STEPS
    channels = zip(background, full_colour, strict=True)
    red, green, blue = (round(start + (end - start) * share) for start, end in channels)
    return red, green, blue


def text_colour(background: RGB) -> RGB:
    """Return black or white, whichever has more contrast with ``background`` as defined by WCAG 2."""
    prefers_black = (relative_luminance(background) + 0.05) ** 2 >= 0.05 * 1.05
    return (0, 0, 0) if prefers_black else (255, 255, 255)


def relative_luminance(colour: RGB) -> float:
    """Return the luminance of a colour, from 0 to 1, as defined by WCAG 2."""
    channels = np.array(colour) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def to_hex(colour: RGB) -> str:
    """Return a colour as CSS and terminal libraries write it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def step_class(step: int) -> str:
    """Return the class of a step in the style sheet: ``f7`` for, ``a7`` against, empty for 0."""
    if step == 0:
        return ""
    side = "f" if step > 0 else "a"
    return f"{side}{abs(step)}"


def build_css_rules(palette: str) -> str:
    """Return the style rules of every step, for light and dark backgrounds."""
    rules = []
    for step in range(-NUM_STEPS, NUM_STEPS + 1):
        if step == 0:
            continue
        light = step_colour(step, palette=palette)
        dark = step_colour(step, dark=True, palette=palette)
        colours = f"light-dark({to_hex(light)},{to_hex(dark)})"
        text_colours = f"light-dark({to_hex(text_colour(light))},{to_hex(text_colour(dark))})"
        declarations = f"background:{colours};color:{text_colours};fill:{colours}"
        rules.append(f".{step_class(step)}{{{declarations}}}")
    return "\n".join(rules)


def detect_background() -> str:
    """Return ``light`` or ``dark``: from TOKENLIGHT_PAPER, else from COLORFGBG, else dark.

    Raises:
        BadInput: TOKENLIGHT_PAPER is neither.
    """
    setting = os.environ.get("TOKENLIGHT_PAPER", "")
    if setting and setting not in BACKGROUNDS:
        raise BadInput(
            f"TOKENLIGHT_PAPER={setting} is not valid. Choose one of {', '.join(BACKGROUNDS)}.",
            code="bad-paper",
        )
    if setting:
        return setting
    # Terminals that set COLORFGBG end it with the index of the background; 7 and 15 are white.
    ansi_background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if ansi_background in ("7", "15") else "dark"


def make_painter(console: Console) -> StepPainter | None:
    """Return a function from a colour step to a style; None if the console has too few colours.

    With sixteen colours the steps could not be told apart.
    """
    if console.no_color or console.color_system not in ("256", "truecolor", "windows"):
        return None
    from rich.color import Color
    from rich.style import Style

    background = detect_background()

    def paint_truecolor(step: int) -> Style:
        if step == 0:
            return Style()
        colour = step_colour(step, dark=background == "dark")
        return Style(color=to_hex(text_colour(colour)), bgcolor=to_hex(colour))

    def paint_ansi(step: int) -> Style:
        if step == 0:
            return Style()
        ramp_for, ramp_against = ANSI_RAMPS[background]
        ramp = ramp_for if step > 0 else ramp_against
        colour = Color.from_ansi(ramp[(abs(step) - 1) * len(ramp) // NUM_STEPS])
        red, green, blue = colour.get_truecolor()
        is_text_white = any(text_colour((red, green, blue)))
        text_index = ANSI_WHITE if is_text_white else ANSI_BLACK
        return Style(color=Color.from_ansi(text_index), bgcolor=colour)

    return paint_truecolor if console.color_system == "truecolor" else paint_ansi
