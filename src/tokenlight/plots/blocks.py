"""A heat map in a terminal: a block a patch, or sign and strength where there are no colours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.style import Style
from rich.text import Text

from tokenlight.plots.colours import step

WIDTH = 76  # of a narrow terminal, less the margin


def blocks(values: np.ndarray, scale: float, paint: Callable[[int], Style] | None = None) -> Text:
    """``row column`` as lines of cells; without ``paint``: the sign and tenths of the strongest."""
    space = "" if 3 * values.shape[1] > WIDTH else " "
    text = Text()
    for number, line in enumerate(values):
        if number:
            text.append("\n")
        for value in map(float, line):
            if paint is not None:
                strength = step(value, scale)
                text.append("  " if strength else " ·", paint(strength))
            else:
                text.append(f"{_tenths(value, scale)}{space}")
    return text


def _tenths(value: float, scale: float) -> str:
    tenths = min(9, round(10 * abs(value) / scale)) if scale else 0
    return f"{'+' if value > 0 else '-'}{tenths}" if tenths else " ·"


def legend(coloured: bool) -> str:
    """How to read the blocks."""
    if coloured:
        return "a block a patch, from the top left"
    return "a cell a patch, from the top left: sign and tenths of the strongest patch"
