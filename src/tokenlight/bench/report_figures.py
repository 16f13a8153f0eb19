"""The figures of a report, as far as the run has what they show: a picture, or why there is none."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenlight.bench.report import Panel, Report, groups
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.files.documents import json_of
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots.charts import (
    Band,
    Bar,
    Line,
    Place,
    bands,
    bars,
    frontier,
    lines,
    png,
    small,
)

AXES = {
    "hiding_game": "share of tokens hidden",
    "revealing_game": "share of tokens revealed",
    "token_overlap": "length of the lists",
    "sufficiency": "share of tokens kept",
    "randomisation": "stages randomised, from the head down",
}


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, or (``missing``) why it could not be drawn."""

    title: str
    content: bytes = b""
    missing: str = ""


@dataclass(frozen=True)
class Wanted:
    """One figure that a suite asks for under ``report: figures``; empty lists mean all."""

    kind: str
    title: str
    metrics: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Wanted:
        """From the suite's mapping."""
        lists = {key: tuple(map(str, given.get(key, ()))) for key in ("metrics", "data", "methods")}
        kind = str(given.get("kind", "bars"))
        return cls(kind, str(given.get("title", kind)), **lists, more=given)

    def takes(self, method: str) -> bool:
        """Whether a row belongs to the figure; ``layer *`` stands for all layers."""
        return not self.methods or any(fnmatchcase(method, one) for one in self.methods)


def pictures(run: Any, report: Report, curves: Sequence[Mapping[str, Any]]) -> Iterator[Picture]:
    """The suite's figures, or bars and curves of every metric; then cost against faithfulness."""
    given = report.suite.report.get("figures")
    asked = [Wanted.of(one) for one in given] if given else list(_usual(report))
    for wanted in asked:
        drawer = DRAWERS.get(wanted.kind)
        if drawer is None:
            raise BadInput(f"a report draws {', '.join(DRAWERS)}; {wanted.kind!r} is none of them.")
        try:
            drawn = drawer(run, report, wanted, curves)
        except MissingExtra as absent:
            yield Picture(wanted.title, missing=str(absent))
            continue
        if drawn is None:
            yield Picture(wanted.title, missing="nothing of it was run")
        else:
            yield Picture(wanted.title, drawn if isinstance(drawn, bytes) else png(drawn))
    drawn = _frontier(report)
    if drawn is not None:
        yield Picture("Cost against faithfulness", png(drawn))


def _usual(report: Report) -> Iterator[Wanted]:
    for metric in (one.label for one in report.suite.metrics):
        arrow = ARROWS[report.better[metric]]
        title = f"{metric} {arrow}".rstrip()
        if report.compared(metric):
            title += ": ours (bars) and published (diamonds)"
        yield Wanted("bars", title, (metric,))
    for one in report.suite.metrics:
        if any(one.label in panel.metrics for panel in report.ran) and _curved(one):
            yield Wanted("curves", f"{one.label} point by point", (one.label,))


def _curved(metric: Any) -> bool:
    from tokenlight import registry

    return bool(registry.build("metrics", metric.name, metric.options).points)


def _panels(report: Report, wanted: Wanted) -> Iterator[tuple[Panel, str]]:
    for metric in wanted.metrics or tuple(one.label for one in report.suite.metrics):
        for panel in report.ran:
            if metric in panel.metrics and (not wanted.data or panel.data in wanted.data):
                yield panel, metric


def _title(report: Report, panel: Panel, metric: str) -> str:
    return f"{panel.title}: {metric} {ARROWS[report.better.get(metric, 'neither')]}".rstrip()


def _bars(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    limits = report.suite.report.get("maximum", {})
    found: dict[str, dict[str, Bar]] = {}
    most = []
    for panel, metric in _panels(report, wanted):
        chosen: dict[str, Bar] = {}
        for method, row in panel.rows.items():
            ours, published = row[metric].ours, row[metric].published
            if not wanted.takes(method) or (ours is None and published is None):
                continue
            if ours is None:
                chosen[method] = Bar(published=published)
                continue
            spread = ours.sd or 0.0
            low = ours.mean - spread if ours.low is None else ours.low
            high = ours.mean + spread if ours.high is None else ours.high
            chosen[method] = Bar(ours.mean, low, high, published)
        if chosen:
            found[_title(report, panel, metric)] = chosen
            most.append(limits.get(panel.data))
    return bars(found, most) if found else None


def _curves(run: Any, report: Report, wanted: Wanted, curves: Sequence[Mapping[str, Any]]) -> Any:
    row_of = groups(run.suite)
    found: dict[str, dict[str, Line]] = {}
    axis: dict[str, str] = {}
    for panel, metric in _panels(report, wanted):
        kept: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
        for point in curves:
            name = row_of.get(point["method"], point["method"])
            mine = (point["model"], point["data"], point["metric"])
            ours = mine == (panel.model, panel.data, metric) and point["mean"] is not None
            if ours and wanted.takes(name):
                kept.setdefault(name, {}).setdefault(point["point"], []).append(point)
        if kept:
            title = _title(report, panel, metric)
            found[title] = {name: _line(at) for name, at in kept.items()}
            kind = next(one.name for one in report.suite.metrics if one.label == metric)
            axis |= {title: AXES[kind]} if kind in AXES else {}
    return lines(found, axis) if found else None


def _line(at: Mapping[float, list[Mapping[str, Any]]]) -> Line:
    points = sorted(at)
    means, lows, highs = (
        [fmean(float(one[key]) for one in at[point]) for point in points]
        for key in ("mean", "low", "high")
    )
    return Line(points, means, lows, highs)


def _bands(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    more = wanted.more or {}
    before, _, after = str(more.get("group", "{x}")).partition("{x}")
    found: dict[str, Band] = {}
    for panel, metric in _panels(report, wanted):
        at: dict[float, tuple[float, float]] = {}
        for method, row in panel.rows.items():
            ours = row[metric].ours
            if ours is not None and method.startswith(before) and method.endswith(after):
                rate = float(method.removeprefix(before).removesuffix(after))
                at[rate] = (ours.mean, ours.sd or 0.0)
        levels = {
            name: number.mean
            for name in (str(more.get("start", "")), str(more.get("end", "")))
            if name in panel.rows and (number := panel.rows[name][metric].ours) is not None
        }
        if at:
            x = sorted(at)
            means, spreads = [at[one][0] for one in x], [at[one][1] for one in x]
            found[_title(report, panel, metric)] = Band(x, means, spreads, levels)
    return bands(found, str(more.get("x", ""))) if found else None


def _heads(run: Any, report: Report, wanted: Wanted) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Title and content of the heads file of each panel the figure speaks of."""
    from tokenlight.heads.mask import read_heads

    for panel in report.panels:
        if wanted.data and panel.data not in wanted.data:
            continue
        cells = [c for c in run.cells if (c.model, c.data) == (panel.model, panel.data) and c.runs]
        places = [c.options["heads"] for c in cells if isinstance(c.options.get("heads"), str)]
        made = [run.heads_file(c) for c in cells]
        place = next((p for p in (*made, *map(Path, places)) if p.is_file()), None)
        if place is not None:
            yield panel.title, read_heads(place)


def _relations(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    from tokenlight.plots.heads import relation_histograms

    first = next(_heads(run, report, wanted), None)
    return None if first is None else relation_histograms(first[1])


def _head_maps(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    from PIL import Image

    from tokenlight.plots.charts import DOTS, titled
    from tokenlight.plots.heads import head_map

    drawn = []
    for title, heads in _heads(run, report, wanted):
        figure = head_map(heads)
        titled(figure.axes[0], title)
        figure.tight_layout()
        into = io.BytesIO()
        figure.savefig(into, format="png", dpi=DOTS, facecolor="white")
        drawn.append(Image.open(into).convert("RGB"))
    return _beside(drawn)


def _beside(images: Sequence[Any], *, across: int = 3) -> bytes | None:
    """Images on one white sheet, at most ``across`` in a row."""
    if not images:
        return None
    from PIL import Image

    width, height = max(i.width for i in images), max(i.height for i in images)
    columns = min(across, len(images))
    sheet = Image.new("RGB", (width * columns, height * -(-len(images) // columns)), "white")
    for number, image in enumerate(images):
        sheet.paste(image, (width * (number % columns), height * (number // columns)))
    return small(sheet)


def _kept(run: Any, report: Report, wanted: Wanted) -> Iterator[tuple[Panel, dict[str, Any]]]:
    """The kept explanations of the first text of each panel, by row name; also of a text that is
    too short to be measured."""
    from tokenlight.data.attribution import Attribution

    for panel in report.panels:
        if wanted.data and panel.data not in wanted.data:
            continue
        found = {}
        for row in run.rows(model=panel.model, data=panel.data):
            if row["example"] == 0 and row.get("attribution") and wanted.takes(row["method"]):
                found[row["method"]] = Attribution.from_dict(json_of(row["attribution"]))
        if found:
            yield panel, found


def _heat_map(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    from tokenlight.plots.figures import heat_map

    for _, found in _kept(run, report, wanted):
        for attribution in found.values():
            if attribution.layers is not None:
                return heat_map(attribution, rollout=True)  # AttCAT's figure 5 has the row
    return None


def _differences(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    from tokenlight.plots.figures import difference_map

    name = str((wanted.more or {}).get("reference", ""))
    for panel, found in _kept(run, report, wanted):
        if name in found and len(found) > 1:
            others = {label: one for label, one in found.items() if label != name}
            return difference_map((name, found[name]), others, title=panel.title)
    return None


def _clouds(run: Any, report: Report, wanted: Wanted, curves: Any) -> Any:  # noqa: ARG001
    from tokenlight.bench.report_clouds import class_weights
    from tokenlight.plots.clouds import COLOURS, cloud

    drawn = []
    for panel, metric in _panels(report, wanted):
        for method in panel.rows:
            if not wanted.takes(method):
                continue
            rows = run.rows(model=panel.model, data=panel.data, method=method)
            for number, (label, own) in enumerate(class_weights(rows, metric, run.suite).items()):
                if any(weight > 0 for weight in own.values()):
                    colour = COLOURS[number % len(COLOURS)]
                    drawn.append(_captioned(cloud(own, colour=colour), f"{method}: {label}"))
    return _beside(drawn, across=2)


def _captioned(image: Any, words: str) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    from tokenlight.plots.characters import in_line

    image.thumbnail((600, 400))
    sheet = Image.new("RGB", (image.width + 20, image.height + 50), "white")
    sheet.paste(image, (10, 40))
    font = ImageFont.load_default(20)
    ImageDraw.Draw(sheet).text((14, 10), in_line(words), fill="black", font=font)
    return sheet


def _frontier(report: Report) -> Any:
    known = [cost for cost in report.costs if cost.value is not None]
    if len(known) < 2:
        return None
    kinds: dict[str, Callable[[Any], float]] = {
        "milliseconds of explaining a text": lambda cost: 1000 * cost.seconds,
        "passes (forward + backward) a text": lambda cost: cost.forwards + cost.backwards,
    }
    panels = {
        title: {one.method: Place(cost(one), one.value or 0.0) for one in known}
        for title, cost in kinds.items()
    }
    lower = report.better.get(report.faithful) == "lower"
    return frontier(panels, report.faithful, lower=lower)


DRAWERS: dict[str, Callable[[Any, Report, Wanted, Any], Any]] = {
    "bars": _bars,
    "curves": _curves,
    "bands": _bands,
    "relations": _relations,
    "head_maps": _head_maps,
    "heat_map": _heat_map,
    "differences": _differences,
    "clouds": _clouds,
}
