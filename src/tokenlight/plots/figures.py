"""Matplotlib figures of explanations and of attention heads, for papers and slides.

Every function returns the figure; the caller saves it.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.image import PatchImage
from tokenlight.data.postprocess import difference, l1_normalise
from tokenlight.errors import BadInput
from tokenlight.plots import charts, descriptions
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.charts import iter_axes, make_figure, set_tick_labels, set_title
from tokenlight.plots.colours import NUM_STEPS, OVERLAY_OPACITY, step_colour, text_colour, to_hex
from tokenlight.plots.scene import WORD_VIEW, MethodScene, build_scenes
from tokenlight.plots.score_tables import build_layer_table
from tokenlight.plots.views import Mark
from tokenlight.plots.word_pieces import StrongToken, describe_strongest_tokens

PANEL_INCHES = 2.3  # width of a picture
MAX_OFFSET = 10  # relative positions drawn to each side
LINE_COLUMNS = 84  # letters in a line
FONT_SIZE = 11  # points
LETTER_INCHES = 0.092  # width of a letter
LINE_INCHES = 0.27  # height of a line
FILE_DPI = 160
HEAD_KINDS = ("neither", "positional", "syntactic", "both")
HEAD_COLOURS = ("#eceff1", "#1e88e5", "#e65100", "#6a1b9a")  # safe for colour-blind readers


def draw_heat_map(attribution: Attribution, *, rollout: bool = False) -> Any:
    """Draw per-layer terms and their sum, without special tokens (AttCAT, figure 5).

    The table is divided by its Frobenius norm and has one colour scale.

    Args:
        attribution: An explanation with per-layer terms.
        rollout: Add the product of the layers, as the paper does.

    Raises:
        BadInput: The method has no per-layer terms.
    """
    table = build_layer_table(attribution, rollout=rollout).drop_special().normalize()
    num_rows, num_columns = table.values.shape
    sum_row = num_rows - 1
    axes = make_figure(2.4 + 0.55 * num_columns, 1.4 + 0.32 * num_rows).add_subplot()
    image = _draw_cells(axes, table.values, table.values, [sum_row])
    set_tick_labels(axes, "x", table.columns, rotation=60, ha="right")
    set_tick_labels(axes, "y", table.rows)
    axes.axhline(sum_row - 0.5, color="black", linewidth=1)
    set_title(axes, attribution.title, 10)
    axes.figure.colorbar(image, ax=axes, label="against  ←  →  for")
    return axes.figure


def draw_token_bars(attributions: Attribution | Iterable[Attribution], *, k: int = 10) -> Any:
    """Draw the ``k`` strongest tokens of each explanation as signed bars, one panel each.

    Scores with standard errors get error bars; those that could be 0 are hatched.

    Args:
        attributions: One explanation, or several.
        k: The number of tokens per panel.
    """
    panels = []
    for text_scene in build_scenes(attributions):
        for method in text_scene.methods:
            panels.append((method.attribution.title, method.attribution))
    axes = None
    for axes, _, attribution in iter_axes(panels, 3, (3.6, 0.9 + 0.28 * k), "x"):
        # The strongest last, since matplotlib draws from the bottom up.
        strongest = describe_strongest_tokens(attribution, k)[::-1]
        scores = [token.score for token in strongest]
        colours = [_sign_colour(score) for score in scores]
        bars = axes.barh(range(len(scores)), scores, color=colours)
        if attribution.standard_errors is not None:
            _add_error_bars(axes, bars, strongest)
        set_tick_labels(axes, "y", [token.token.bracketed for token in strongest])
        axes.axvline(0, color="black", linewidth=0.8)
    return axes and axes.figure


def _add_error_bars(axes: Any, bars: Any, strongest: Sequence[StrongToken]) -> None:
    """Draw one standard error to each side of a bar, and hatch the bars of scores that could be 0."""
    scores = [token.score for token in strongest]
    errors = [token.error or 0.0 for token in strongest]
    axes.errorbar(
        scores, range(len(scores)), xerr=errors, fmt="none", ecolor="black", elinewidth=1, capsize=2
    )
    for bar, token in zip(bars, strongest, strict=True):
        if token.is_uncertain:
            bar.set(alpha=0.45, hatch="////", edgecolor="white")
    axes.set_xlabel("bars ± one standard error; hatched: could be 0", fontsize=7)


def _sign_colour(score: float) -> str:
    """Return the full colour of a score's sign."""
    return to_hex(step_colour(NUM_STEPS if score >= 0 else -NUM_STEPS))


def draw_difference_map(
    reference: tuple[str, Attribution], others: Mapping[str, Attribution], *, title: str = ""
) -> Any:
    """Draw the scores of a reference and its difference from other explanations (Mask-LRP, figure 6).

    The first row is the reference, scaled to an L1 norm of 1. The other rows are reference minus other
    and share one colour scale. Special tokens are left out.

    Args:
        reference: Name and explanation.
        others: Name → explanation of the same text.
        title: Title of the figure.
    """
    name, base = reference
    text_positions = np.flatnonzero(~np.array(base.row.special_tokens_mask, dtype=bool))
    rows = {name: l1_normalise(base).scores[text_positions]}
    for other_name, other in others.items():
        rows[f"{name} − {other_name}"] = difference(base, other).scores[text_positions]
    values = np.vstack(list(rows.values()))
    reference_share = _divide_by_peak(values[:1])
    difference_share = _divide_by_peak(values[1:])
    shares = np.vstack([reference_share, difference_share])

    num_tokens = len(text_positions)
    axes = make_figure(2.2 + 0.75 * num_tokens, 1.0 + 0.34 * len(rows)).add_subplot()
    _draw_cells(axes, shares, values, range(len(rows)))
    tokens = [base.tokens[position] for position in text_positions]
    set_tick_labels(axes, "x", tokens, rotation=45, ha="right", fontsize=8)
    set_tick_labels(axes, "y", list(rows), fontsize=8)
    axes.set_xlabel(descriptions.SCALING_NOTE, fontsize=8)
    set_title(axes, title)
    return axes.figure


def _divide_by_peak(values: np.ndarray) -> np.ndarray:
    """Divide by the largest magnitude, unless it is 0."""
    peak = float(np.abs(values).max(initial=0.0)) or 1.0
    return values / peak


def _draw_cells(
    axes: Any, shares: np.ndarray, values: np.ndarray, labeled_rows: Iterable[int]
) -> Any:
    """Draw one coloured cell per score.

    Args:
        axes: Where to draw.
        shares: Values shown by the colours, ``row column``.
        values: Values printed in the cells, ``row column``.
        labeled_rows: Rows with numbers.

    Returns:
        The matplotlib image.
    """
    # Imported late: make_figure has already said what to install if matplotlib is missing.
    from matplotlib.colors import LinearSegmentedColormap

    limit = float(np.abs(shares).max(initial=0.0)) or 1.0
    colour_stops = [to_hex(step_colour(step)) for step in (-NUM_STEPS, 0, NUM_STEPS)]
    colours = LinearSegmentedColormap.from_list("for and against", colour_stops)
    for row in labeled_rows:
        for column, value in enumerate(values[row]):
            background = colours(0.5 + shares[row, column] / limit / 2, bytes=True)[:3]
            colour = to_hex(text_colour(background))
            axes.text(
                column, row, f"{value:+.2f}", ha="center", va="center", fontsize=8, color=colour
            )
    return axes.imshow(shares, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")


def draw_image_heat_maps(attributions: Attribution | Iterable[Attribution]) -> Any:
    """Draw one row per picture and target: what the model reads, then one heat map per explanation.

    Raises:
        BadInput: One of the explanations is of a text.
    """
    rows: list[tuple[Attribution, Sequence[MethodScene]]] = []
    for text_scene in build_scenes(attributions):
        for target in text_scene.targets:
            rows.append((text_scene.first, target.methods))
    num_columns = 1 + max(len(methods) for _, methods in rows)
    figure = make_figure(PANEL_INCHES * num_columns, (PANEL_INCHES + 0.35) * len(rows))
    panels = figure.subplots(len(rows), num_columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for row_axes, (first, methods) in zip(panels, rows, strict=True):
        image = first.row.image
        if image is None:
            raise BadInput(
                "Heat maps are drawn over images, but one of the attributions explains a text. Draw "
                "texts with draw_highlighted_text().",
                code="heat-map-of-text",
            )
        _draw_picture(row_axes[0], first, image)
        # A target may have fewer methods than there are columns.
        for axes, method in zip(row_axes[1:], methods, strict=False):
            _draw_image_heat_map(axes, method, image)
    return figure


def _draw_picture(axes: Any, attribution: Attribution, image: PatchImage) -> None:
    """Draw the picture as the model reads it, with its name and the prediction."""
    prediction = attribution.prediction
    label = prediction.label
    if prediction.probability is not None:
        label += f" {descriptions.format_percent(prediction.probability)}"
    axes.imshow(image.rgb, interpolation="nearest")
    set_title(axes, f"{image.name}\n{label}", 8)


def _draw_image_heat_map(axes: Any, method: MethodScene, image: PatchImage) -> None:
    """Draw the scores of the patches over the picture in grey."""
    attribution = method.attribution
    grey = np.repeat(image.rgb.mean(axis=2, keepdims=True), 3, axis=2) / 255
    axes.imshow(0.35 + 0.6 * grey, interpolation="nearest")
    height, width = image.rgb.shape[:2]
    # Pixels are centered on whole numbers, so the picture reaches half a pixel beyond them.
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    overlay = _build_overlay(attribution.patches(), method.views[0].scale)
    axes.imshow(overlay, interpolation="nearest", extent=extent)
    label = method.label
    if image.token_positions:  # next to a text
        image_share = descriptions.round_segment_shares(attribution)[0]
        label += f" ({image_share.percent} % the image)"
    set_title(axes, f"{label}\nfor {attribution.question}", 8)


def _build_overlay(values: np.ndarray, scale: float) -> np.ndarray:
    """Return an RGBA image ``row column 4``: the hue shows the sign, the opacity the strength."""
    shares = np.zeros_like(values)
    if scale:
        shares = np.clip(values / scale, -1, 1)
    colour_for = np.array(step_colour(NUM_STEPS)) / 255
    colour_against = np.array(step_colour(-NUM_STEPS)) / 255
    colours = np.where(shares[..., None] >= 0, colour_for, colour_against)
    return np.concatenate((colours, OVERLAY_OPACITY * np.abs(shares)[..., None]), axis=2)


def draw_highlighted_text(attributions: Attribution | Iterable[Attribution]) -> Any:
    """Draw each explanation as words on coloured backgrounds, without special tokens."""
    lines: list[list[tuple[int, Mark]]] = []
    for text_scene in build_scenes(attributions, (WORD_VIEW,)):
        for method in text_scene.methods:
            lines += _wrap_heading(method)
            for line in method.views[0].lines:
                lines += _wrap_marks([mark for mark in line.marks if not mark.is_special])
            lines.append([])
    width = LETTER_INCHES * LINE_COLUMNS + 0.3
    figure = make_figure(width, LINE_INCHES * len(lines) + 0.1, layout=None)
    axes = figure.add_axes((0.02, 0.0, 0.96, 1.0))
    axes.set_axis_off()
    axes.set(xlim=(0, LINE_COLUMNS), ylim=(len(lines), 0))
    for row, marks in enumerate(lines):
        for column, mark in marks:
            text = to_single_line(mark.text)
            axes.text(column, row + 0.5, text, parse_math=False, **_mark_style(mark))
    return figure


def _wrap_heading(method: MethodScene) -> list[list[tuple[int, Mark]]]:
    """Return lines with the method, its question and the alternatives of an explained token."""
    headings = [f"{method.label} → {descriptions.describe_question(method.attribution)}"]
    chips = descriptions.describe_chips(method.attribution)
    if chips:
        headings.append(chips)
    lines = []
    for heading in headings:
        for text in textwrap.wrap(to_single_line(heading), LINE_COLUMNS) or [""]:
            lines.append([(0, Mark(text))])
    return lines


def _mark_style(mark: Mark) -> dict[str, Any]:
    """Return matplotlib's text options for a mark."""
    style: dict[str, Any] = {"family": "monospace", "fontsize": FONT_SIZE, "va": "center"}
    if mark.score is None:  # a title, or text between tokens
        style["color"] = charts.GREY_COLOUR
    elif mark.strength:
        background = step_colour(mark.strength)
        style["color"] = to_hex(text_colour(background))
        style["bbox"] = {"facecolor": to_hex(background), "linewidth": 0, "pad": 1.2}
    if mark.is_uncertain:
        style["fontstyle"] = "italic"
        if mark.strength:
            style["bbox"] |= {"hatch": "////", "edgecolor": "white"}
    return style


def _wrap_marks(marks: list[Mark]) -> list[list[tuple[int, Mark]]]:
    """Return the marks line by line, each with the column that it begins at."""
    lines: list[list[tuple[int, Mark]]] = [[]]
    column = 0
    for mark in marks:
        # East Asian wide characters take two columns.
        width = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in mark.text)
        is_beyond_line = column > 0 and column + width > LINE_COLUMNS
        if is_beyond_line or "\n" in mark.text:
            lines.append([])
            column = 0
        is_blank = not mark.text.strip()
        if not is_blank:
            lines[-1].append((column, mark))
        # White space at the beginning of a line takes no room.
        if column > 0 or not is_blank:
            column += width
    return lines


def draw_attributions(attributions: Sequence[Attribution]) -> Any:
    """Draw heat maps of pictures, or the highlighted text of texts."""
    if any(attribution.row.image is not None for attribution in attributions):
        return draw_image_heat_maps(attributions)
    return draw_highlighted_text(attributions)


def render_attributions(attributions: Sequence[Attribution], extension: str) -> bytes:
    """Render :func:`draw_attributions` as a ``.png``, ``.svg`` or ``.pdf`` file.

    Args:
        attributions: One explanation, or several.
        extension: ``.png``, ``.svg`` or ``.pdf``.
    """
    return charts.render_figure(draw_attributions(attributions), extension[1:], FILE_DPI)


def draw_relation_histograms(heads: Mapping[str, Any]) -> Any:
    r"""Draw the relative positions of dependent and head for each relation (Mask-LRP, figure 1).

    The dashed line is the threshold :math:`\max\lambda+\xi`.

    Args:
        heads: The content of a heads file.
    """
    offsets = list(range(-MAX_OFFSET, MAX_OFFSET + 1))
    panels = []
    for name, relation in heads["relations"].items():
        panels.append((f"{name} ({relation['dependents']})", relation))
    axes = None
    for axes, _, relation in iter_axes(panels, len(panels), (3.2, 2.6), "y"):
        shares = [relation["offsets"].get(str(offset), 0.0) for offset in offsets]
        axes.bar(offsets, shares, color=HEAD_COLOURS[1])
        axes.axhline(relation["threshold"], color=HEAD_COLOURS[2], linestyle="--", linewidth=1)
        axes.set(ylim=(0, 1), xlabel="dependent − head, in words", ylabel="share")
    return axes and axes.figure


def draw_head_map(heads: Mapping[str, Any]) -> Any:
    """Draw which heads are positional or syntactic, the lowest block at the bottom (Mask-LRP, figure 5).

    Args:
        heads: The content of a heads file.
    """
    is_syntactic = np.array(heads["mask"]["syntactic"]) > 0
    is_positional = np.array(heads["mask"]["positional"]) > 0
    kinds = 2 * is_syntactic + is_positional  # indices of HEAD_KINDS
    num_blocks, num_heads = kinds.shape
    axes = make_figure(1.6 + 0.32 * num_heads, 1.5 + 0.3 * num_blocks, None).add_subplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colour_map = ListedColormap(HEAD_COLOURS)
    axes.pcolormesh(kinds, edgecolors="white", linewidth=1, cmap=colour_map, vmin=-0.5, vmax=3.5)
    axes.set_xticks(np.arange(num_heads) + 0.5, map(str, range(num_heads)), fontsize=8)
    axes.set_yticks(np.arange(num_blocks) + 0.5, map(str, range(1, num_blocks + 1)), fontsize=8)
    axes.set(xlabel="head", ylabel="block")
    patches = []
    for index, (kind, colour) in enumerate(zip(HEAD_KINDS, HEAD_COLOURS, strict=True)):
        count = int((kinds == index).sum())
        patches.append(Patch(color=colour, label=f"{kind} ({count})"))
    axes.legend(
        handles=patches, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18)
    )
    axes.figure.tight_layout()
    return axes.figure


def render_heads_page(heads: Mapping[str, Any]) -> str:
    """Render both figures of a heads file as one self-contained HTML page."""
    from tokenlight.plots.html import _get_environment

    svg_figures = []
    for draw in (draw_relation_histograms, draw_head_map):
        svg_file = charts.render_figure(draw(heads), "svg")
        # The XML declaration before the element has no place within a page.
        svg_figures.append(svg_file[svg_file.index(b"<svg") :].decode("utf-8"))
    title = f"Attention heads of {heads.get('model') or 'a model'}"
    template = _get_environment().get_template("heads.html.j2")
    return template.render(title=title, heads=heads, figures=svg_figures)
