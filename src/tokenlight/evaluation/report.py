"""Curves of an Evaluation: a figure for papers, and one self-contained page with the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenlight.errors import MissingExtra
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.write import write_bytes
from tokenlight.metrics.base import DIRECTION_ARROWS
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.charts import Line, draw_lines, make_figure, render_figure
from tokenlight.plots.html import _get_environment, seal_page

DEFAULT_X_AXIS_LABEL = "share of tokens removed"
X_AXIS_LABELS = {
    "token_overlap": "length of the lists",
    "randomisation": "stages randomized, from the head down",
    "deletion": "share of tokens masked",
    "insertion": "share of tokens shown",
    "hiding_game": "share of tokens masked",
    "revealing_game": "share of tokens shown",
    "sufficiency": "share of tokens kept",
}
MAX_DISTINCT_LINES = 12  # lines of a panel that colors can tell apart
NUM_NAMED_METHODS = 6  # methods in color if there are more lines than that


def draw_figure(evaluation: Evaluation, metrics: Sequence[str] | None = None) -> Any:
    """Draw one panel per metric and one line per method, with the 95 % interval as a band.

    If there are more methods than colors can tell apart, the best by the first metric and ``random`` are
    named, and the others are grey.

    Args:
        evaluation: The evaluation to draw.
        metrics: Keys of the metrics; all by default. Those without a curve are left out.

    Returns:
        A figure of matplotlib.
    """
    MissingExtra.check_installed(["matplotlib"], "plots", "A figure")
    # One panel per metric.
    keys = _list_metrics_with_curves(evaluation, metrics)
    panels = {}
    x_labels = {}
    for key in keys:
        metric = evaluation.metrics[key]
        title = f"{to_single_line(key)} {DIRECTION_ARROWS[metric.direction]}".rstrip()
        panels[title] = _make_lines(evaluation, key)
        x_labels[title] = X_AXIS_LABELS.get(metric.name, DEFAULT_X_AXIS_LABEL)
    named_methods = _select_named_methods(evaluation, keys)
    # Without any curve, the figure is empty.
    figure = draw_lines(panels, x_labels, named_methods) or make_figure(6.2, 4.2)
    for axes, key in zip(figure.axes, keys, strict=True):
        axes.set_ylabel(to_single_line(evaluation.metrics[key].name), parse_math=False)
    return figure


def _make_lines(evaluation: Evaluation, key: str) -> dict[str, Line]:
    """Return the curve of one metric for each method that has it."""
    lines = {}
    for name, part in evaluation.by_method.items():
        if key not in part.curves:
            continue
        points, intervals = part.curves[key]
        means = tuple(interval.mean for interval in intervals)
        lows = tuple(interval.low for interval in intervals)
        highs = tuple(interval.high for interval in intervals)
        lines[name] = Line(points, means, lows, highs)
    return lines


def _select_named_methods(evaluation: Evaluation, keys: Sequence[str]) -> list[str]:
    """Return the methods to name: all, or the best by the first metric and ``random``."""
    methods = list(evaluation.methods)
    if len(methods) <= MAX_DISTINCT_LINES or not keys:
        return methods
    # Sort by the first metric, best method first.
    first_key = keys[0]
    is_lower_better = evaluation.metrics[first_key].direction == "lower"

    def sort_key(name: str) -> float:
        mean = float(evaluation.by_method[name].summary[first_key]["mean"])
        return mean if is_lower_better else -mean

    methods.sort(key=sort_key)
    named = methods[:NUM_NAMED_METHODS]
    if "random" in methods[NUM_NAMED_METHODS:]:
        named.append("random")
    return named


def _list_metrics_with_curves(
    evaluation: Evaluation, metrics: Sequence[str] | None = None
) -> list[str]:
    """Return the keys of the metrics that have a curve for at least one method."""
    selected = evaluation.metrics if metrics is None else metrics
    parts = evaluation.by_method.values()
    return [key for key in selected if any(key in part.curves for part in parts)]


def render_evaluation_page(evaluation: Evaluation, *, title: str = "Faithfulness") -> str:
    """Return tables and curves as one HTML page without scripts or external resources."""
    environment = _get_environment()
    template = environment.get_template("evaluation.html.j2")
    style = environment.get_template("evaluation.css.j2").render()
    return template.render(
        title=title,
        curves=_render_png(evaluation),
        evaluation=evaluation,
        **seal_page(style, has_images=True),
    )


def render_fragment(evaluation: Evaluation) -> str:
    """Return the table of means as HTML for a notebook cell."""
    template: Any = _get_environment().get_template("evaluation_table.html.j2")
    return str(template.module.means(evaluation, warned=True))


def _render_png(evaluation: Evaluation) -> bytes:
    """Return the figure as a PNG; empty if no metric has a curve."""
    if not _list_metrics_with_curves(evaluation):
        return b""
    return render_figure(draw_figure(evaluation), dpi=150)


def save_report(evaluation: Evaluation, folder: Path) -> None:
    """Write report.html and, if a metric has a curve, curves.png into ``folder``."""
    png = _render_png(evaluation)
    if png:
        write_bytes(folder / "curves.png", png)
    write_bytes(folder / "report.html", render_evaluation_page(evaluation).encode("utf-8"))
