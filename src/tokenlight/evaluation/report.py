"""Curves of an Evaluation: a figure for papers and one self-contained page with the tables."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tokenlight.errors import MissingExtra
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.write import write_bytes
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import Line, lines, plain_png, sheet
from tokenlight.plots.dataset import Report, compact
from tokenlight.plots.html import _environment, sealed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def figure(evaluation: Evaluation, metrics: Sequence[str] | None = None) -> Figure:
    """One panel a metric, one line a method, the 95 % interval as a band. Of more methods than can be
    told apart those best by their mean place over all panels are named, and chance; the others are
    grey."""
    MissingExtra.check(["matplotlib"], "plots", "a figure")
    wanted = evaluation.metrics if metrics is None else metrics
    panels, axis, keys = {}, {}, [key for key in wanted if _curves(evaluation, key)]
    for key in keys:
        metric = evaluation.metrics[key]
        title = f"{in_line(key)} {ARROWS[metric.direction]}".rstrip()
        panels[title] = {
            name: Line(points, *zip(*((i.mean, i.low, i.high) for i in found), strict=True))
            for name, (points, found) in _curves(evaluation, key).items()
        }
        axis[title] = AXES.get(metric.name, "share of tokens removed")
    drawn: Figure = lines(panels, axis, _named(evaluation, keys)) or sheet(6.2, 4.2)
    for axes, key in zip(drawn.axes, keys, strict=True):
        axes.set_ylabel(in_line(evaluation.metrics[key].name), parse_math=False)
    return drawn


def _named(evaluation: Evaluation, keys: Sequence[str]) -> list[str]:
    """Methods whose lines have names: all, or where they are too many the best ones and chance."""
    if len(evaluation.methods) <= MOST:
        return list(evaluation.methods)
    places = dict.fromkeys(evaluation.methods, 0)
    for key in keys:
        sign = 1 if evaluation.metrics[key].direction == "lower" else -1
        curves = _curves(evaluation, key)
        heights = {name: sign * fmean(i.mean for i in own) for name, (_, own) in curves.items()}
        for place, name in enumerate(sorted(heights, key=heights.__getitem__)):
            places[name] += place
    best = sorted(places, key=places.__getitem__)[:NAMED]
    return [*best, *(name for name in places if name == "random" and name not in best)]


def _curves(evaluation: Evaluation, key: str) -> dict[str, Any]:
    """Points and intervals of a metric, of each method that has a curve of it."""
    parts = evaluation.by_method.items()
    return {name: part.curves[key] for name, part in parts if key in part.curves}


def page(evaluation: Evaluation, *, title: str = "Faithfulness") -> str:
    """Tables and curves as one page: no script, no outside resource."""
    template = _environment().get_template("evaluation.html.j2")
    return template.render(
        title=title,
        curves=base64.b64encode(_png(evaluation)).decode("ascii"),
        evaluation=evaluation,
        warnings=_warnings(evaluation),
        **sealed(_environment().get_template("evaluation.css.j2").render(), pictures=True),
    )


def fragment(evaluation: Evaluation) -> str:
    """The table of means for a notebook cell."""
    template: Any = _environment().get_template("evaluation_table.html.j2")
    return str(template.module.means(evaluation, _warnings(evaluation)))


def _warnings(evaluation: Evaluation) -> list[str]:
    cut = str(evaluation.cut) if evaluation.cut.texts else ""
    return [*filter(None, (evaluation.caution, cut)), *map(str, evaluation.unsteady)]


def _png(evaluation: Evaluation) -> bytes:
    """The figure; empty where no metric has a curve."""
    drawn = any(_curves(evaluation, key) for key in evaluation.metrics)
    return plain_png(figure(evaluation), 150) if drawn else b""


def _texts(evaluation: Evaluation) -> Report:
    """Each text with its explanations, and every number that was measured of them."""
    values: dict[int, dict[str, str]] = {}
    for record in evaluation.records:
        for key, measured in record.measured.items():
            name = f"{key} {record.method}" if len(evaluation.methods) > 1 else key
            if not isnan(measured.value):
                values.setdefault(record.text, {})[name] = f"{measured.value:.3g}"
    known = evaluation.about
    about = {name: known[name] for name in ("model", "target") if name in known}
    report = Report(known.get("data", "Faithfulness"), about=about)
    for number, drawn in evaluation.drawn:
        report.texts.append(compact({**drawn, "values": values.get(number, {})}))
    return report


def save(evaluation: Evaluation, folder: Path) -> None:
    """Write report.html and, where a metric has a curve, curves.png into ``folder``; where the texts were
    drawn, texts.html with each of them."""
    if evaluation.drawn:
        _texts(evaluation).write(folder / "texts.html")
    if drawn := _png(evaluation):
        write_bytes(folder / "curves.png", drawn)
    write_bytes(folder / "report.html", page(evaluation).encode("utf-8"))
