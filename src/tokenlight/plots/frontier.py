"""Cost against faithfulness: which methods no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import grid, style, titled

SPREAD = 8  # costs further apart than this stand on a logarithmic axis


@dataclass(frozen=True)
class Place:
    """What a method costs and how faithful it is."""

    cost: float
    value: float


def frontier(panels: Mapping[str, Mapping[str, Place]], metric: str, *, lower: bool = False) -> Any:
    """One panel a kind of cost, one mark a method; the line joins the methods that none
    is both cheaper and better than. ``lower``: smaller values are better."""
    axes = None
    for number, axes in enumerate(grid(len(panels))):
        title, panel = list(panels.items())[number]
        for order, (name, place) in enumerate(panel.items()):
            how = style(order) | {"linestyle": "none"}
            axes.plot(place.cost, place.value, markersize=7, label=in_line(name), **how)
        best = unbeaten(panel, lower=lower)
        axes.plot(
            [panel[name].cost for name in best],
            [panel[name].value for name in best],
            color="#5b6470",
            linewidth=1,
            zorder=0,
        )
        costs = [place.cost for place in panel.values()]
        if min(costs) > 0 and max(costs) > SPREAD * min(costs):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylabel(in_line(metric), parse_math=False)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=6 if len(panel) > 12 else 7, ncols=2 if len(panel) > 6 else 1)
        titled(axes, title)
    return axes.figure if axes is not None else None


def unbeaten(panel: Mapping[str, Place], *, lower: bool = False) -> Sequence[str]:
    """The methods, cheapest first, that no cheaper or equally cheap one matches."""
    sign = -1.0 if lower else 1.0
    found: list[str] = []
    reached = float("-inf")
    for name, place in sorted(
        panel.items(), key=lambda pair: (pair[1].cost, -sign * pair[1].value)
    ):
        if sign * place.value > reached:
            found.append(name)
            reached = sign * place.value
    return found
