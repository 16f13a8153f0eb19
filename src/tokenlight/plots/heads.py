"""Figures of head statistics: where dependents stand, and which heads look at them (extra ``plots``)."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenlight.plots.charts import sheet

SHOWN = 10  # relative positions drawn to each side
KINDS = ("neither", "positional", "syntactic", "both")
COLOURS = ("#eceff1", "#1e88e5", "#e65100", "#6a1b9a")  # told apart by colour-blind eyes, too


def relation_histograms(heads: Mapping[str, Any]) -> Any:
    r"""Relative position of dependent minus head, a panel a relation (Mask-LRP, figure 1).

    ``heads``: content of a heads file. The dashed line is the threshold :math:`\max\lambda+\xi`.
    """
    relations: Mapping[str, Any] = heads["relations"]
    figure = sheet(3.2 * len(relations), 2.6, None)
    places = list(range(-SHOWN, SHOWN + 1))
    for number, (relation, found) in enumerate(relations.items()):
        axes = figure.add_subplot(1, len(relations), number + 1)
        axes.bar(
            places, [found["offsets"].get(str(place), 0.0) for place in places], color=COLOURS[1]
        )
        axes.axhline(found["threshold"], color=COLOURS[2], linestyle="--", linewidth=1)
        axes.set_ylim(0, 1)
        axes.set_title(f"{relation} ({found['dependents']})", fontsize=10)
        axes.set_xlabel("dependent − head, in words")
        if number == 0:
            axes.set_ylabel("share")
    figure.tight_layout()
    return figure


def head_map(heads: Mapping[str, Any]) -> Any:
    """Which head of which block is positional, syntactic or both (Mask-LRP, figure 5).

    Block 1 is the lowest, drawn at the bottom.
    """
    syntactic, positional = (
        np.array(heads["mask"][name]) > 0 for name in ("syntactic", "positional")
    )
    kinds = 2 * syntactic + positional
    layers, across = kinds.shape
    figure = sheet(1.6 + 0.32 * across, 1.5 + 0.3 * layers, None)
    axes = figure.add_subplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    axes.pcolormesh(
        kinds, cmap=ListedColormap(COLOURS), vmin=-0.5, vmax=3.5, edgecolors="white", linewidth=1
    )
    axes.set_xticks(np.arange(across) + 0.5, [str(head) for head in range(across)], fontsize=8)
    axes.set_yticks(
        np.arange(layers) + 0.5, [str(layer + 1) for layer in range(layers)], fontsize=8
    )
    axes.set_xlabel("head")
    axes.set_ylabel("block")
    legend = [
        Patch(color=colour, label=f"{kind} ({int((kinds == number).sum())})")
        for number, (kind, colour) in enumerate(zip(KINDS, COLOURS, strict=True))
    ]
    axes.legend(
        handles=legend, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18)
    )
    figure.tight_layout()
    return figure


def page(heads: Mapping[str, Any]) -> str:
    """One self-contained HTML page with both figures."""
    drawn = "\n".join(_svg(draw(heads)) for draw in (relation_histograms, head_map))
    title = html.escape(f"Attention heads of {heads.get('model') or 'a model'}")
    about = html.escape(f"{heads['sentences']} sentences; {', '.join(heads['sources'])}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:16px sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "svg{max-width:100%;height:auto}</style></head>"
        f"<body><h1>{title}</h1><p>{about}</p>\n{drawn}\n</body></html>\n"
    )


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    drawn = io.StringIO()
    # Fixed names and no date: the same figure is the same file.
    with rc_context({"svg.hashsalt": "tokenlight", "svg.fonttype": "none"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]
