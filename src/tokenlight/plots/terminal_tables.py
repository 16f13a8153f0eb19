"""Tables of the terminal picture: the strongest tokens, class by class, layer by layer."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokenlight.plots.characters import in_line
from tokenlight.plots.colours import STEPS, Paint, step
from tokenlight.plots.facts import number
from tokenlight.plots.scene import MethodScene
from tokenlight.plots.tables import ScoreTable, layer_maps
from tokenlight.plots.views import View

MOST_TOKENS = 40  # of a table of classes
BAR = 12  # cells of a full bar
NARROW = 76  # cells of a narrow terminal, less the margin


def top_tables(methods: Sequence[MethodScene], paint: Paint | None, width: int) -> Iterable[Table]:
    """The strongest tokens of each method, side by side, in as many tables as the width needs; a
    single method gets bars."""
    single, room = len(methods) == 1, 0
    tables: list[list[tuple[str, list[Text]]]] = []
    for one in methods:
        cells = _top_cells(one.views[0], paint, bars=single)
        broad = max((cell.cell_len for cell in cells), default=0)
        if not tables or broad > room:
            tables.append([])
            room = width
        room -= broad + 3
        tables[-1].append((one.label, cells))
    for chosen in tables:
        table = Table(box=None, pad_edge=False, show_header=not single, padding=(0, 3, 0, 0))
        for label, _ in chosen:
            table.add_column(Text(in_line(label)), no_wrap=True, overflow="ellipsis")
        for row in zip_longest(*(cells for _, cells in chosen), fillvalue=Text()):
            table.add_row(*row)
        yield table


def _top_cells(view: View, paint: Paint | None, *, bars: bool) -> list[Text]:
    """Each token in its word, the rest of the word faint or the token in brackets; then its score."""
    names = []
    for piece, _ in view.top:
        parts = [(piece.before, "dim"), (piece.text, ""), (piece.after, "dim")]
        if paint is None:
            parts = [(piece.bracketed, "")]
        names.append(Text.assemble(*((in_line(text), style) for text, style in parts)))
    widest = min(24, max((name.cell_len for name in names), default=0))
    largest = max((abs(score) for _, score in view.top), default=0.0)
    for cell, (_, score) in zip(names, view.top, strict=True):
        cell.truncate(widest, overflow="ellipsis", pad=True)
        cell.append(f"  {_score(score)}".ljust(12))
        if bars and score:
            length, sign = max(1, round(BAR * abs(score) / largest)), 1 if score > 0 else -1
            if paint is not None:
                cell.append(" " * length, paint(sign * STEPS))
            else:
                cell.append(("+" if score > 0 else "-") * length)
    return names


def class_tables(whole: ScoreTable, paint: Paint | None, width: int) -> Iterable[RenderableType]:
    """Tokens down, classes across, in as many blocks as the width needs; one scale for all."""
    table = whole.without_special().strongest(MOST_TOKENS)
    yield from _table(table, paint, width)
    notes = ["empty: not yet written"] if table.unread.any() else []
    notes += [f"{table.left_out} weaker tokens left out"] if table.left_out else []
    if notes:
        yield Text(f"  {'; '.join(notes)}", style="dim")


def layer_tables(view: View, paint: Paint | None, width: int) -> Iterable[RenderableType]:
    """Tokens down, layers across, the sum last, in as many blocks as the width needs."""
    if view.layers is None:  # of a picture
        maps = layer_maps(view.attribution)
        for layer, terms in enumerate(maps):
            yield Text(f"  L{layer}", style="dim")
            yield Padding(blocks(terms, float(np.abs(maps).max()), paint), (0, 0, 0, 2))
        return
    yield from _table(view.layers.without_special(), paint, width)
    if paint is not None:
        yield Text("  the colours of the sum have a scale of their own", style="dim")


def _table(table: ScoreTable, paint: Paint | None, width: int) -> Iterable[RenderableType]:
    """Blocks of a table with a line a token, its scores as they are everywhere; a cell not yet
    written is empty."""

    def cell(row: int, column: int) -> Text:
        if table.unread[row, column]:
            return Text()
        value = float(table.values[row, column])
        return Text(_score(value), paint(step(value, scales[row])) if paint else Style())

    names, heads = ([Text(in_line(one)) for one in own] for own in (table.columns, table.rows))
    scales, widest = table.scales, min(16, max((name.cell_len for name in names), default=1))
    lines = [[cell(row, place) for place in range(len(names))] for row in range(len(heads))]
    broad = min(14, max(cell.cell_len for line in (heads, *lines) for cell in line))
    per_block = max(1, (width - widest - 4) // (broad + 1))
    for start in range(0, len(heads), per_block):
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column("", no_wrap=True, overflow="ellipsis", max_width=widest)
        for head in heads[start : start + per_block]:
            block.add_column(head, "", justify="right", no_wrap=True, min_width=4, max_width=broad)
        for cells in zip(names, *lines[start : start + per_block], strict=True):
            block.add_row(*cells)
        yield Padding(block, (0, 0, 0, 2))


def _score(value: float) -> str:
    """As everywhere, with the keyboard's minus: what is printed is searched, too."""
    return number(value).replace("−", "-")


def blocks(values: np.ndarray, scale: float, paint: Paint | None = None) -> Text:
    """A heat map ``row column`` as lines of cells; without ``paint``: the sign and tenths of the
    strongest."""
    space, lines = "" if 3 * values.shape[1] > NARROW else " ", []
    for line in values:
        lines.append(Text())
        for value in map(float, line):
            if paint is not None:
                strength = step(value, scale)
                lines[-1].append("  " if strength else " ·", paint(strength))
            else:
                tenths = min(9, round(10 * abs(value) / scale)) if scale else 0
                sign = "+" if value > 0 else "-"
                lines[-1].append((f"{sign}{tenths}" if tenths else " ·") + space)
    return Text("\n").join(lines)


def legend(paint: Paint | None) -> str:
    """How to read the blocks."""
    if paint is not None:
        return "one block per patch, from the top left"
    return "one cell per patch, from the top left: sign and tenths of the strongest"
