"""How well a colour reads on another, as WCAG 2 defines it."""

from __future__ import annotations

from tokenlight.plots.colours import relative_luminance


def contrast_ratio(first, second) -> float:
    """The ratio of two colours, 1 to 21."""
    bright, dim = sorted((relative_luminance(first), relative_luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
