"""One explanation and its difference to others, a row each, a column a token (Mask-LRP, figure 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference, l1_normalise
from tokenlight.plots.charts import grid, named, titled
from tokenlight.plots.colours import hexadecimal, ink, shade, step
from tokenlight.plots.facts import SCALED


def difference_map(
    reference: tuple[str, Attribution], others: Mapping[str, Attribution], *, title: str = ""
) -> Any:
    """Scores of the reference (L1 sum 1), then reference minus each other. The differences share one
    scale, so that a small one looks small; the scores have their own. Special tokens are left out."""
    name, base = reference
    kept = np.flatnonzero(~np.array(base.row.special, dtype=bool))
    rows = {name: l1_normalise(base).scores[kept]}
    rows |= {f"{name} − {label}": difference(base, a).scores[kept] for label, a in others.items()}
    tokens = [base.tokens[i] for i in kept]
    width, height = 2.2 + 0.75 * len(tokens), 1.0 + 0.34 * len(rows)
    axes = next(iter(grid(1, width=min(width, 40), height=min(height, 40))))
    strongest = [float(np.abs(scores).max(initial=0.0)) for scores in rows.values()]
    for place, scores in enumerate(rows.values()):
        scale = strongest[0] if place == 0 else max(strongest[1:])
        for column, score in enumerate(scores):
            colour = shade(step(float(score), scale))
            axes.add_patch(_box(column, place, hexadecimal(colour)))
            label = f"{score:+.2f}"
            axes.text(column, place, label, ha="center", va="center", fontsize=7,
                      color=hexadecimal(ink(colour)))  # fmt: skip
    axes.set_xlim(-0.5, len(tokens) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    named(axes, "x", tokens, rotation=45, ha="right", fontsize=8)
    named(axes, "y", list(rows), fontsize=8)
    axes.set_xlabel(SCALED, fontsize=8)
    titled(axes, title)
    return axes.figure


def _box(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white")
