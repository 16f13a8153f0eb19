"""The highlighted text in a terminal and its tables; without colours, signed numbers beside the words. Text,
labels and names are never read as markup, and what would command the terminal is shown as a symbol."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import numpy as np

from tokenlight.errors import MissingExtra

try:
    from rich.columns import Columns
    from rich.console import Console, Group, RenderableType
    from rich.padding import Padding
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text
except ImportError as missing:
    raise MissingExtra.naming("rich", "cli", "a picture in the terminal") from missing

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import SegmentShare
from tokenlight.plots import facts, scene
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.colours import STEPS, Paint, painter, paper, step
from tokenlight.plots.passages import EXPLAINED, LATER, is_continuation
from tokenlight.plots.views import MarkedLine, ScoreTable, View, layer_maps

NUMBERED = 4  # steps from which a token carries its number where there are no colours
MOST_TOKENS = 40  # of a table of classes
BAR = 12  # cells of a full bar
NARROW = 76  # cells of a narrow terminal, less the margin


def show(
    attributions: Attribution | Iterable[Attribution],
    *,
    words: bool | None = None,
    layers: bool = False,
    reference: str | None = None,
    console: Console | None = None,
) -> None:
    """Print the picture: by words, or by tokens if ``words`` is false or, where it is not given, of what a
    model writes; ``layers`` adds the per-layer table."""
    found = [attributions] if isinstance(attributions, Attribution) else [*attributions]
    words = scene.by_words(found) if words is None else words
    place = console or console_on(sys.stdout)
    paint, picture = painter(place), list[RenderableType]()
    for text in scene.scenes(found, (scene.WORDS if words else scene.TOKENS,), reference):
        picture += [Text()] if picture else []
        picture += _text(text, paint, aid=not picture)
        for one in text.classes:
            written = is_continuation(one.methods[0].attribution)
            how = "token by token" if written else "class by class"
            picture.append(Text.assemble(f"\n{how}  ", _named(one.methods[0])))
            picture += _classes(one.tables[0][1], paint, place.width)
        for target in text.targets:
            picture += _target(target, paint)
            for method in target.methods if layers else ():
                picture += _layers(method, paint, place.width)
    if place.is_terminal:
        place.print(Group(*picture))
        return
    with place.capture() as printed:  # a file or pipe wants no blanks at the ends of its lines
        place.print(Group(*picture))
    place.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def console_on(stream: IO[str]) -> Console:
    """A console for ``stream`` that sends no escape code at all where colours are not wanted."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _text(text: scene.TextScene, paint: Paint | None, *, aid: bool) -> Iterator[Text]:
    """The prediction, and how to read what follows."""
    first, image = text.first, text.first.row.image
    prediction, labels = first.prediction, facts.predicted_labels(first)
    line = Text("prediction  ")
    if is_continuation(first):
        line.append(f"at {in_line(first.target.name)}:  ", "dim")
    line.append(in_line(labels[prediction.place] if prediction.ids else prediction.label), "bold")
    if prediction.probability is not None:
        line.append(f" {prediction.probability:.3f}", "bold")
        chances = enumerate(prediction.probabilities)
        others = sorted((-chance, i) for i, chance in chances if i != prediction.place)
        for chance, index in others[:4]:
            line.append(f"  {in_line(labels[index])} {-chance:.3f}", "dim")
        left = "others" if prediction.ids else f"{len(others) - 4} more"
        line.append(f"  and {left}" if len(others) > 4 else "", "dim")
    line.append(f"   {in_line(first.model)}" if first.model else "", "dim italic")
    yield line
    cells = "one block" if paint else "sign and tenths of the strongest, one cell"
    cells += " per patch, from the top left  "
    picture = "" if image is None else cells + in_line(image.name)
    stronger = "darker" if paint is None or paper() == "light" else "brighter"
    colours = f"green: for, red: against; {stronger} is stronger" if paint and aid else ""
    for said in filter(None, (colours, facts.null_line(first), picture)):
        yield Text(said, style="dim")


def _target(target: scene.Group, paint: Paint | None) -> Iterator[RenderableType]:
    chance = facts.chance_of_written(target.methods[0].attribution)
    yield Text.assemble("\nfor ", (in_line(target.title), "bold"), (f"  {in_line(chance)}", "dim"))
    for number, method in enumerate(target.methods):
        if number:
            yield Text()
        head, said = _named(method), facts.verdict(method.attribution)
        head.append(f"  {in_line(said)}" if said else "", "not bold")
        for note in method.notes:
            head.append(f"  {in_line(note)}", "not bold dim")
        yield head
        yield _highlighted(method.views[0], paint)
    for other in target.differences:
        yield Text("\n") + _named(other, other.attribution.method, "italic")
        yield _highlighted(other.views[0], paint)
    yield Text()
    yield Padding(_tops(target.methods, paint), (0, 0, 0, 2))


def _named(method: scene.MethodScene, name: str = "", style: str = "bold") -> Text:
    """The method, and what its scores cannot tell."""
    named = Text(in_line(name or method.label), style=style)
    if said := facts.kind_of_scores(method.attribution):
        named.append(f" ({in_line(said)})", f"not {style} dim")
    return named


def _highlighted(view: View, paint: Paint | None) -> Padding:
    """The text, of a long one its strongest sentences; or a picture, beside its text if it has one."""
    text = Text()
    if view.attribution.row.image is not None:
        grid = _blocks(view.attribution.patches(), view.scale, paint)
        if view.picture is None:
            return Padding(grid, (0, 0, 0, 2))
        text.append(f"{_weight(view.picture)}\n", "dim").append_text(grid).append("\n")
    if view.sentences:
        text += _sentences(view, paint)
    for number, line in enumerate(() if view.sentences else view.lines):
        if line.share is not None:
            text.append("\n" * (number > 0) + f"{_weight(line.share)}  ", "dim")
        _append(text, line, paint)
    if view.special is not None:
        said = facts.special_line(view.attribution, view.special)
        text.append(f"\n{in_line(said)}", "dim")
    return Padding(text, (0, 0, 0, 2))


def _sentences(view: View, paint: Paint | None) -> Text:
    """The strongest sentences of a long text, in its order, each with its sum."""
    found, kept = [one for one in view.sentences if one.scores], view.strongest
    weights = [line.share for line in view.lines if line.share is not None]
    text = Text(", ".join(map(_weight, weights)) + "\n" if weights else "", "dim")
    if len(found) > len(kept):
        unread = len(view.sentences) > len(found)
        read = f" that were read, of {len(view.sentences)}" if unread else ""
        told = f"the {len(kept)} strongest of {len(found)} sentences{read}, by number\n"
        text.append(told, "dim")
    for one in kept:
        text.append(f"{one.place:4}  {facts.number(one.score):8}  ", "dim")
        _append(text, one, paint)
        text.rstrip()
        text.append("\n")
    text.rstrip()
    return text


def _weight(part: SegmentShare) -> str:
    return f"{in_line(part.name)} {100 * part.share:.0f} % ({part.total:+.2g})"


def _append(text: Text, line: MarkedLine, paint: Paint | None) -> None:
    """Special tokens and what is not yet written are left out."""
    for mark in line.marks:
        if mark.special or LATER in mark.roles:
            continue
        written, style = visible(mark.text), paint(mark.strength) if paint else Style()
        if EXPLAINED in mark.roles:
            written = written if paint else f"»{written}«"
            style += Style(underline=paint is not None)
        text.append(written, style)
        if paint is None and abs(mark.strength) >= NUMBERED:
            text.append(f"({mark.score:+.2g})")


def _tops(methods: Sequence[scene.MethodScene], paint: Paint | None) -> Columns:
    """The strongest tokens of each method, side by side; a single method gets bars."""
    single, tables = len(methods) == 1, []
    for one in methods:
        table = Table(in_line(one.label), box=None, pad_edge=False, show_header=not single)
        for cell in _top_cells(one.views[0], paint, bars=single):
            table.add_row(cell)
        tables.append(table)
    return Columns(tables, padding=(1, 3))  # where they wrap, a blank line between


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
            filled = " " if paint else "+" if score > 0 else "-"
            cell.append(filled * length, paint(sign * STEPS) if paint else Style())
    return names


def _classes(whole: ScoreTable, paint: Paint | None, width: int) -> Iterator[RenderableType]:
    """Tokens down, classes across; one scale for all."""
    table = whole.without_special().strongest(MOST_TOKENS)
    yield from _table(table, paint, width)
    notes = ["empty: not yet written"] if table.unread.any() else []
    notes += [f"{table.left_out} weaker tokens left out"] if table.left_out else []
    if notes:
        yield Text(f"  {'; '.join(notes)}", style="dim")


def _layers(method: scene.MethodScene, paint: Paint | None, width: int) -> Iterator[RenderableType]:
    """Tokens down, layers across, the sum last; of a picture a heat map a layer."""
    a, table, name = method.attribution, method.views[0].layers, in_line(method.attribution.method)
    if a.layers is None:
        yield Text(f"\n{name} has no terms layer by layer", style="dim")
        return
    yield Text(f"\n{name}, layer by layer", style="bold")
    if table is not None:
        yield from _table(table.without_special(), paint, width)
        if paint is not None:
            yield Text("  the colours of the sum have a scale of their own", style="dim")
        return
    maps = layer_maps(a)
    for layer, terms in enumerate(maps):
        yield Text(f"  L{layer}", style="dim")
        yield Padding(_blocks(terms, float(np.abs(maps).max()), paint), (0, 0, 0, 2))


def _table(table: ScoreTable, paint: Paint | None, width: int) -> Iterator[RenderableType]:
    """A line a token, in as many blocks as the width needs; a cell not yet written is empty."""

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
    return facts.number(value).replace("−", "-")


def _blocks(values: np.ndarray, scale: float, paint: Paint | None) -> Text:
    """A heat map ``row column`` as lines of cells; without ``paint``: sign and tenths of the strongest."""
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
