"""Bars of methods with their intervals, and what a paper prints beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.plots.charts import grid, named, titled

OURS, THEIRS, LIMIT = "#1f5fa8", "#e65100", "#5b6470"


@dataclass(frozen=True)
class Bar:
    """A mean with its interval, and the published number; either may be missing."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None


def bars(panels: Mapping[str, Mapping[str, Bar]], limits: Sequence[float | None] = ()) -> Any:
    """One panel a title, one bar a method; a diamond is the published number, a dashed line the
    largest value there can be."""
    most = max((len(panel) for panel in panels.values()), default=1)
    axes = None
    height = 1.3 + 0.3 * most
    for number, axes in enumerate(grid(len(panels), across=3, width=4.4, height=height)):
        title, panel = list(panels.items())[number]
        names = list(panel)
        for place, bar in enumerate(panel.values()):
            if bar.mean is not None:
                axes.barh(place, bar.mean, height=0.7, color=OURS, alpha=0.85)
                if bar.low is not None and bar.high is not None:
                    reach = [[max(0.0, bar.mean - bar.low)], [max(0.0, bar.high - bar.mean)]]
                    axes.errorbar(
                        bar.mean, place, xerr=reach, color="black", capsize=2, linewidth=1
                    )
            if bar.published is not None:
                axes.plot(bar.published, place, "D", color=THEIRS, markersize=6, zorder=3)
        if number < len(limits) and limits[number] is not None:
            axes.axvline(limits[number], color=LIMIT, linestyle="--", linewidth=1)
        named(axes, "y", names, fontsize=8)
        axes.invert_yaxis()  # the first method on top, as in the tables
        axes.axvline(0, color="black", linewidth=0.8)
        axes.grid(axis="x", alpha=0.25)
        titled(axes, title)
    return axes.figure if axes is not None else None
