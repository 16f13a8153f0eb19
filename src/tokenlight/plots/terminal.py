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

from tokenlight.errors import MissingExtra

try:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.padding import Padding
    from rich.style import Style
    from rich.text import Text
except ImportError as missing:
    raise MissingExtra.naming("rich", "cli", "a picture in the terminal") from missing

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import merge_words
from tokenlight.data.segments import SegmentShare
from tokenlight.plots.blocks import blocks, legend
from tokenlight.plots.characters import in_line, visible
from tokenlight.plots.classes import by_class, class_table
from tokenlight.plots.colours import step
from tokenlight.plots.continuation import is_continuation, unread_whole
from tokenlight.plots.facts import (
    chance_of_written,
    even,
    kind_of_scores,
    null_line,
    predicted_labels,
    verdict,
    weight_on_special,
)
from tokenlight.plots.groups import (
    TargetGroup,
    TextGroup,
    check_reference,
    differences,
    grouped,
    method_label,
    strongest,
)
from tokenlight.plots.passages import Passage, passages, stretch_score
from tokenlight.plots.roles import EXPLAINED, LATER, Roles, token_roles, with_roles, word_roles
from tokenlight.plots.terminal_colours import Paint, painter, reading_aid
from tokenlight.plots.terminal_tables import class_tables, layer_tables, top_tables
from tokenlight.plots.zoom import Part, sentence_parts

SENTENCES = 6  # of a long text; its page shows all
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


@dataclass(frozen=True, slots=True)
class _Reading:
    """An attribution by tokens or words, what these play, and how strength is shown."""

    attribution: Attribution
    roles: Roles
    scale: float
    paint: Paint | None


@dataclass(frozen=True)
class _Picture:
    groups: Sequence[TextGroup]
    words: bool
    layers: bool
    reference: str | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        paint = painter(console)
        for number, group in enumerate(self.groups):
            if number:
                yield Text()
            yield _prediction(group)
            if paint is not None and not number:
                yield Text(reading_aid(), style="dim")
            if null := null_line(group.first):
                yield Text(null, style="dim")
            if group.first.row.image is not None:
                yield Text(
                    f"{legend(paint is not None)}  {in_line(group.first.row.image.name)}",
                    style="dim",
                )
            for found in by_class(group) if group.first.row.image is None else ():
                written = is_continuation(found[0])
                how = "token by token" if written else "class by class"
                yield Text.assemble(f"\n{how}  ", _named(found[0]))
                merged = [merge_words(a) for a in found] if self.words else found
                yield from class_tables(class_table(merged), paint, options.max_width)
            for target in group.targets:
                yield from self._target(group, target, paint, options.max_width)

    def _target(
        self, group: TextGroup, target: TargetGroup, paint: Paint | None, width: int
    ) -> Iterable[RenderableType]:
        shown = [self._read(a, group.scale(a), paint) for a in target.attributions]
        chance = chance_of_written(target.attributions[0])
        yield Text.assemble(
            "\nfor ", (in_line(target.title), "bold"), (f"  {in_line(chance)}", "dim")
        )
        for one in shown:
            yield _head(one.attribution)
            lines = _sentences(one) if sentence_parts(one.attribution) else _highlighted(one)
            yield Padding(lines, (0, 0, 0, 2))
        for a in [] if self.reference is None else differences(target, self.reference):
            name = Text(in_line(a.method), style="italic")
            yield name.append(f" ({kind_of_scores(a)})", "not italic dim")
            yield Padding(_highlighted(self._read(a, strongest(a), paint)), (0, 0, 0, 2))
        yield Text()
        read = [one.attribution for one in shown]
        for number, table in enumerate(top_tables(read, paint, width - 2)):
            yield Padding(table, (1 if number else 0, 0, 0, 2))
        for a in read:
            if self.layers and a.layers is None:
                yield Text(f"\n{in_line(a.method)} has no terms layer by layer", style="dim")
            elif self.layers:
                yield Text(f"\n{in_line(a.method)}, layer by layer", style="bold")
                yield from layer_tables(a, paint, width)

    def _read(self, a: Attribution, scale: float, paint: Paint | None) -> _Reading:
        if not self.words:
            return _Reading(a, token_roles(a), scale, paint)
        merged = merge_words(a)
        return _Reading(merged, word_roles(a), max(scale, strongest(merged)), paint)


def _prediction(group: TextGroup) -> Text:
    first = group.first
    prediction, line = first.prediction, Text("prediction  ")
    labels = predicted_labels(first)
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


def _head(attribution: Attribution) -> Text:
    head = _named(attribution)
    if said := verdict(attribution):
        head.append(f"  {in_line(said)}", "not bold dim")
    for note in attribution.notes:
        head.append(f"  {in_line(note)}", "not bold dim")
    return head


def _named(attribution: Attribution) -> Text:
    """The method, and what its scores cannot tell."""
    name = Text(in_line(method_label(attribution)), style="bold")
    if said := kind_of_scores(attribution):
        name.append(f" ({in_line(said)})", "not bold dim")
    return name


def _highlighted(one: _Reading) -> Text:
    text, attribution = Text(), one.attribution
    if attribution.row.image is not None:
        return blocks(attribution.patches(), one.scale, one.paint)
    found = passages(attribution.row)
    several = len(found) > 1
    weights = {part.segment: part for part in attribution.segment_shares()} if several else {}
    for passage in found:
        part = weights.get(passage.segment)
        if part is not None:
            start = "\n" if passage.segment else ""
            nothing = unread_whole(attribution, passage.segment)
            weighs = f"{in_line(part.name)}, nothing yet" if nothing else _weight(part)
            text.append(f"{start}{weighs}  ", "dim")
        _append(text, one, passage)
    special = weight_on_special(attribution, always=several)
    text.append("" if special is None else f"\n{_weight(special)}", "dim")
    return text


def _weight(part: SegmentShare) -> str:
    return f"{in_line(part.name)} {100 * part.share:.0f} % ({part.total:+.2g})"


def _append(text: Text, one: _Reading, passage: Passage) -> None:
    """Special tokens and what is not yet written are left out."""
    for stretch, played in with_roles(one.attribution, passage, one.roles):
        if stretch.special or LATER in played:
            continue
        score = stretch_score(one.attribution, stretch)
        strength = step(score, one.scale) if stretch.positions else 0
        written, style = visible(stretch.text), one.paint(strength) if one.paint else Style()
        if EXPLAINED in played:
            written = written if one.paint else f"»{written}«"
            style += Style(underline=one.paint is not None)
        text.append(written, style)
        if one.paint is None and abs(strength) >= NUMBERED:
            text.append(f"({score:+.2g})")


def _sentences(one: _Reading) -> Text:
    """The strongest sentences of a long text, in its order, each with its sum."""
    attribution = one.attribution
    parts = sentence_parts(attribution)
    found = [part for part in parts if part.read]
    kept = sorted(sorted(found, key=lambda part: -abs(part.score))[:SENTENCES], key=_number)
    weights = attribution.segment_shares() if len(attribution.row.texts) > 1 else ()
    text = Text(", ".join(map(_weight, weights)) + "\n" if weights else "", "dim")
    if len(found) > len(kept):
        unread = f" that were read, of {len(parts)}" if len(parts) > len(found) else ""
        told = f"the {len(kept)} strongest of {len(found)} sentences{unread}, by number\n"
        text.append(told, "dim")
    largest = max(abs(part.score) for part in found)
    for part in kept:
        text.append(f"{part.number:4}  {even(part.score, largest)}  ", "dim")
        _append(text, one, Passage(part.segment, part.stretches))
        text.rstrip()
        text.append("\n")
    text.rstrip()
    special = None if weights else weight_on_special(attribution, always=False)
    text.append("" if special is None else f"\n{_weight(special)}", "dim")
    return text


def _number(part: Part) -> int:
    return part.number
