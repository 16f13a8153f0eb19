"""Tables for the terminal: the strongest tokens, scores by class or layer, and heat maps of pictures.

Every function takes ``paint``, which turns a colour step into a style; it is None without colours.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.columns import Columns
from rich.console import RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokenlight.plots import descriptions
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.colours import NUM_STEPS, StepPainter, score_to_step
from tokenlight.plots.scene import MethodScene
from tokenlight.plots.score_tables import ScoreTable, compute_layer_maps
from tokenlight.plots.views import View
from tokenlight.plots.word_pieces import TokenInWord

MAX_TABLE_TOKENS = 40  # tokens of a table of classes
BAR_WIDTH = 12  # cells of a full bar
NARROW_WIDTH = 76  # cells of a narrow terminal, less the margin
MAX_TOP_NAME_WIDTH = 24  # cells of a token among the strongest
MAX_NAME_WIDTH = 16  # cells of a token in a table
MAX_COLUMN_WIDTH = 14  # cells of a class or layer in a table
INDENT = (0, 0, 0, 2)  # cells above, right, below and left


def render_top_tables(methods: Sequence[MethodScene], paint: StepPainter | None) -> Columns:
    """Render the strongest tokens of each method side by side; a single method gets bars.

    Args:
        methods: The explanations of one text.
        paint: Returns the style of a token, by its score; None without colours.
    """
    is_single = len(methods) == 1
    tables = []
    for method in methods:
        name = to_single_line(method.label)
        table = Table(name, box=None, pad_edge=False, show_header=not is_single)
        for cell in _render_top_cells(method.views[0], paint, with_bars=is_single):
            table.add_row(cell)
        tables.append(table)
    # Tables that wrap have a blank line between them.
    return Columns(tables, padding=(1, 3))


def _render_top_cells(view: View, paint: StepPainter | None, *, with_bars: bool) -> list[Text]:
    """Render each token in its word, then its score and, if asked for, a bar."""
    strongest = view.top_tokens
    cells = [_render_token_in_word(token.token, paint) for token in strongest]
    widest = max((cell.cell_len for cell in cells), default=0)
    largest = max((abs(token.score) for token in strongest), default=0.0)
    for cell, token in zip(cells, strongest, strict=True):
        cell.truncate(min(MAX_TOP_NAME_WIDTH, widest), overflow="ellipsis", pad=True)
        cell.append(f"  {_format_ascii_score(token.score)}".ljust(12))
        if token.error is not None:
            _append_error(cell, token.error, is_uncertain=token.is_uncertain)
        if with_bars and token.score:
            length = max(1, round(BAR_WIDTH * abs(token.score) / largest))
            _append_bar(cell, length, token.score, paint)
    return cells


def _append_error(cell: Text, error: float, *, is_uncertain: bool) -> None:
    """Append the standard error of a score, with a question mark if the score could be 0."""
    mark = "?" if is_uncertain else ""
    cell.append(f"{descriptions.format_error(error)} {mark}".ljust(12), "dim")


def _render_token_in_word(token: TokenInWord, paint: StepPainter | None) -> Text:
    """Render the rest of the word faint or, without colours, the token in brackets."""
    if paint is None:
        return Text.assemble((to_single_line(token.bracketed), ""))
    return Text.assemble(
        (to_single_line(token.before), "dim"),
        (to_single_line(token.text), ""),
        (to_single_line(token.after), "dim"),
    )


def _append_bar(cell: Text, length: int, score: float, paint: StepPainter | None) -> None:
    sign = 1 if score > 0 else -1
    if paint is None:
        cell.append(("+" if sign > 0 else "-") * length, Style())
    else:
        cell.append(" " * length, paint(sign * NUM_STEPS))


def render_class_table(
    full_table: ScoreTable, paint: StepPainter | None, width: int
) -> Iterator[RenderableType]:
    """Render tokens down and classes across, on one scale.

    Args:
        full_table: The scores of each token for each class.
        paint: Colours a cell by its step; None without colours.
        width: The width of the terminal, in characters.
    """
    table = full_table.drop_special().select_strongest(MAX_TABLE_TOKENS)
    yield from _render_table(table, paint, width)
    notes = []
    if table.unread_mask.any():
        notes.append("empty: not yet written")
    if table.num_omitted:
        notes.append(f"{table.num_omitted} weaker tokens left out")
    if notes:
        yield Text(f"  {'; '.join(notes)}", style="dim")


def render_layers(
    method: MethodScene, paint: StepPainter | None, width: int
) -> Iterator[RenderableType]:
    """Render tokens down, layers across and their sum last; of a picture one heat map per layer.

    Args:
        method: An explanation with its views.
        paint: Colours a cell by its step; None without colours.
        width: The width of the terminal, in characters.
    """
    attribution = method.attribution
    name = to_single_line(attribution.method)
    if attribution.layers is None:
        yield Text(f"\n{name} has no terms layer by layer", style="dim")
        return
    yield Text(f"\n{name}, layer by layer", style="bold")
    table = method.views[0].layer_table
    if table is not None:
        yield from _render_table(table.drop_special(), paint, width)
        if paint is not None:
            yield Text("  the sum has its own colour scale", style="dim")
        return
    maps = compute_layer_maps(attribution)
    scale = float(np.abs(maps).max())
    for layer, terms in enumerate(maps):
        yield Text(f"  L{layer}", style="dim")
        yield Padding(render_heat_map(terms, scale, paint), INDENT)


def _render_table(
    table: ScoreTable, paint: StepPainter | None, width: int
) -> Iterator[RenderableType]:
    """Render one line per token, in as many blocks of columns as the width needs."""
    tokens = [Text(to_single_line(token)) for token in table.columns]
    headings = [Text(to_single_line(name)) for name in table.rows]
    scores = []  # ``row column`` of the table: a row becomes a column of the terminal
    for row, scale in enumerate(table.scales):
        scores.append(list(_render_row_cells(table, row, scale, paint)))

    token_width = min(MAX_NAME_WIDTH, max((token.cell_len for token in tokens), default=1))
    widest_cell = 0
    for cells in (headings, *scores):
        for cell in cells:
            widest_cell = max(widest_cell, cell.cell_len)
    column_width = min(MAX_COLUMN_WIDTH, widest_cell)
    columns_per_block = max(1, (width - token_width - 4) // (column_width + 1))

    for start in range(0, len(headings), columns_per_block):
        end = start + columns_per_block
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column("", no_wrap=True, overflow="ellipsis", max_width=token_width)
        for heading in headings[start:end]:
            block.add_column(
                heading, "", justify="right", no_wrap=True, min_width=4, max_width=column_width
            )
        for row_cells in zip(tokens, *scores[start:end], strict=True):
            block.add_row(*row_cells)
        yield Padding(block, INDENT)


def _render_row_cells(
    table: ScoreTable, row: int, scale: float, paint: StepPainter | None
) -> Iterator[Text]:
    """Render the scores of one row of the table; a cell that is not yet written is empty."""
    for score, is_unread in zip(table.values[row].tolist(), table.unread_mask[row], strict=True):
        if is_unread:
            yield Text()
        elif paint is None:
            yield Text(_format_ascii_score(score), Style())
        else:
            yield Text(_format_ascii_score(score), paint(score_to_step(score, scale)))


def _format_ascii_score(value: float) -> str:
    """Format a score with the minus of the keyboard, so that printed text can be searched."""
    return descriptions.format_score(value).replace("−", "-")


def render_heat_map(values: np.ndarray, scale: float, paint: StepPainter | None) -> Text:
    """Render a heat map ``row column``; without colours as sign and tenths of the strongest.

    Args:
        values: The scores of the patches.
        scale: The score that gets the full colour.
        paint: Colours a cell by its step; None without colours.
    """
    is_wide = 3 * values.shape[1] > NARROW_WIDTH
    separator = "" if is_wide else " "
    lines = []
    for row in values.tolist():
        line = Text()
        for value in row:
            if paint is None:
                line.append(_format_tenths(value, scale) + separator)
            else:
                strength = score_to_step(value, scale)
                line.append("  " if strength else " ·", paint(strength))
        lines.append(line)
    return Text("\n").join(lines)


def _format_tenths(value: float, scale: float) -> str:
    """Format a value as its sign and its tenths of ``scale``; a dot for 0."""
    tenths = 0
    if scale:
        tenths = min(9, round(10 * abs(value) / scale))
    if tenths == 0:
        return " ·"
    sign = "+" if value > 0 else "-"
    return f"{sign}{tenths}"
