"""The figures of a report, as far as the run has what they show: a picture, or why there is none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import fmean
from typing import Any, NamedTuple

from tokenlight.bench.entries import FigureWish
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.values import Panel
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference
from tokenlight.errors import MissingExtra
from tokenlight.evaluation.corpus import class_weights
from tokenlight.evaluation.report import AXES
from tokenlight.files.documents import json_of
from tokenlight.heads.mask import read_heads
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots import charts, figures
from tokenlight.plots.figures import highlighted


class Drawing(NamedTuple):
    """A figure as PNG, or (``missing``) why it could not be drawn."""

    title: str
    content: bytes = b""
    missing: str = ""


@dataclass(frozen=True)
class Artist:
    """Draws what a run has."""

    report: SuiteReport

    def drawings(self) -> Iterator[Drawing]:
        """The suite's figures, or bars and curves of every metric; then cost against faithfulness."""
        for wish in self.report.suite.report.figures or self._usual():
            try:
                drawn = getattr(self, wish.kind)(wish)
            except MissingExtra as absent:
                yield Drawing(wish.title, missing=str(absent))
                continue
            # Several pictures have a title each.
            several = drawn if isinstance(drawn, dict) else {"": drawn} if drawn else {}
            for title, one in several.items():
                content = one if isinstance(one, bytes) else charts.png(one)
                yield Drawing(f"{wish.title}: {title}" if title else wish.title, content)
            if not several:
                yield Drawing(wish.title, missing="nothing of it was run")
        if (drawn := self._frontier()) is not None:
            yield Drawing("Cost against faithfulness", charts.png(drawn))

    def _usual(self) -> Iterator[FigureWish]:
        report = self.report
        for one in report.suite.metrics:
            title = f"{one.label} {ARROWS[report.better[one.label]]}".rstrip()
            if report.compared(one.label):
                title += ": ours (bars) and published (diamonds)"
            yield FigureWish("bars", title, (one.label,))
        for one in report.suite.metrics:
            measured = any(one.label in panel.metrics for panel in report.ran)
            if measured and one.metric.points:
                yield FigureWish("curves", f"{one.label} point by point", (one.label,))

    def _panels(self, wish: FigureWish) -> Iterator[tuple[Panel, str, str]]:
        """Panels with numbers, each with a metric that is wanted, and their title together."""
        report = self.report
        for metric in wish.metrics or tuple(one.label for one in report.suite.metrics):
            arrow = ARROWS[report.better.get(metric, "neither")]
            for panel in self._of_data(wish):
                if panel.ran and metric in panel.metrics:
                    yield panel, metric, f"{panel.title}: {metric} {arrow}".rstrip()

    def _of_data(self, wish: FigureWish) -> list[Panel]:
        return [panel for panel in self.report.panels if not wish.data or panel.data in wish.data]

    def bars(self, wish: FigureWish) -> Any:
        limits = self.report.suite.report.maximum
        found: dict[str, dict[str, charts.Bar]] = {}
        most = []
        for panel, metric, title in self._panels(wish):
            chosen = {}
            for method in filter(wish.takes, panel.rows):
                score = panel.rows[method][metric]
                low, high = score.edges(1)  # of no mean, of no bar
                if score.mean is not None or score.published is not None:
                    chosen[method] = charts.Bar(score.mean, low, high, score.published)
            if chosen:
                found[title] = chosen
                most.append(limits.get(panel.data))
        return charts.bars(found, most)

    def curves(self, wish: FigureWish) -> Any:
        """Curves, a line a row: of several draws their means."""
        row_of = self.report.suite.row_of
        found: dict[str, dict[str, charts.Line]] = {}
        axis: dict[str, str] = {}
        for panel, metric, title in self._panels(wish):
            kept: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
            wanted = (panel.model, panel.data, metric)
            for point in self.report.tables.curves:
                name = row_of.get(point["method"], point["method"])
                mine = (point["model"], point["data"], point["metric"])
                if mine == wanted and point["mean"] is not None and wish.takes(name):
                    kept.setdefault(name, {}).setdefault(point["point"], []).append(point)
            if kept:
                found[title] = {name: _line(at) for name, at in kept.items()}
                kind = next(one.name for one in self.report.suite.metrics if one.label == metric)
                axis |= {title: AXES[kind]} if kind in AXES else {}
        return charts.lines(found, axis)

    def bands(self, wish: FigureWish) -> Any:
        """Draws at each rate as a mean and its spread, between a first and a last level."""
        before, _, after = wish.group.partition("{x}")
        found: dict[str, dict[str, charts.Line]] = {}
        for panel, metric, title in self._panels(wish):
            at: dict[float, tuple[float, float, float]] = {}
            for method, row in panel.rows.items():
                mean = row[metric].mean
                if mean is not None and method.startswith(before) and method.endswith(after):
                    rate = float(method.removeprefix(before).removesuffix(after))
                    sd = row[metric].sd or 0.0
                    at[rate] = (mean, mean - sd, mean + sd)
            fixed = {name: panel.score(name, metric).mean for name in (wish.start, wish.end)}
            levels = {name: mean for name, mean in fixed.items() if mean is not None}
            if at:
                x = sorted(at)
                means, lows, highs = ([at[one][i] for one in x] for i in range(3))
                own = {"mean ± one standard deviation": charts.Line(x, means, lows, highs)}
                flat = {n: charts.Line((x[0], x[-1]), (one, one)) for n, one in levels.items()}
                found[title] = own | flat
        return charts.lines(found, dict.fromkeys(found, wish.x))

    def _heads(self, wish: FigureWish) -> dict[str, Mapping[str, Any]]:
        """Title and content of the heads file of each panel the figure speaks of."""
        run = self.report.run
        places = {(cell.model, cell.data): run.heads_file(cell) for cell in run.cells}
        known = {panel.title: places[panel.model, panel.data] for panel in self._of_data(wish)}
        return {title: read_heads(place) for title, place in known.items() if place.is_file()}

    def relations(self, wish: FigureWish) -> Any:
        """Histograms of the syntactic relations of the first heads file."""
        return next(map(figures.relation_histograms, self._heads(wish).values()), None)

    def head_maps(self, wish: FigureWish) -> Any:
        return {title: figures.head_map(heads) for title, heads in self._heads(wish).items()}

    def _kept(self, wish: FigureWish) -> Iterator[tuple[Panel, dict[str, Attribution]]]:
        """The kept explanations of each text of each panel, by row name; of short texts, too."""
        for panel in self._of_data(wish):
            found: dict[int, dict[str, Attribution]] = {}
            for row in self.report.run.rows(model=panel.model, data=panel.data):
                if row.get("attribution") and wish.takes(row["method"]):
                    own = found.setdefault(row["example"], {})
                    own[row["method"]] = Attribution.from_dict(json_of(row["attribution"]))
            yield from ((panel, found[number]) for number in sorted(found))

    def heat_map(self, wish: FigureWish) -> Any:
        """The first kept explanation with layers, layer by layer."""
        for _, found in self._kept(wish):
            for attribution in found.values():
                if attribution.layers is not None:
                    # AttCAT's figure 5 has the product of the layers.
                    return figures.heat_map(attribution, rollout=True)
        return None

    def differences(self, wish: FigureWish) -> Any:
        """A reference explanation less each of the others."""
        for panel, found in self._kept(wish):
            others = {label: one for label, one in found.items() if label != wish.reference}
            if others and len(others) < len(found):
                base = (wish.reference, found[wish.reference])
                return figures.difference_map(base, others, title=panel.title)
        return None

    def texts(self, wish: FigureWish) -> Any:
        """The kept texts, coloured by each row; with a reference, by it and by it less each other."""
        shown: list[Attribution] = []
        for _, found in self._kept(wish):
            own, base = found, found.get(wish.reference)
            if base is not None:
                own = {wish.reference: base} | {
                    f"{wish.reference} − {label}": difference(base, one)
                    for label, one in found.items()
                    if one is not base
                }
            shown += [replace(one, method=label, options={}) for label, one in own.items()]
        return highlighted(shown) if shown else None

    def clouds(self, wish: FigureWish) -> Any:
        drawn = {}
        for panel, metric, _ in self._panels(wish):
            entry = next(one for one in self.report.suite.metrics if one.label == metric)
            for method in filter(wish.takes, panel.rows):
                rows = self.report.run.rows(model=panel.model, data=panel.data, method=method)
                weights = class_weights(rows, metric, entry.metric.idf).items()
                for (label, own), colour in zip(weights, cycle(charts.CLOUD_COLOURS), strict=False):
                    if any(weight > 0 for weight in own.values()):
                        cloud = charts.small(charts.cloud(own, colour=colour))
                        drawn[f"{method}, {label} ({panel.title})"] = cloud
        return drawn

    def _frontier(self) -> Any:
        milliseconds, passes = {}, {}
        for one in self.report.costs:
            if (value := one["value"]) is not None:
                milliseconds[one["method"]] = (1000 * one["seconds"], value)
                passes[one["method"]] = (one["forwards"] + one["backwards"], value)
        if len(passes) < 2:
            return None
        panels = {
            "milliseconds of explaining a text": milliseconds,
            "passes (forward + backward) a text": passes,
        }
        faithful = self.report.faithful
        return charts.frontier(panels, faithful, lower=self.report.better.get(faithful) == "lower")


def _line(at: Mapping[float, list[Mapping[str, Any]]]) -> charts.Line:
    points = sorted(at)
    means, lows, highs = (
        [fmean(float(one[key]) for one in at[point]) for point in points]
        for key in ("mean", "low", "high")
    )
    return charts.Line(points, means, lows, highs)
