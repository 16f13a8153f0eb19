"""From a score to a colour: the sign chooses the hue, the strength how far it leaves the paper.

Strength comes in steps, so that a page needs few rules and no colour in any attribute.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenlight.errors import UnknownName

STEPS = 12
RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Palette:
    """The full colours for and against, on light and on dark paper."""

    light_for: RGB
    light_against: RGB
    dark_for: RGB
    dark_against: RGB


PALETTES = {
    "green_red": Palette((20, 110, 48), (178, 24, 43), (63, 185, 80), (248, 81, 73)),
    # Told apart by every common colour vision (after Okabe and Ito).
    "blue_orange": Palette((0, 84, 160), (190, 84, 0), (86, 160, 240), (240, 150, 40)),
}
LIGHT_PAPER: RGB = (255, 255, 255)
DARK_PAPER: RGB = (22, 26, 31)


def step(score: float, scale: float) -> int:
    """Signed strength from -STEPS to STEPS; 0 for what is too weak to be told from nothing."""
    if not scale:
        return 0
    return round(max(-1.0, min(1.0, score / scale)) * STEPS)


def shade(step: int, *, dark: bool = False, palette: str = "green_red") -> RGB:
    """Background of one step: the paper at 0, the full colour at ±STEPS."""
    if palette not in PALETTES:
        raise UnknownName.among("palette", palette, PALETTES)
    chosen, paper = PALETTES[palette], DARK_PAPER if dark else LIGHT_PAPER
    if dark:
        full = chosen.dark_for if step > 0 else chosen.dark_against
    else:
        full = chosen.light_for if step > 0 else chosen.light_against
    share = 0.0 if step == 0 else 0.06 + 0.94 * abs(step) / STEPS
    mixed = [round(p + (f - p) * share) for p, f in zip(paper, full, strict=True)]
    return mixed[0], mixed[1], mixed[2]


def ink(background: RGB) -> RGB:
    """Black or white, whichever reads better on ``background``."""
    black, white = (0, 0, 0), (255, 255, 255)
    return black if contrast(background, black) >= contrast(background, white) else white


def contrast(one: RGB, other: RGB) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""
    bright, dim = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: RGB) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in colour)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
        light, dark = shade(number, palette=palette), shade(number, dark=True, palette=palette)
        lines.append(
            f".{step_name(number)}{{"
            f"background:light-dark({hexadecimal(light)},{hexadecimal(dark)});"
            f"color:light-dark({hexadecimal(ink(light))},{hexadecimal(ink(dark))});"
            f"fill:light-dark({hexadecimal(light)},{hexadecimal(dark)})}}"
        )
    return "\n".join(lines)
