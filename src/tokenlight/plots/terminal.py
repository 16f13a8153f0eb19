"""The highlighted text in a terminal; where there are no colours, signed numbers beside the words.

Text, labels and model names are never read as markup, and what would command the terminal is
shown as a symbol.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from tokenlight.errors import MissingExtra

try:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text
except ImportError as missing:
    raise MissingExtra.naming("rich", "cli", "a picture in the terminal") from missing

from tokenlight.data.attribution import Attribution
from tokenlight.data.units import SegmentShare
from tokenlight.plots import facts, scene
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.colours import Paint, painter, reading_aid
from tokenlight.plots.roles import EXPLAINED, LATER, is_continuation
from tokenlight.plots.terminal_tables import blocks, class_tables, layer_tables, legend, top_tables

NUMBERED = 4  # steps from which a token carries its number where there are no colours
VERDICTS = {
    "faithful": "green", "better than chance": "yellow", "cannot tell": "magenta",
    "no better than chance": "red", "worse than chance": "red",
}  # fmt: skip


def show(
    attributions: Attribution | Iterable[Attribution],
    *,
    words: bool | None = None,
    layers: bool = False,
    reference: str | None = None,
    console: Console | None = None,
) -> None:
    """Print the picture: one score a word, or a token if ``words`` is false or, where it is not given, of
    what a model writes; ``layers`` adds the per-layer table."""
    found = [attributions] if isinstance(attributions, Attribution) else [*attributions]
    words = scene.by_words(found) if words is None else words
    scenery = scene.Scenery((scene.WORDS if words else scene.TOKENS,), reference)
    picture = _Picture(scenery.of(found), layers)
    place = console or console_on(sys.stdout)
    if place.is_terminal:
        place.print(picture)
        return
    with place.capture() as printed:  # a file or pipe wants no blanks at the ends of its lines
        place.print(picture)
    place.file.write("".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()))


def console_on(stream: IO[str]) -> Console:
    """A console for ``stream`` that sends no escape code at all where colours are not wanted."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


@dataclass(frozen=True)
class _Picture:
    texts: Sequence[scene.TextScene]
    layers: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        paint = painter(console)
        for number, text in enumerate(self.texts):
            first = text.group.first
            if number:
                yield Text()
            yield _prediction(first)
            if paint is not None and not number:
                yield Text(reading_aid(), style="dim")
            if null := facts.null_line(first):
                yield Text(null, style="dim")
            if first.row.image is not None:
                yield Text(f"{legend(paint)}  {in_line(first.row.image.name)}", style="dim")
            for one in text.classes:
                how = "token by token" if one.written else "class by class"
                yield Text.assemble(f"\n{how}  ", _named(one.methods[0]))
                yield from class_tables(one.tables[0][1], paint, options.max_width)
            for target in text.targets:
                yield from self._target(target, paint, options.max_width)

    def _target(
        self, target: scene.TargetScene, paint: Paint | None, width: int
    ) -> Iterable[RenderableType]:
        chance = facts.chance_of_written(target.methods[0].attribution)
        title = in_line(target.group.title)
        yield Text.assemble("\nfor ", (title, "bold"), (f"  {in_line(chance)}", "dim"))
        for number, method in enumerate(target.methods):
            if number:
                yield Text()
            yield _head(method)
            view = method.views[0]
            lines = _sentences(view, paint) if view.sentences else _highlighted(view, paint)
            yield Padding(lines, (0, 0, 0, 2))
        for other in target.differences:
            name = Text(f"\n{in_line(other.attribution.method)}", style="italic")
            yield name.append(f" ({facts.kind_of_scores(other.attribution)})", "not italic dim")
            yield Padding(_highlighted(other.views[0], paint), (0, 0, 0, 2))
        yield Text()
        for number, table in enumerate(top_tables(target.methods, paint, width - 2)):
            yield Padding(table, (1 if number else 0, 0, 0, 2))
        for method in target.methods if self.layers else ():
            method_name = in_line(method.attribution.method)
            if method.attribution.layers is None:
                yield Text(f"\n{method_name} has no terms layer by layer", style="dim")
            else:
                yield Text(f"\n{method_name}, layer by layer", style="bold")
                yield from layer_tables(method.views[0], paint, width)


def _prediction(first: Attribution) -> Text:
    prediction, line = first.prediction, Text("prediction  ")
    labels = facts.predicted_labels(first)
    if is_continuation(first):
        line.append(f"at {in_line(first.target.name)}:  ", "dim")
    best = labels[prediction.place] if prediction.ids else prediction.label
    line.append(in_line(best), "bold")
    if prediction.probability is not None:
        line.append(f" {prediction.probability:.3f}", "bold")
        others = sorted(
            (-chance, index)
            for index, chance in enumerate(prediction.probabilities)
            if index != prediction.place
        )
        for chance, index in others[:4]:
            line.append(f"  {in_line(labels[index])} {-chance:.3f}", "dim")
        if len(others) > 4:
            left = "others" if prediction.ids else f"{len(others) - 4} more"
            line.append(f"  and {left}", "dim")
    if first.model:
        line.append(f"   {in_line(first.model)}", "dim italic")
    return line


def _head(method: scene.MethodScene) -> Text:
    head, attribution = _named(method), method.attribution
    if said := in_line(facts.verdict(attribution)):
        graded = facts.grade(attribution)
        if graded in VERDICTS:  # the grade in its colour, the reasons faint
            head.append(f"  {graded}", f"not bold {VERDICTS[graded]}")
        head.append(
            said.removeprefix(graded) if graded in VERDICTS else f"  {said}", "not bold dim"
        )
    for note in method.notes:
        head.append(f"  {in_line(note)}", "not bold dim")
    return head


def _named(method: scene.MethodScene) -> Text:
    """The method, and what its scores cannot tell."""
    name = Text(in_line(method.label), style="bold")
    if said := facts.kind_of_scores(method.attribution):
        name.append(f" ({in_line(said)})", "not bold dim")
    return name


def _highlighted(view: scene.View, paint: Paint | None) -> Text:
    text = Text()
    if view.attribution.row.image is not None:
        grid = blocks(view.attribution.patches(), view.scale, paint)
        if view.picture is None:
            return grid
        text.append(f"{_weight(view.picture)}\n", "dim").append_text(grid).append("\n")
    for number, line in enumerate(view.lines):
        if line.share is not None:
            name = in_line(line.share.name)
            weighs = f"{name}, nothing yet" if line.unread else _weight(line.share)
            text.append("\n" * (number > 0) + f"{weighs}  ", "dim")
        _append(text, line.marks, paint)
    if view.special is not None:
        text.append(f"\n{in_line(facts.special_line(view.attribution, view.special))}", "dim")
    return text


def _weight(part: SegmentShare) -> str:
    return f"{in_line(part.name)} {100 * part.share:.0f} % ({part.total:+.2g})"


def _append(text: Text, marks: Iterable[scene.Mark], paint: Paint | None) -> None:
    """Special tokens and what is not yet written are left out."""
    for mark in marks:
        if mark.special or LATER in mark.roles:
            continue
        written, style = visible(mark.text), paint(mark.strength) if paint else Style()
        if EXPLAINED in mark.roles:
            written = written if paint else f"»{written}«"
            style += Style(underline=paint is not None)
        text.append(written, style)
        if paint is None and abs(mark.strength) >= NUMBERED:
            text.append(f"({mark.score:+.2g})")


def _sentences(view: scene.View, paint: Paint | None) -> Text:
    """The strongest sentences of a long text, in its order, each with its sum."""
    found, kept = [one for one in view.sentences if one.read], view.strongest
    weights = [line.share for line in view.lines if line.share is not None]
    text = Text(", ".join(map(_weight, weights)) + "\n" if weights else "", "dim")
    if len(found) > len(kept):
        unread = len(view.sentences) > len(found)
        read = f" that were read, of {len(view.sentences)}" if unread else ""
        told = f"the {len(kept)} strongest of {len(found)} sentences{read}, by number\n"
        text.append(told, "dim")
    for one in kept:
        text.append(f"{one.place:4}  {facts.even(one.score, view.largest)}  ", "dim")
        _append(text, one.marks, paint)
        text.rstrip()
        text.append("\n")
    text.rstrip()
    if view.special is not None:
        text.append(f"\n{in_line(facts.special_line(view.attribution, view.special))}", "dim")
    return text
