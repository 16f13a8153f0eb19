"""From a score to a colour: the sign chooses the hue, the strength how far it leaves the paper, in steps, so
that a page needs few rules and no colour in any attribute, and a terminal a shade for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tokenlight.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.style import Style

STEPS = 12
VEIL = 0.78  # of the full colour over a picture, which shines through
RGB = tuple[int, int, int]
Paint = Callable[[int], "Style"]


# The full colours for and against, by paper.
PALETTES: dict[str, dict[str, tuple[RGB, RGB]]] = {
    "green_red": {"light": ((20, 110, 48), (178, 24, 43)), "dark": ((63, 185, 80), (248, 81, 73))},
    # Told apart by every common colour vision (after Okabe and Ito).
    "blue_orange": {
        "light": ((0, 84, 160), (190, 84, 0)),
        "dark": ((86, 160, 240), (240, 150, 40)),
    },
}
PAPERS: dict[str, RGB] = {"light": (255, 255, 255), "dark": (22, 26, 31)}
# Of a terminal's 256 colours, by paper: numbers from the weakest to the strongest, for and against. Picked
# by hand, since the nearest to each shade are neither evenly spaced nor all of one hue.
RAMPS = {
    "dark": ((22, 28, 34, 40), (52, 88, 124, 160)),
    "light": ((194, 157, 71, 28, 22), (224, 217, 167, 124, 88)),
}


def step(score: float, scale: float) -> int:
    """Signed strength from -STEPS to STEPS; 0 for what is too weak to be told from nothing."""
    return round(max(-1.0, min(1.0, score / scale)) * STEPS) if scale else 0


def shade(step: int, *, dark: bool = False, palette: str = "green_red") -> RGB:
    """Background of one step: the paper at 0, the full colour at ±STEPS."""
    own = "dark" if dark else "light"
    full = PALETTES[palette][own][0 if step > 0 else 1]
    share = 0.0 if step == 0 else 0.06 + 0.94 * abs(step) / STEPS
    red, green, blue = (round(p + (f - p) * share) for p, f in zip(PAPERS[own], full, strict=True))
    return red, green, blue


def ink(background: RGB) -> RGB:
    """Black or white, whichever contrasts more with ``background`` as WCAG 2 defines it."""
    black = (luminance(background) + 0.05) ** 2 >= 0.05 * 1.05
    return (0, 0, 0) if black else (255, 255, 255)


def luminance(colour: RGB) -> float:
    """How bright a colour is, 0 to 1, as WCAG 2 defines it."""
    part = np.array(colour) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def hexadecimal(colour: RGB) -> str:
    """As CSS and the terminal libraries write it."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def step_name(step: int) -> str:
    """The class of a step in the style sheet: ``f7`` for, ``a7`` against, empty for none."""
    return f"{'f' if step > 0 else 'a'}{abs(step)}" if step else ""


def rules(palette: str) -> str:
    """Style rules of every step, for light and dark paper."""
    lines = []
    for number in (n for n in range(-STEPS, STEPS + 1) if n):
        shades = [shade(number, dark=dark, palette=palette) for dark in (False, True)]
        own, inks = (",".join(map(hexadecimal, c)) for c in (shades, map(ink, shades)))
        looks = f"background:light-dark({own});color:light-dark({inks});fill:light-dark({own})"
        lines.append(f".{step_name(number)}{{{looks}}}")
    return "\n".join(lines)


def paper() -> str:
    """A terminal's: of TOKENLIGHT_PAPER, else as the terminal says it (COLORFGBG); most are dark."""
    asked = os.environ.get("TOKENLIGHT_PAPER", "")
    if asked and asked not in PAPERS:
        raise BadInput(f"TOKENLIGHT_PAPER={asked} cannot be: it is {' or '.join(PAPERS)}.")
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return asked or ("light" if background in ("7", "15") else "dark")


def painter(console: Console) -> Paint | None:
    """From a step to its style; None without shades: sixteen colours cannot tell red from green."""
    if console.no_color or console.color_system not in ("256", "truecolor", "windows"):
        return None
    from rich.color import Color
    from rich.style import Style

    ground = paper()

    def paint(strength: int) -> Style:
        if not strength:
            return Style()
        if console.color_system == "truecolor":
            mixed = shade(strength, dark=ground == "dark")
            return Style(color=hexadecimal(ink(mixed)), bgcolor=hexadecimal(mixed))
        ramp = RAMPS[ground][0 if strength > 0 else 1]
        picked = Color.from_ansi(ramp[(abs(strength) - 1) * len(ramp) // STEPS])
        white = any(ink((*picked.get_truecolor(),)))
        return Style(color=Color.from_ansi(231 if white else 16), bgcolor=picked)

    return paint
