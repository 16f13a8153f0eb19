"""How well a colour reads on another, as WCAG 2 defines it."""

from __future__ import annotations

from tokenlight.plots.colours import relative_luminance


def compute_contrast_ratio(first: tuple[int, int, int], second: tuple[int, int, int]) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    bright, dim = sorted((relative_luminance(first), relative_luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)
