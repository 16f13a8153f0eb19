"""The highlighted text in a terminal; where there are no colours, signed numbers beside the words.

Text, labels and model names are never read as markup, and what would command the terminal is
shown as a symbol.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokenlight.attribution import Attribution
from tokenlight.plots.blocks import blocks, legend
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.classes import ClassTable, by_class, class_table
from tokenlight.plots.colours import STEPS, hexadecimal, ink, shade, step
from tokenlight.plots.continuation import is_continuation
from tokenlight.plots.facts import even, null_line
from tokenlight.plots.grids import layer_maps
from tokenlight.plots.groups import (
    TargetGroup,
    TextGroup,
    check_reference,
    differences,
    grouped,
    method_label,
    strongest,
)
from tokenlight.plots.layers import layer_table
from tokenlight.plots.passages import Stretch, passages, stretch_score
from tokenlight.plots.zoom import Part, sentence_parts
from tokenlight.postprocess import merge_words
from tokenlight.segments import SegmentShare

TOP = 6
SENTENCES = 6  # of a long text; its page shows all
MOST_TOKENS = 40  # of a table of classes
BAR = 12  # cells of a full bar
HALF = 0.5  # of the score on special tokens is worth saying
NUMBERED = 4  # steps from which a token carries its number where there are no colours


def show(
    attributions: Attribution | Iterable[Attribution],
    *,
    words: bool = False,
    layers: bool = False,
    reference: str | None = None,
    console: Console | None = None,
) -> None:
    """Print the picture; ``words`` merges tokens to words, ``layers`` adds the per-layer table."""
    picture = render(attributions, words=words, layers=layers, reference=reference)
    place = console or console_on(sys.stdout)
    if place.is_terminal:
        place.print(picture)
        return
    with place.capture() as printed:  # a file or pipe wants no blanks at the ends of its lines
        place.print(picture)
    place.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def render(
    attributions: Attribution | Iterable[Attribution],
    *,
    words: bool = False,
    layers: bool = False,
    reference: str | None = None,
) -> RenderableType:
    """The picture as something rich can print; it looks at the console to choose its colours."""
    groups = grouped(attributions)
    if reference is not None:
        check_reference(groups, reference)
    return _Picture(groups, words, layers, reference)


def console_on(stream: IO[str]) -> Console:
    """A console for ``stream`` that sends no escape code at all where colours are not wanted."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def has_colours(console: Console) -> bool:
    """Whether shades can be shown; sixteen colours have too few to tell red from green."""
    return console.color_system in ("256", "truecolor", "windows") and not console.no_color


def on_dark() -> bool:
    """Whether the terminal's paper is dark, as far as it says so; most are."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return background not in ("7", "15")


@dataclass(frozen=True)
class _Picture:
    groups: Sequence[TextGroup]
    words: bool
    layers: bool
    reference: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        coloured = has_colours(console)
        for number, group in enumerate(self.groups):
            if number:
                yield Text()
            yield _prediction(group)
            if null := null_line(group.first):
                yield Text(null, style="dim")
            if group.first.row.image is not None:
                yield Text(
                    f"{legend(coloured)}  {in_line(group.first.row.image.name)}", style="dim"
                )
            for found in by_class(group) if group.first.row.image is None else ():
                written = is_continuation(found[0])
                how = "token by token" if written else "class by class"
                yield Text.assemble(f"\n{how}  ", (in_line(method_label(found[0])), "bold"))
                merged = [merge_words(a) for a in found] if self.words else found
                yield from _class_tables(class_table(merged), coloured, options.max_width)
            for target in group.targets:
                yield from self._target(group, target, coloured, options.max_width)

    def _target(
        self, group: TextGroup, target: TargetGroup, coloured: bool, width: int
    ) -> Iterable[RenderableType]:
        shown = [(merge_words(a) if self.words else a, group.scale(a)) for a in target.attributions]
        shown = [(a, max(scale, strongest(a)) if self.words else scale) for a, scale in shown]
        yield Text.assemble("\nfor ", (in_line(target.name), "bold"))
        for a, scale in shown:
            yield _head(a)
            sentences = sentence_parts(a)
            lines = (
                _sentences(a, scale, coloured) if sentences else _highlighted(a, scale, coloured)
            )
            yield Padding(lines, (0, 0, 0, 2))
        for a in [] if self.reference is None else differences(target, self.reference):
            compared = merge_words(a) if self.words else a
            yield Text(in_line(a.method), style="italic")
            yield Padding(_highlighted(compared, strongest(compared), coloured), (0, 0, 0, 2))
        yield Text()
        for number, table in enumerate(_tops([a for a, _ in shown], coloured, width - 2)):
            yield Padding(table, (1 if number else 0, 0, 0, 2))
        for a, _ in shown:
            if self.layers and a.layers is not None:
                yield Text(f"\n{in_line(a.method)}, layer by layer", style="bold")
                yield from _layer_tables(a, coloured, width)


def _prediction(group: TextGroup) -> Text:
    first = group.first
    prediction, line = first.prediction, Text("prediction  ")
    line.append(in_line(prediction.label), "bold")
    if prediction.probability is not None:
        line.append(f" {prediction.probability:.3f}", "bold")
        others = sorted(
            (-chance, index)
            for index, chance in enumerate(prediction.probabilities)
            if index != prediction.place
        )
        for chance, index in others[:4]:
            line.append(f"  {in_line(prediction.labels[index])} {-chance:.3f}", "dim")
        if len(others) > 4:
            line.append(f"  and {len(others) - 4} more", "dim")
    if first.model:
        line.append(f"   {in_line(first.model)}", "dim italic")
    return line


def _head(attribution: Attribution) -> Text:
    head = Text(in_line(method_label(attribution)), style="bold")
    trust = attribution.extras.get("trust")
    if isinstance(trust, dict) and trust.get("verdict"):
        head.append(f"  {in_line(str(trust['verdict']))}", "not bold dim")
    for note in attribution.notes:
        head.append(f"  {in_line(note)}", "not bold dim")
    return head


def _highlighted(attribution: Attribution, scale: float, coloured: bool) -> Text:
    text = Text()
    if attribution.row.image is not None:
        return blocks(attribution.patches(), scale, _paint if coloured else None)
    found = passages(attribution.row)
    several = len(found) > 1
    weights = {part.segment: part for part in attribution.segment_shares()} if several else {}
    for passage in found:
        part = weights.get(passage.segment)
        if part is not None:
            start = "\n" if passage.segment else ""
            text.append(f"{start}{_weight(part)}  ", "dim")
        _append(text, attribution, passage.stretches, scale, coloured)
    text.append(_on_special(attribution, always=several), "dim")
    return text


def _on_special(attribution: Attribution, *, always: bool) -> str:
    """What special tokens weigh: where they carry most, the words alone tell another story."""
    own = next((part for part in attribution.segment_shares() if part.segment is None), None)
    if own is None or not (always or own.share > HALF):
        return ""
    return f"\n{_weight(own)}"


def _weight(part: SegmentShare) -> str:
    return f"{in_line(part.name)} {100 * part.share:.0f} % ({part.total:+.2g})"


def _append(
    text: Text,
    attribution: Attribution,
    stretches: Sequence[Stretch],
    scale: float,
    coloured: bool,
) -> None:
    for stretch in stretches:
        if stretch.special:
            continue
        score = stretch_score(attribution, stretch)
        strength = step(score, scale) if stretch.positions else 0
        text.append(visible(stretch.text), _paint(strength) if coloured else "")
        if not coloured and abs(strength) >= NUMBERED:
            text.append(f"({score:+.2g})")


def _sentences(attribution: Attribution, scale: float, coloured: bool) -> Text:
    """The strongest sentences of a long text, in its order, each with its sum."""
    found = sentence_parts(attribution)
    kept = sorted(sorted(found, key=lambda part: -abs(part.score))[:SENTENCES], key=_number)
    weights = attribution.segment_shares() if len(attribution.row.texts) > 1 else ()
    text = Text(", ".join(map(_weight, weights)) + "\n" if weights else "", "dim")
    if len(found) > len(kept):
        text.append(f"the {len(kept)} strongest of {len(found)} sentences, by number\n", "dim")
    largest = max(abs(part.score) for part in found)
    for part in kept:
        text.append(f"{part.number:4}  {even(part.score, largest)}  ", "dim")
        _append(text, attribution, part.stretches, scale, coloured)
        text.rstrip()
        text.append("\n")
    text.rstrip()
    if not weights:
        text.append(_on_special(attribution, always=False), "dim")
    return text


def _number(part: Part) -> int:
    return part.number


def _paint(strength: int) -> Style:
    if not strength:
        return Style()
    background = shade(strength, dark=on_dark())
    return Style(color=hexadecimal(ink(background)), bgcolor=hexadecimal(background))


def _tops(attributions: Sequence[Attribution], coloured: bool, width: int) -> Iterable[Table]:
    """The strongest tokens of each method, side by side, in as many tables as the width needs; a
    single method gets bars."""
    single = len(attributions) == 1
    columns = [(method_label(a), _top_cells(a, coloured, bars=single)) for a in attributions]
    while columns:
        chosen: list[tuple[str, list[Text]]] = []
        room = width
        while columns and (not chosen or _widest(columns[0][1]) <= room):
            room -= _widest(columns[0][1]) + 3
            chosen.append(columns.pop(0))
        table = Table(box=None, pad_edge=False, show_header=not single, padding=(0, 3, 0, 0))
        for label, _ in chosen:
            table.add_column(Text(in_line(label)), no_wrap=True, overflow="ellipsis")
        for cells in zip(*(cells for _, cells in chosen), strict=True):
            table.add_row(*cells)
        yield table


def _widest(cells: Sequence[Text]) -> int:
    return max(cell.cell_len for cell in cells)


def _top_cells(attribution: Attribution, coloured: bool, *, bars: bool) -> list[Text]:
    # Scores of exactly zero (tokens written later, masked by a rule) are no strongest ones.
    best = [one for one in attribution.top(TOP) if one[1]] or attribution.top(TOP)
    names = [in_line(token) for token, _ in best]
    widest = min(24, max((Text(name).cell_len for name in names), default=0))
    largest = max((abs(score) for _, score in best), default=0.0)
    cells = []
    for name, (_, score) in zip(names, best, strict=True):
        cell = Text(name)
        cell.truncate(widest, overflow="ellipsis", pad=True)
        cell.append(f"  {score:+.3g}".ljust(12))
        if bars and score:
            length = max(1, round(BAR * abs(score) / largest))
            if coloured:
                cell.append(" " * length, _paint(STEPS if score > 0 else -STEPS))
            else:
                cell.append(("+" if score > 0 else "-") * length)
        cells.append(cell)
    return cells + [Text()] * (TOP - len(cells))


def _class_tables(whole: ClassTable, coloured: bool, width: int) -> Iterable[RenderableType]:
    """Tokens down, classes across, in as many blocks as the width needs; one scale for all."""
    table = whole.without_special().strongest(MOST_TOKENS)
    columns = [(in_line(name), table.values[row]) for row, name in enumerate(table.rows)]
    scales = [table.scale] * len(columns)
    yield from _table(table.columns, columns, scales, coloured, width)
    left_out = f"; {table.left_out} weaker tokens left out" if table.left_out else ""
    yield Text(f"  hundredths of the strongest score{left_out}", style="dim")


def _layer_tables(attribution: Attribution, coloured: bool, width: int) -> Iterable[RenderableType]:
    """Tokens down, layers across, the sum last, in as many blocks as the width needs.

    Terms are written in hundredths of the strongest: of all layers for a layer, of the sum for it.
    """
    if attribution.row.image is not None:
        maps = layer_maps(attribution)
        for number, terms in enumerate(maps):
            yield Text(f"  L{number}", style="dim")
            largest = float(np.abs(maps).max())
            drawn = blocks(terms, largest, _paint if coloured else None)
            yield Padding(drawn, (0, 0, 0, 2))
        return
    table = layer_table(attribution).without_special()
    columns = list(zip(table.rows, table.values, strict=True))
    yield from _table(table.columns, columns, table.scales, coloured, width)
    yield Text("  hundredths of the strongest term; the sum has a scale of its own", style="dim")


def _table(
    tokens: Sequence[str],
    columns: Sequence[tuple[str, np.ndarray]],
    scales: Sequence[float],
    coloured: bool,
    width: int,
) -> Iterable[RenderableType]:
    """Blocks of a table with a line a token; numbers are hundredths of each column's scale."""
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
                style = _paint(step(value, scale)) if coloured else Style()
                share = 100 * value / scale if scale else 0.0
                cells.append(Text(f"{share:+4.0f}", style))
            block.add_row(*cells)
        yield Padding(block, (0, 0, 0, 2))
