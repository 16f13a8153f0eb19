"""A mean with the spread of several draws as a band, between two fixed methods (Mask-LRP, figure 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import grid, titled

BAND = "#1f5fa8"
DASHES = ("--", ":", "-.")


@dataclass(frozen=True)
class Band:
    """Means and standard deviations over x, and ``levels``: methods that do not depend on x."""

    x: Sequence[float]
    means: Sequence[float]
    spreads: Sequence[float]
    levels: Mapping[str, float] = field(default_factory=dict)


def bands(panels: Mapping[str, Band], axis: str) -> Any:
    """One panel a metric: line, band of one standard deviation, and a dashed line a level."""
    axes = None
    for number, axes in enumerate(grid(len(panels))):
        title, band = list(panels.items())[number]
        axes.plot(band.x, band.means, color=BAND, marker="o", markersize=3.5, label="mean")
        low = [mean - spread for mean, spread in zip(band.means, band.spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(band.means, band.spreads, strict=True)]
        axes.fill_between(
            band.x, low, high, color=BAND, alpha=0.2, linewidth=0, label="± one standard deviation"
        )
        for place, (name, level) in enumerate(band.levels.items()):
            dash = DASHES[place % len(DASHES)]
            axes.axhline(level, color=f"C{place + 1}", linestyle=dash, label=in_line(name))
        axes.set_xlabel(axis)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7)
        titled(axes, title)
    return axes.figure if axes is not None else None
