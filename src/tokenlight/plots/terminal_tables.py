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
from tokenlight.plots.pieces import Piece
from tokenlight.plots.scene import MethodScene, View
from tokenlight.plots.tables import ScoreTable, layer_maps

MOST_TOKENS = 40  # of a table of classes
BAR = 12  # cells of a full bar
NARROW = 76  # cells of a narrow terminal, less the margin


def top_tables(methods: Sequence[MethodScene], paint: Paint | None, width: int) -> Iterable[Table]:
    """The strongest tokens of each method, side by side, in as many tables as the width needs; a
    single method gets bars."""
    single = len(methods) == 1
    columns = [(one.label, _top_cells(one.views[0].top, paint, bars=single)) for one in methods]
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


def _top_cells(
    best: Sequence[tuple[Piece, float]], paint: Paint | None, *, bars: bool
) -> list[Text]:
    names = [_name(piece, paint) for piece, _ in best]
    widest = min(24, max((name.cell_len for name in names), default=0))
    largest = max((abs(score) for _, score in best), default=0.0)
    cells = []
    for cell, (_, score) in zip(names, best, strict=True):
        cell.truncate(widest, overflow="ellipsis", pad=True)
        cell.append(f"  {_score(score)}".ljust(12))
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
        largest = float(np.abs(maps).max())
        for layer, terms in enumerate(maps):
            yield Text(f"  L{layer}", style="dim")
            yield Padding(blocks(terms, largest, paint), (0, 0, 0, 2))
        return
    yield from _table(view.layers.without_special(), paint, width)
    if paint is not None:
        yield Text("  the colours of the sum have a scale of their own", style="dim")


def _table(table: ScoreTable, paint: Paint | None, width: int) -> Iterable[RenderableType]:
    """Blocks of a table with a line a token, its scores as they are everywhere; a cell not yet
    written is empty."""
    names = [in_line(token) for token in table.columns]
    heads = [Text(in_line(name)) for name in table.rows]
    widest = min(16, max((Text(name).cell_len for name in names), default=1))
    cells = [
        [_cell(table, row, place, paint) for place in range(len(names))]
        for row in range(len(heads))
    ]
    broad = min(14, max(cell.cell_len for line in (heads, *cells) for cell in line))
    per_block = max(1, (width - widest - 4) // (broad + 1))
    for start in range(0, len(heads), per_block):
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column("", no_wrap=True, overflow="ellipsis", max_width=widest)
        chosen = range(len(heads))[start : start + per_block]
        for row in chosen:
            block.add_column(
                heads[row], justify="right", no_wrap=True, min_width=4, max_width=broad
            )
        for place, name in enumerate(names):
            block.add_row(Text(name), *(cells[row][place] for row in chosen))
        yield Padding(block, (0, 0, 0, 2))


def _cell(table: ScoreTable, row: int, column: int, paint: Paint | None) -> Text:
    if table.unread[row, column]:
        return Text()
    value = float(table.values[row, column])
    style = paint(step(value, table.scales[row])) if paint is not None else Style()
    return Text(_score(value), style)


def _score(value: float) -> str:
    """As everywhere, with the keyboard's minus: what is printed is searched, too."""
    return number(value).replace("−", "-")


def blocks(values: np.ndarray, scale: float, paint: Paint | None = None) -> Text:
    """A heat map ``row column`` as lines of cells; without ``paint``: the sign and tenths of the
    strongest."""
    space = "" if 3 * values.shape[1] > NARROW else " "
    text = Text()
    for place, line in enumerate(values):
        if place:
            text.append("\n")
        for value in map(float, line):
            if paint is not None:
                strength = step(value, scale)
                text.append("  " if strength else " ·", paint(strength))
            else:
                text.append(f"{_tenths(value, scale)}{space}")
    return text


def _tenths(value: float, scale: float) -> str:
    tenths = min(9, round(10 * abs(value) / scale)) if scale else 0
    return f"{'+' if value > 0 else '-'}{tenths}" if tenths else " ·"


def legend(paint: Paint | None) -> str:
    """How to read the blocks."""
    if paint is not None:
        return "one block per patch, from the top left"
    return "one cell per patch, from the top left: sign and tenths of the strongest"
