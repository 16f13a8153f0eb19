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

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tokenlight.attribution import Attribution
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.colours import STEPS, hexadecimal, ink, shade, step
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
from tokenlight.plots.passages import passages, stretch_score
from tokenlight.postprocess import merge_words

TOP = 6
BAR = 12  # cells of a full bar
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
    (console or console_on(sys.stdout)).print(picture)


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
            yield Padding(_highlighted(a, scale, coloured), (0, 0, 0, 2))
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
            if index != prediction.index
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
    shares, text = attribution.segment_shares(), Text()
    found = passages(attribution.row)
    for passage in found:
        if len(found) > 1 and passage.segment is not None:
            start = "\n" if passage.segment else ""
            text.append(f"{start}{shares.get(passage.segment, 0.0):4.0%}  ", "dim")
        for stretch in passage.stretches:
            if stretch.special:
                continue
            score = stretch_score(attribution, stretch)
            strength = step(score, scale) if stretch.positions else 0
            text.append(visible(stretch.text), _paint(strength) if coloured else "")
            if not coloured and abs(strength) >= NUMBERED:
                text.append(f"({score:+.2g})")
    return text


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
    best = attribution.top(TOP)
    names = [in_line(token) for token, _ in best]
    widest = min(24, max((Text(name).cell_len for name in names), default=0))
    largest = max((abs(score) for _, score in best), default=0.0)
    cells = []
    for name, (_, score) in zip(names, best, strict=True):
        cell = Text(name)
        cell.truncate(widest, overflow="ellipsis", pad=True)
        cell.append(f"  {score:+.3g}".ljust(12))
        if bars and largest:
            length = max(1, round(BAR * abs(score) / largest))
            if coloured:
                cell.append(" " * length, _paint(STEPS if score > 0 else -STEPS))
            else:
                cell.append(("+" if score > 0 else "-") * length)
        cells.append(cell)
    return cells + [Text()] * (TOP - len(cells))


def _layer_tables(attribution: Attribution, coloured: bool, width: int) -> Iterable[RenderableType]:
    """Tokens down, layers across, the sum last, in as many blocks as the width needs.

    Terms are written in hundredths of the strongest: of all layers for a layer, of the sum for it.
    """
    table = layer_table(attribution).without_special()
    names = [in_line(token) for token in table.columns]
    widest = min(16, max((Text(name).cell_len for name in names), default=1))
    per_block = max(1, (width - widest - 4) // 5)
    for start in range(0, len(table.rows), per_block):
        block = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        block.add_column("", no_wrap=True, overflow="ellipsis", max_width=widest)
        chosen = range(start, min(start + per_block, len(table.rows)))
        for row in chosen:
            block.add_column(table.rows[row], justify="right", no_wrap=True, min_width=4)
        for column, name in enumerate(names):
            cells = [Text(name)]
            for row in chosen:
                value, scale = float(table.values[row, column]), table.scales[row]
                style = _paint(step(value, scale)) if coloured else Style()
                share = 100 * value / scale if scale else 0.0
                cells.append(Text(f"{share:+4.0f}", style))
            block.add_row(*cells)
        yield Padding(block, (0, 0, 0, 2))
    yield Text("  hundredths of the strongest term; the sum has a scale of its own", style="dim")
