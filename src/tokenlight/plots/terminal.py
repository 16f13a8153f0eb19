"""Print explanations in a terminal: the highlighted text, then tables of scores.

Without colours, signed numbers stand next to the words. Text, labels and names are never read as markup,
and control characters are shown as symbols, so that nothing in a text can command the terminal.
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
except ImportError as error:
    raise MissingExtra.for_libraries("rich", "cli", "a picture in the terminal") from error

from tokenlight.data.attribution import Attribution
from tokenlight.plots import descriptions, scene
from tokenlight.plots.characters import make_visible, to_single_line
from tokenlight.plots.colours import StepPainter, detect_background, make_painter
from tokenlight.plots.continuations import is_continuation
from tokenlight.plots.descriptions import RoundedShare, shorten_model_name
from tokenlight.plots.terminal_tables import (
    render_class_table,
    render_heat_map,
    render_layers,
    render_top_tables,
)
from tokenlight.plots.token_roles import EXPLAINED_ROLE, LATER_ROLE
from tokenlight.plots.views import Mark, MarkedLine, View

MIN_NUMBERED_STEP = 4  # without colours, tokens from this colour step on carry their score
MAX_OTHER_LABELS = 4  # labels named besides the predicted one
INDENT = (0, 0, 0, 2)  # cells above, right, below and left


def show(
    attributions: Attribution | Iterable[Attribution],
    *,
    words: bool | None = None,
    layers: bool = False,
    reference: str | None = None,
    console: Console | None = None,
) -> None:
    """Print explanations as highlighted text.

    Args:
        attributions: One explanation or several.
        words: Show words (True) or tokens (False). By default words, but tokens if they explain what a
            model has written.
        layers: Add a table of per-layer terms.
        reference: A method; its difference from every other method is shown too.
        console: Where to print; by default the standard output.

    Raises:
        BadInput: There is no explanation.
        UnknownName: No explanation is by the method ``reference``.
    """
    attribution_list = scene.list_attributions(attributions)
    if words is None:
        words = scene.should_show_words(attribution_list)
    if console is None:
        console = make_console(sys.stdout)
    paint = make_painter(console)
    view_kind = scene.WORD_VIEW if words else scene.TOKEN_VIEW
    text_scenes = scene.build_scenes(attribution_list, (view_kind,), reference)

    parts: list[RenderableType] = []
    for text_scene in text_scenes:
        is_first = not parts
        if not is_first:
            parts.append(Text())
        parts += _render_prediction(text_scene.first, paint, with_legend=is_first)
        parts += _render_scene(text_scene, paint, console.width, layers=layers)
    _print_parts(console, parts)


def _render_scene(
    text_scene: scene.TextScene, paint: StepPainter | None, width: int, *, layers: bool
) -> list[RenderableType]:
    """Render the explanations of one text, and with ``layers`` a table of per-layer terms for each."""
    parts: list[RenderableType] = [*_render_class_groups(text_scene, paint, width)]
    for target in text_scene.targets:
        parts += _render_target(target, paint)
        if layers:
            for method in target.methods:
                parts += render_layers(method, paint, width)
    return parts


def make_console(stream: IO[str]) -> Console:
    """Return a console for ``stream`` that sends no escape code if colours are turned off."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return Console(file=stream, color_system=None, highlight=False, markup=False, emoji=False)
    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _print_parts(console: Console, parts: list[RenderableType]) -> None:
    if console.is_terminal:
        console.print(Group(*parts))
        return
    # Files and pipes get no trailing spaces.
    with console.capture() as capture:
        console.print(Group(*parts))
    for line in capture.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _render_prediction(
    attribution: Attribution, paint: StepPainter | None, *, with_legend: bool
) -> Iterator[Text]:
    """Render the prediction, and how to read what follows."""
    yield _render_prediction_line(attribution)
    if paint is not None and with_legend:
        stronger = "darker" if detect_background() == "light" else "brighter"
        yield Text(f"green: for, red: against; {stronger} is stronger", style="dim")
    null_answer = descriptions.describe_null_answer(attribution)
    if null_answer:
        yield Text(null_answer, style="dim")
    image = attribution.row.image
    if image is not None:
        cell = "one block" if paint else "one cell (sign and tenths of the strongest)"
        image_name = to_single_line(image.name)
        yield Text(f"{cell} per patch, from the top left  {image_name}", style="dim")


def _render_prediction_line(attribution: Attribution) -> Text:
    prediction = attribution.prediction
    labels = descriptions.quote_labels(attribution)
    is_whole_answer = is_continuation(attribution) and attribution.target.index is None
    line = Text("answer  " if is_whole_answer else "prediction  ")
    if is_continuation(attribution) and not is_whole_answer:
        line.append(f"at {to_single_line(attribution.target.name)}:  ", "dim")
    label = prediction.label
    if prediction.ids:
        label = labels[prediction.label_position]
    line.append(to_single_line(label), "bold")
    if prediction.probability is not None:
        line.append(f" {descriptions.format_percent(prediction.probability)}", "bold")
        ranked = sorted(enumerate(prediction.probabilities), key=lambda pair: -pair[1])
        others = [pair for pair in ranked if pair[0] != prediction.label_position]
        for index, probability in others[:MAX_OTHER_LABELS]:
            percent = descriptions.format_percent(probability)
            line.append(f"  {to_single_line(labels[index])} {percent}", "dim")
        num_omitted = len(others) - MAX_OTHER_LABELS
        if num_omitted > 0:
            # A vocabulary has far more tokens than the prediction lists, so they are not counted.
            omitted = "others" if prediction.ids else f"{num_omitted} more"
            line.append(f"  and {omitted}", "dim")
    if attribution.model:
        model_name = shorten_model_name(attribution.model)
        line.append(f"   {to_single_line(model_name)}", "dim italic")
    return line


def _render_class_groups(
    text_scene: scene.TextScene, paint: StepPainter | None, width: int
) -> Iterator[RenderableType]:
    """Render a table of scores for each method that explains several classes."""
    for group in text_scene.class_groups:
        method = group.methods[0]
        heading = "class by class"
        if is_continuation(method.attribution):
            heading = "token by token"
        yield Text.assemble(f"\n{heading}  ", _render_method_name(method, method.label, "bold"))
        _, table = group.tables[0]
        yield from render_class_table(table, paint, width)


def _render_target(
    target: scene.ExplanationGroup, paint: StepPainter | None
) -> Iterator[RenderableType]:
    """Render the explanations of one target, their differences, and their strongest tokens."""
    probability = descriptions.describe_token_probability(target.methods[0].attribution)
    title = (to_single_line(target.title), "bold")
    yield Text.assemble("\nfor ", title, (f"  {to_single_line(probability)}", "dim"))
    chips = descriptions.describe_chips(target.methods[0].attribution)
    if chips:
        yield Text(to_single_line(chips), style="dim")
    for index, method in enumerate(target.methods):
        if index > 0:
            yield Text()
        yield from _render_method_heading(method)
        yield _render_view(method.views[0], paint)
    for other in target.differences:
        yield Text("\n") + _render_method_name(other, other.attribution.method, "italic")
        yield _render_view(other.views[0], paint)
    if target.agreement:
        yield Text(f"\n{to_single_line(target.agreement)}", style="dim")
    yield Text()
    yield Padding(render_top_tables(target.methods, paint), INDENT)
    yield from _render_uncertainty(target, paint)


def _render_uncertainty(
    target: scene.ExplanationGroup, paint: StepPainter | None
) -> Iterator[Text]:
    """Render one line for each method that has standard errors: what ± and italics mean."""
    for method in target.methods:
        uncertainty = descriptions.describe_uncertainty(method.views[0].attribution)
        if not uncertainty:
            continue
        mark = "?" if paint is None else "italic, ?"
        name = ""
        if len(target.methods) > 1:
            name = f"{to_single_line(method.label)}: "
        yield Text(f"  {name}{uncertainty} ({mark})", style="dim")
        stability = descriptions.describe_stability(method.attribution)
        if stability:
            yield Text(f"  {name}{stability}", style="dim")


def _render_method_heading(method: scene.MethodScene) -> Iterator[RenderableType]:
    """Render the method's name, the verdict on its trust, and its notes."""
    heading = _render_method_name(method, method.label, "bold")
    verdict = descriptions.get_verdict(method.attribution)
    notes = [to_single_line(scene.shorten_choice(note)) for note in method.notes]
    if verdict:
        heading.append(f"  {to_single_line(verdict)}", "not bold")
    elif notes:
        heading.append(f"  {notes.pop(0)}", "not bold dim")
    yield heading
    # After a verdict, or after another note, a note would read as part of it.
    for note in notes:
        yield Padding(Text(note, style="dim"), INDENT)
    yield from _render_deciding_part(method)


def _render_deciding_part(method: scene.MethodScene) -> Iterator[RenderableType]:
    """Render the line that names the document or turn that decided, right above the text."""
    if method.deciding_part:
        yield Padding(Text(to_single_line(method.deciding_part), style="bold"), INDENT)


def _render_method_name(method: scene.MethodScene, name: str, style: str) -> Text:
    """Render the name, and what the scores cannot tell."""
    text = Text(to_single_line(name), style=style)
    score_kind = descriptions.describe_score_kind(method.attribution)
    if score_kind:
        text.append(f" ({to_single_line(score_kind)})", f"not {style} dim")
    return text


def _render_view(view: View, paint: StepPainter | None) -> Padding:
    """Render the text (of a long one its strongest sentences), and a picture above it."""
    text = Text()
    if view.attribution.row.image is not None:
        heat_map = render_heat_map(view.attribution.patches(), view.scale, paint)
        if view.image_share is None:
            return Padding(heat_map, INDENT)
        text.append(f"{_format_share(view.image_share)}\n", "dim")
        text.append_text(heat_map)
        text.append("\n")
    if view.sentences:
        text += _render_sentences(view, paint)
    else:
        for line in view.lines:
            if line.share is not None:
                line_break = "\n" if line.line_number > 1 else ""
                text.append(f"{line_break}{_format_share(line.share)}  ", "dim")
            _append_marks(text, line, paint)
    if view.special_share is not None:
        special = descriptions.describe_special_share(view.attribution, view.special_share)
        text.append(f"\n{to_single_line(special)}", "dim")
    return Padding(text, INDENT)


def _render_sentences(view: View, paint: StepPainter | None) -> Text:
    """Render the strongest sentences of a long text, in text order, each with its score."""
    text = Text(style="dim")
    shares = [_format_share(line.share) for line in view.lines if line.share is not None]
    if shares:
        text.append(", ".join(shares) + "\n")
    strongest = view.strongest_sentences
    num_sentences = len(view.sentences)
    num_read = sum(1 for sentence in view.sentences if sentence.scores)
    if num_read > len(strongest):
        read_sentences = f"{num_read} sentences"
        if num_read < num_sentences:
            read_sentences += f" that were read, of {num_sentences}"
        text.append(f"the {len(strongest)} strongest of {read_sentences}, by number\n", "dim")
    for sentence in strongest:
        score = descriptions.format_score(sentence.score)
        text.append(f"{sentence.line_number:4}  {score:8}  ", "dim")
        _append_marks(text, sentence, paint)
        text.rstrip()
        text.append("\n")
    text.rstrip()
    return text


def _format_share(part: RoundedShare) -> str:
    return f"{to_single_line(part.name)} {part.percent} % ({part.total:+.2g})"


def _append_marks(text: Text, line: MarkedLine, paint: StepPainter | None) -> None:
    """Append the marks of a line, without special tokens and without what is not yet written."""
    for mark in line.marks:
        if mark.is_special or LATER_ROLE in mark.roles:
            continue
        if paint is None:
            text.append(_format_numbered(mark), Style())
        else:
            style = paint(mark.strength)
            if EXPLAINED_ROLE in mark.roles:
                style += Style(underline=True)
            if mark.is_uncertain:
                style += Style(italic=True, dim=mark.strength == 0)
            text.append(make_visible(mark.text), style)


def _format_numbered(mark: Mark) -> str:
    """Return the text of a mark for a terminal without colours, a strong one with its score."""
    text = make_visible(mark.text)
    if EXPLAINED_ROLE in mark.roles:
        text = f"»{text}«"
    if abs(mark.strength) >= MIN_NUMBERED_STEP:
        question_mark = "?" if mark.is_uncertain else ""
        text += f"({mark.score:+.2g}{question_mark})"
    return text
