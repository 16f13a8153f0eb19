"""Tables of the terminal picture: the strongest tokens, class by class, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import isnan

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokenlight.data.attribution import Attribution
from tokenlight.plots.blocks import blocks
from tokenlight.plots.characters import in_line
from tokenlight.plots.classes import ClassTable
from tokenlight.plots.colours import STEPS, step
from tokenlight.plots.grids import layer_maps
from tokenlight.plots.groups import method_label
from tokenlight.plots.layers import layer_table
from tokenlight.plots.pieces import Piece, strongest_pieces
from tokenlight.plots.terminal_colours import Paint

MOST_TOKENS = 40  # of a table of classes
BAR = 12  # cells of a full bar


def top_tables(
    attributions: Sequence[Attribution], paint: Paint | None, width: int
) -> Iterable[Table]:
    """The strongest tokens of each method, side by side, in as many tables as the width needs; a
    single method gets bars."""
    single = len(attributions) == 1
    columns = [(method_label(a), _top_cells(a, paint, bars=single)) for a in attributions]
    while columns:
        chosen: list[tuple[str, list[Text]]] = []
        room = width
        while columns and (not chosen or _widest(columns[0][1]) <= room):
            room -= _widest(columns[0][1]) + 3
            chosen.append(columns.pop(0))
        table = Table(box=None, pad_edge=False, show_header=not single, padding=(0, 3, 0, 0))
        for label, _ in chosen:
            table.add_column(Text(in_line(label)), no_wrap=True, overflow="ellipsis")
        for cells in zip_longest(*(cells for _, cells in chosen), fillvalue=Text()):
            table.add_row(*cells)
        yield table


def _widest(cells: Sequence[Text]) -> int:
    return max((cell.cell_len for cell in cells), default=0)


def _top_cells(attribution: Attribution, paint: Paint | None, *, bars: bool) -> list[Text]:
    best = strongest_pieces(attribution)
    names = [_name(piece, paint) for piece, _ in best]
    widest = min(24, max((name.cell_len for name in names), default=0))
    largest = max((abs(score) for _, score in best), default=0.0)
    cells = []
    for cell, (_, score) in zip(names, best, strict=True):
        cell.truncate(widest, overflow="ellipsis", pad=True)
        cell.append(f"  {score:+.3g}".ljust(12))
        if bars and score:
            length = max(1, round(BAR * abs(score) / largest))
            if paint is not None:
                cell.append(" " * length, paint(STEPS if score > 0 else -STEPS))
            else:
                cell.append(("+" if score > 0 else "-") * length)
        cells.append(cell)
    return cells


def _name(piece: Piece, paint: Paint | None) -> Text:
    """A token in its word: the rest of the word faint, or the token in brackets."""
    if paint is None:
        return Text(in_line(piece.bracketed))
    parts = ((piece.before, "dim"), (piece.text, ""), (piece.after, "dim"))
    return Text.assemble(*((in_line(text), style) for text, style in parts))


def class_tables(whole: ClassTable, paint: Paint | None, width: int) -> Iterable[RenderableType]:
    """Tokens down, classes across, in as many blocks as the width needs; one scale for all."""
    table = whole.without_special().strongest(MOST_TOKENS)
    values = np.where(table.unread, np.nan, table.values)
    columns = [(in_line(name), values[row]) for row, name in enumerate(table.rows)]
    scales = [table.scale] * len(columns)
    yield from _table(table.columns, columns, scales, paint, width)
    left_out = f"; {table.left_out} weaker tokens left out" if table.left_out else ""
    later = "; empty: not yet written" if table.unread.any() else ""
    yield Text(f"  hundredths of the strongest score{later}{left_out}", style="dim")


def layer_tables(
    attribution: Attribution, paint: Paint | None, width: int
) -> Iterable[RenderableType]:
    """Tokens down, layers across, the sum last, in as many blocks as the width needs.

    Terms are written in hundredths of the strongest: of all layers for a layer, of the sum for it.
    """
    if attribution.row.image is not None:
        maps = layer_maps(attribution)
        for number, terms in enumerate(maps):
            yield Text(f"  L{number}", style="dim")
            largest = float(np.abs(maps).max())
            drawn = blocks(terms, largest, paint)
            yield Padding(drawn, (0, 0, 0, 2))
        return
    table = layer_table(attribution).without_special()
    columns = list(zip(table.rows, table.values, strict=True))
    yield from _table(table.columns, columns, table.scales, paint, width)
    yield Text("  hundredths of the strongest term; the sum has a scale of its own", style="dim")


def _table(
    tokens: Sequence[str],
    columns: Sequence[tuple[str, np.ndarray]],
    scales: Sequence[float],
    paint: Paint | None,
    width: int,
) -> Iterable[RenderableType]:
    """Blocks of a table with a line a token; numbers are hundredths of each column's scale, NaN
    an empty cell."""
    names = [in_line(token) for token in tokens]
    widest = min(16, max((Text(name).cell_len for name in names), default=1))
    broad = min(14, max(4, *(Text(name).cell_len for name, _ in columns)))
    per_block = max(1, (width - widest - 4) // (broad + 1))
    for start in range(0, len(columns), per_block):
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column("", no_wrap=True, overflow="ellipsis", max_width=widest)
        chosen = range(start, min(start + per_block, len(columns)))
        for number in chosen:
            head = Text(columns[number][0])
            block.add_column(head, justify="right", no_wrap=True, min_width=4, max_width=broad)
        for place, name in enumerate(names):
            cells = [Text(name)]
            for number in chosen:
                value, scale = float(columns[number][1][place]), scales[number]
                if isnan(value):
                    cells.append(Text())
                    continue
                style = paint(step(value, scale)) if paint is not None else Style()
                share = 100 * value / scale if scale else 0.0
                cells.append(Text(f"{share:+4.0f}", style))
            block.add_row(*cells)
        yield Padding(block, (0, 0, 0, 2))
