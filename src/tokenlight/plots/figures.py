"""Figures for papers and slides (the extra ``plots``): each is returned, the caller saves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import MissingExtra
from tokenlight.plots.colours import LIGHT_PAPER, STEPS, hexadecimal, ink, shade
from tokenlight.plots.groups import grouped, method_label
from tokenlight.plots.layers import SUM, layer_table
from tokenlight.plots.pieces import strongest_pieces


def heat_map(attribution: Attribution, *, palette: str = "green_red", rollout: bool = False) -> Any:
    """Per-layer terms and their sum, divided by the Frobenius norm of the table (AttCAT, figure 5).

    Special tokens are left out. One colour scale for all rows, as in the paper. ``rollout``: with the
    product of the layers before their sum, as the paper has it.
    """
    table = layer_table(attribution, rollout=rollout).without_special().normalised()
    rows, columns = table.values.shape
    figure = _figure(width=2.4 + 0.55 * columns, height=1.4 + 0.32 * rows)
    axes = figure.add_subplot()
    limit = float(np.abs(table.values).max(initial=0.0)) or 1.0
    colours = _colour_map(palette)
    image = axes.imshow(table.values, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
    _ticks(axes.set_xticks, [_label(token) for token in table.columns], rotation=60, ha="right")
    _ticks(axes.set_yticks, list(table.rows))
    axes.axhline(rows - 1.5, color="black", linewidth=1)
    for column, value in enumerate(table.values[table.rows.index(SUM)]):
        background = tuple(round(255 * part) for part in colours(0.5 + value / limit / 2)[:3])
        label = f"{value:+.2f}"
        paint = hexadecimal(ink(background))
        axes.text(column, rows - 1, label, ha="center", va="center", fontsize=8, color=paint)
    axes.set_title(_label(attribution.label), parse_math=False, fontsize=10)
    figure.colorbar(image, ax=axes, label="against  ←  →  for")
    return figure


def bars(
    attributions: Attribution | Iterable[Attribution], *, k: int = 10, palette: str = "green_red"
) -> Any:
    """The ``k`` strongest tokens of each attribution as signed bars, one panel each."""
    given = [a for group in grouped(attributions) for a in group]
    across = min(3, len(given))
    down = -(-len(given) // across)
    figure = _figure(width=3.6 * across, height=0.9 + 0.28 * k * down)
    for number, attribution in enumerate(given):
        best = strongest_pieces(attribution, k)[::-1]
        scores = [score for _, score in best]
        axes = figure.add_subplot(down, across, number + 1)
        full = {sign: hexadecimal(shade(sign * STEPS, palette=palette)) for sign in (1, -1)}
        axes.barh(range(len(best)), scores, color=[full[1 if s >= 0 else -1] for s in scores])
        _ticks(axes.set_yticks, [_label(piece.bracketed) for piece, _ in best])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(
            _label(f"{method_label(attribution)} → {attribution.target.name}"),
            parse_math=False,
            fontsize=10,
        )
    return figure


def _figure(*, width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise MissingExtra.naming("matplotlib", "plots", "a figure") from missing
    # A Figure of its own, never pyplot: no global state, no window, nothing to close.
    return Figure(figsize=(min(width, 40), min(height, 40)), layout="constrained")


def _label(text: str) -> str:
    """Characters that act, or that few fonts have a sign for, in backslash notation."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _ticks(setter: Any, names: list[str], **style: Any) -> None:
    # A token with two dollar signs is no formula.
    setter(range(len(names)), names, parse_math=False, **style)


def _colour_map(palette: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    ends = [hexadecimal(shade(n * STEPS, palette=palette)) for n in (-1, 1)]
    paper = hexadecimal(LIGHT_PAPER)
    return LinearSegmentedColormap.from_list(palette, [ends[0], paper, ends[1]])
