"""Curves of several methods with their intervals as bands, one panel a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import grid, style, titled


@dataclass(frozen=True)
class Line:
    """A curve: where its points stand, its means, and the interval at each (or nothing)."""

    points: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


def lines(panels: Mapping[str, Mapping[str, Line]], axis: Mapping[str, str] | None = None) -> Any:
    """One panel a title, one line a method, the 95 % interval as a band; ``axis``: title to what
    its x stands for."""
    axes = None
    for number, axes in enumerate(grid(len(panels))):
        title, panel = list(panels.items())[number]
        for place, (name, line) in enumerate(panel.items()):
            how = style(place)
            axes.plot(line.points, line.means, markersize=3.5, label=in_line(name), **how)
            if len(line.lows):
                axes.fill_between(
                    line.points, line.lows, line.highs, color=how["color"], alpha=0.12, linewidth=0
                )
        axes.set_xlabel((axis or {}).get(title, "share of tokens removed"))
        axes.grid(alpha=0.25)
        titled(axes, title)
        many = len(panel) > 12
        axes.legend(fontsize=6 if many else 7, ncols=2 if many else 1)
    return axes.figure if axes is not None else None
