"""What a terminal can show of a score's strength: its paper, and a shade for each step."""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.color import Color
from rich.console import Console
from rich.style import Style

from tokenlight.errors import BadInput
from tokenlight.plots.colours import STEPS, hexadecimal, ink, shade

Paint = Callable[[int], Style]
PAPERS = ("light", "dark")
# Of the 256 colours, by paper: numbers from the weakest to the strongest, for and against. Picked by
# hand, since the nearest to each shade are neither evenly spaced nor all of one hue.
RAMPS = {
    "dark": ((22, 28, 34, 40), (52, 88, 124, 160)),
    "light": ((194, 157, 71, 28, 22), (224, 217, 167, 124, 88)),
}


def paper() -> str:
    """Of TOKENLIGHT_PAPER, else as the terminal itself says it (COLORFGBG); most are dark."""
    asked = os.environ.get("TOKENLIGHT_PAPER", "")
    if asked:
        if asked not in PAPERS:
            raise BadInput(f"TOKENLIGHT_PAPER={asked} cannot be: it is {' or '.join(PAPERS)}.")
        return asked
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in ("7", "15") else "dark"


def painter(console: Console) -> Paint | None:
    """From a step to its style; None without shades: sixteen colours cannot tell red from green."""
    if console.no_color or console.color_system not in ("256", "truecolor", "windows"):
        return None
    ground = paper()
    if console.color_system == "truecolor":
        return lambda strength: _mixed(strength, ground)
    return lambda strength: _picked(strength, ground)


def reading_aid() -> str:
    """How the colours are read, in a line."""
    return f"green: for, red: against; {'brighter' if paper() == 'dark' else 'darker'} is stronger"


def _mixed(strength: int, ground: str) -> Style:
    if not strength:
        return Style()
    background = shade(strength, dark=ground == "dark")
    return Style(color=hexadecimal(ink(background)), bgcolor=hexadecimal(background))


def _picked(strength: int, ground: str) -> Style:
    if not strength:
        return Style()
    ramp = RAMPS[ground][0 if strength > 0 else 1]
    background = Color.from_ansi(ramp[(abs(strength) - 1) * len(ramp) // STEPS])
    red, green, blue = background.get_truecolor()
    words = ink((red, green, blue))
    return Style(color=Color.from_ansi(231 if words[0] else 16), bgcolor=background)
