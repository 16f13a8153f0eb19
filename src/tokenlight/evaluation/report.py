"""Curves of an Evaluation: a figure for papers and one self-contained page with the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenlight.errors import MissingExtra
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.write import write_bytes
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import Line, file_of, lines, sheet
from tokenlight.plots.html import _environment, sealed

AXES = {
    "token_overlap": "length of the lists",
    "randomisation": "stages randomised, from the head down",
    "deletion": "share of tokens hidden",
    "insertion": "share of tokens shown",
    "hiding_game": "share of tokens hidden",
    "revealing_game": "share of tokens revealed",
    "sufficiency": "share of tokens kept",
}
MOST = 12  # lines that can be told apart; of more, the best and chance are named
NAMED = 6


def figure(evaluation: Evaluation, metrics: Sequence[str] | None = None) -> Any:
    """One panel a metric, one line a method, the 95 % interval as a band. Of more methods than can be
    told apart those best by the first metric are named, and chance; the others are grey."""
    MissingExtra.check(["matplotlib"], "plots", "a figure")
    panels, axis, keys = {}, {}, _drawn(evaluation, metrics)
    for key in keys:
        metric = evaluation.metrics[key]
        title = f"{in_line(key)} {ARROWS[metric.direction]}".rstrip()
        panels[title] = {
            name: Line(points, *zip(*((i.mean, i.low, i.high) for i in found), strict=True))
            for name, part in evaluation.by_method.items()
            for points, found in ([part.curves[key]] if key in part.curves else ())
        }
        axis[title] = AXES.get(metric.name, "share of tokens removed")
    named = list(evaluation.methods)
    if len(named) > MOST and keys:
        sign = 1 if evaluation.metrics[keys[0]].direction == "lower" else -1
        parts = evaluation.by_method
        named.sort(key=lambda name: sign * parts[name].summary[keys[0]]["mean"])
        named = [*named[:NAMED], *(name for name in named[NAMED:] if name == "random")]
    drawn = lines(panels, axis, named) or sheet(6.2, 4.2)
    for axes, key in zip(drawn.axes, keys, strict=True):
        axes.set_ylabel(in_line(evaluation.metrics[key].name), parse_math=False)
    return drawn


def _drawn(evaluation: Evaluation, metrics: Sequence[str] | None = None) -> list[str]:
    """Those of the metrics that have a curve."""
    parts = evaluation.by_method.values()
    wanted = evaluation.metrics if metrics is None else metrics
    return [key for key in wanted if any(key in part.curves for part in parts)]


def page(evaluation: Evaluation, *, title: str = "Faithfulness") -> str:
    """Tables and curves as one page: no script, no outside resource."""
    template = _environment().get_template("evaluation.html.j2")
    return template.render(
        title=title,
        curves=_png(evaluation),
        evaluation=evaluation,
        **sealed(_environment().get_template("evaluation.css.j2").render(), pictures=True),
    )


def fragment(evaluation: Evaluation) -> str:
    """The table of means for a notebook cell."""
    template: Any = _environment().get_template("evaluation_table.html.j2")
    return str(template.module.means(evaluation, warned=True))


def _png(evaluation: Evaluation) -> bytes:
    """The figure; empty where no metric has a curve."""
    return file_of(figure(evaluation), dots=150) if _drawn(evaluation) else b""


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write report.html and, where a metric has a curve, curves.png into ``folder``."""
    if drawn := _png(evaluation):
        write_bytes(folder / "curves.png", drawn)
    write_bytes(folder / "report.html", page(evaluation).encode("utf-8"))
