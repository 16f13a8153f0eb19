"""The highlighted text in a terminal; where there are no colours, signed numbers beside the words.

Text, labels and model names are never read as markup, and what would command the terminal is
shown as a symbol.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import IO

from tokenlight.errors import MissingExtra

try:
    from rich.console import Console, Group, RenderableType
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
from tokenlight.plots.views import MarkedLine, View

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
    place = console or console_on(sys.stdout)
    paint, picture = painter(place), list[RenderableType]()
    for text in scene.scenes(found, (scene.WORDS if words else scene.TOKENS,), reference):
        picture += [Text()] if picture else []
        picture += _text(text, paint, aid=not picture)
        for one in text.classes:
            how = "token by token" if one.written else "class by class"
            picture.append(Text.assemble(f"\n{how}  ", _named(one.methods[0])))
            picture += class_tables(one.tables[0][1], paint, place.width)
        for target in text.targets:
            picture += _target(target, paint, place.width)
            picture += _layers(target, paint, place.width) if layers else ()
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
    best = labels[prediction.place] if prediction.ids else prediction.label
    line.append(in_line(best), "bold")
    if prediction.probability is not None:
        line.append(f" {prediction.probability:.3f}", "bold")
        chances = enumerate(prediction.probabilities)
        others = sorted((-chance, i) for i, chance in chances if i != prediction.place)
        for chance, index in others[:4]:
            line.append(f"  {in_line(labels[index])} {-chance:.3f}", "dim")
        if len(others) > 4:
            left = "others" if prediction.ids else f"{len(others) - 4} more"
            line.append(f"  and {left}", "dim")
    if first.model:
        line.append(f"   {in_line(first.model)}", "dim italic")
    yield line
    colours = reading_aid() if paint is not None and aid else ""
    picture = "" if image is None else f"{legend(paint)}  {in_line(image.name)}"
    for said in filter(None, (colours, facts.null_line(first), picture)):
        yield Text(said, style="dim")


def _target(target: scene.TargetScene, paint: Paint | None, width: int) -> Iterator[RenderableType]:
    chance = facts.chance_of_written(target.methods[0].attribution)
    yield Text.assemble("\nfor ", (in_line(target.title), "bold"), (f"  {in_line(chance)}", "dim"))
    for number, method in enumerate(target.methods):
        if number:
            yield Text()
        head, said = _named(method), in_line(facts.verdict(method.attribution))
        graded = facts.grade(method.attribution)
        if said and graded in VERDICTS:  # the grade in its colour, the reasons faint
            head.append(f"  {graded}", f"not bold {VERDICTS[graded]}")
            head.append(said.removeprefix(graded), "not bold dim")
        elif said:
            head.append(f"  {said}", "not bold dim")
        for note in method.notes:
            head.append(f"  {in_line(note)}", "not bold dim")
        yield head
        view = method.views[0]
        lines = _sentences(view, paint) if view.sentences else _segments(view, paint)
        yield Padding(lines, (0, 0, 0, 2))
    for other in target.differences:
        yield Text("\n") + _named(other, other.attribution.method, "italic")
        yield Padding(_segments(other.views[0], paint), (0, 0, 0, 2))
    yield Text()
    for number, table in enumerate(top_tables(target.methods, paint, width - 2)):
        yield Padding(table, (1 if number else 0, 0, 0, 2))


def _layers(target: scene.TargetScene, paint: Paint | None, width: int) -> Iterator[RenderableType]:
    for method in target.methods:
        name = in_line(method.attribution.method)
        if method.attribution.layers is None:
            yield Text(f"\n{name} has no terms layer by layer", style="dim")
        else:
            yield Text(f"\n{name}, layer by layer", style="bold")
            yield from layer_tables(method.views[0], paint, width)


def _named(method: scene.MethodScene, name: str = "", style: str = "bold") -> Text:
    """The method, and what its scores cannot tell."""
    named = Text(in_line(name or method.label), style=style)
    if said := facts.kind_of_scores(method.attribution):
        named.append(f" ({in_line(said)})", f"not {style} dim")
    return named


def _segments(view: View, paint: Paint | None) -> Text:
    text, image = Text(), view.attribution.row.image
    if image is not None:
        grid = blocks(view.attribution.patches(), view.scale, paint)
        if view.picture is None:
            return grid
        text.append(f"{_weight(view.picture)}\n", "dim").append_text(grid).append("\n")
    for number, line in enumerate(view.lines):
        if line.share is not None:
            name = in_line(line.share.name)
            weighs = f"{name}, nothing yet" if line.unread else _weight(line.share)
            text.append("\n" * (number > 0) + f"{weighs}  ", "dim")
        _append(text, line, paint)
    return text + _special(view)


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
        text.append(f"{one.place:4}  {facts.even(one.score, view.largest)}  ", "dim")
        _append(text, one, paint)
        text.rstrip()
        text.append("\n")
    text.rstrip()
    return text + _special(view)


def _special(view: View) -> Text:
    if view.special is None:
        return Text()
    return Text(f"\n{in_line(facts.special_line(view.attribution, view.special))}", "dim")


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
