"""The figures of a report: a picture each, or the reason why there is none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import fmean
from typing import Any, NamedTuple

from tokenlight.attention_heads.mask import read_heads_file
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.values import Panel
from tokenlight.bench.suite_entries import FigureSpec, MetricEntry
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference
from tokenlight.errors import MissingExtra
from tokenlight.evaluation.corpus import ClassWeights, compute_class_weights
from tokenlight.evaluation.report import X_AXIS_LABELS
from tokenlight.files.parsing import parse_json
from tokenlight.metrics.base import DIRECTION_ARROWS
from tokenlight.plots import charts, figures
from tokenlight.plots.figures import draw_highlighted_text

CurveRow = Mapping[str, Any]


class RenderedFigure(NamedTuple):
    """A figure as PNG, or the reason why it could not be drawn."""

    title: str
    content: bytes = b""
    missing_reason: str = ""


class PanelFigure(NamedTuple):
    """A panel, one of its metrics, and the title of the two."""

    panel: Panel
    metric: str
    title: str


@dataclass(frozen=True)
class FigureDrawer:
    """Draws the figures of a report; each public method but ``draw_all`` draws one kind of FigureSpec.

    A method returns a figure, PNG bytes, or several by title; something empty if the run has no data for it.
    """

    report: SuiteReport

    def draw_all(self) -> Iterator[RenderedFigure]:
        """Yield the figures of the suite, or by default bars and curves; then cost against faithfulness."""
        specs = self.report.suite.report.figures or tuple(self._default_figures())
        for spec in specs:
            yield from self._render(spec)
        frontier = self._draw_frontier()
        if frontier is not None:
            yield RenderedFigure("Cost against faithfulness", charts.render_png(frontier))

    def _render(self, spec: FigureSpec) -> Iterator[RenderedFigure]:
        """Draw one figure of the suite, which may be several pictures."""
        try:
            drawn = getattr(self, spec.kind)(spec)
        except MissingExtra as error:
            yield RenderedFigure(spec.title, missing_reason=str(error))
            return
        if not drawn:
            yield RenderedFigure(spec.title, missing_reason="no part of it was run")
            return
        # Several pictures come with a subtitle each.
        pictures = drawn if isinstance(drawn, dict) else {"": drawn}
        for subtitle, picture in pictures.items():
            title = f"{spec.title}: {subtitle}" if subtitle else spec.title
            content = picture if isinstance(picture, bytes) else charts.render_png(picture)
            yield RenderedFigure(title, content)

    def _default_figures(self) -> Iterator[FigureSpec]:
        """Yield bars of every metric, then the curves of metrics that have one."""
        report = self.report
        for entry in report.suite.metrics:
            title = f"{entry.label} {DIRECTION_ARROWS[report.directions[entry.label]]}".rstrip()
            if report.has_published_scores(entry.label):
                title += ": ours (bars) and published (diamonds)"
            yield FigureSpec("bars", title, (entry.label,))
        for entry in report.suite.metrics:
            is_measured = any(entry.label in panel.metrics for panel in report.measured_panels)
            if is_measured and entry.metric.curve_points:
                yield FigureSpec("curves", f"{entry.label} point by point", (entry.label,))

    def _iter_panels(self, spec: FigureSpec) -> Iterator[PanelFigure]:
        """Yield panels with numbers, for each metric of the figure."""
        metrics = spec.metrics or [entry.label for entry in self.report.suite.metrics]
        for metric in metrics:
            arrow = DIRECTION_ARROWS[self.report.directions.get(metric, "neither")]
            for panel in self._select_panels(spec):
                if panel.has_scores and metric in panel.metrics:
                    yield PanelFigure(panel, metric, f"{panel.title}: {metric} {arrow}".rstrip())

    def _select_panels(self, spec: FigureSpec) -> list[Panel]:
        return [panel for panel in self.report.panels if not spec.data or panel.data in spec.data]

    def _get_metric_entry(self, label: str) -> MetricEntry:
        return next(entry for entry in self.report.suite.metrics if entry.label == label)

    def bars(self, spec: FigureSpec) -> Any:
        """Draw a bar with its interval per method, and a diamond for the published number."""
        bars_by_title: dict[str, dict[str, charts.Bar]] = {}
        upper_limits = []
        for panel, metric, title in self._iter_panels(spec):
            # A method with a published number only gets a diamond without a bar.
            bars = {}
            for method, row in panel.rows.items():
                score = row[metric]
                has_score = score.mean is not None or score.published is not None
                if spec.includes(method) and has_score:
                    low, high = score.get_bounds(1)
                    bars[method] = charts.Bar(score.mean, low, high, score.published)
            if bars:
                bars_by_title[title] = bars
                upper_limits.append(self.report.suite.report.maximum.get(panel.data))
        return charts.draw_bars(bars_by_title, upper_limits)

    def curves(self, spec: FigureSpec) -> Any:
        """Draw a line per row; for repeated runs the mean of their lines."""
        lines_by_title: dict[str, dict[str, charts.Line]] = {}
        axis_labels: dict[str, str] = {}
        for panel, metric, title in self._iter_panels(spec):
            curves = self._collect_curves(spec, panel, metric)
            if not curves:
                continue
            lines_by_title[title] = {row: _average_lines(points) for row, points in curves.items()}
            metric_name = self._get_metric_entry(metric).name
            if metric_name in X_AXIS_LABELS:
                axis_labels[title] = X_AXIS_LABELS[metric_name]
        return charts.draw_lines(lines_by_title, axis_labels)

    def _collect_curves(
        self, spec: FigureSpec, panel: Panel, metric: str
    ) -> dict[str, dict[float, list[CurveRow]]]:
        """Return row → point → entries of the curve table, one entry per repeated run."""
        identifiers = {"model": panel.model, "data": panel.data, "metric": metric}
        curves: dict[str, dict[float, list[CurveRow]]] = {}
        for entry in self.report.tables.curves:
            method: str = entry["method"]
            row = self.report.suite.row_by_method.get(method, method)
            is_selected = identifiers.items() <= entry.items() and spec.includes(row)
            if is_selected and entry["mean"] is not None:
                points = curves.setdefault(row, {})
                points.setdefault(entry["point"], []).append(entry)
        return curves

    def bands(self, spec: FigureSpec) -> Any:
        """Draw repeated runs at each rate as a mean and its spread, between two levels."""
        lines_by_title: dict[str, dict[str, charts.Line]] = {}
        for panel, metric, title in self._iter_panels(spec):
            # The band itself, then the two levels that it lies between.
            band = _collect_band(spec, panel, metric)
            if band is None:
                continue
            lines = {"mean ± one standard deviation": band}
            ends = (band.points[0], band.points[-1])
            for method in (spec.start, spec.end):
                level = panel.get_score(method, metric).mean
                if level is not None:
                    lines[method] = charts.Line(ends, (level, level))
            lines_by_title[title] = lines
        return charts.draw_lines(lines_by_title, dict.fromkeys(lines_by_title, spec.x))

    def _read_heads_files(self, spec: FigureSpec) -> dict[str, Mapping[str, Any]]:
        """Read the heads file of each panel of the figure, by the title of the panel."""
        run_folder = self.report.run_folder
        paths = {(cell.model, cell.data): run_folder.heads_path(cell) for cell in run_folder.cells}
        heads_by_title: dict[str, Mapping[str, Any]] = {}
        for panel in self._select_panels(spec):
            path = paths[panel.model, panel.data]
            if path.is_file():
                heads_by_title[panel.title] = read_heads_file(path)
        return heads_by_title

    def relations(self, spec: FigureSpec) -> Any:
        """Draw histograms of the syntactic relations of the first heads file."""
        for heads in self._read_heads_files(spec).values():
            return figures.draw_relation_histograms(heads)
        return None

    def head_maps(self, spec: FigureSpec) -> Any:
        """Draw a map of the heads of each model."""
        heads_by_title = self._read_heads_files(spec)
        return {title: figures.draw_head_map(heads) for title, heads in heads_by_title.items()}

    def _read_kept_attributions(
        self, spec: FigureSpec
    ) -> Iterator[tuple[Panel, dict[str, Attribution]]]:
        """Yield the stored explanations of each text of each panel, by method."""
        for panel in self._select_panels(spec):
            attributions_by_example: dict[int, dict[str, Attribution]] = {}
            for row in self.report.run_folder.iter_rows(model=panel.model, data=panel.data):
                if row.get("attribution") and spec.includes(row["method"]):
                    attribution = Attribution.from_dict(parse_json(row["attribution"]))
                    by_method = attributions_by_example.setdefault(row["example"], {})
                    by_method[row["method"]] = attribution
            # Parts may have been read in any order; texts are shown in that of the data set.
            for example in sorted(attributions_by_example):
                yield panel, attributions_by_example[example]

    def heat_map(self, spec: FigureSpec) -> Any:
        """Draw the first stored explanation that has layers, layer by layer."""
        for _, attributions in self._read_kept_attributions(spec):
            for attribution in attributions.values():
                if attribution.layers is not None:
                    # Figure 5 of the AttCAT paper also shows the product of the layers.
                    return figures.draw_heat_map(attribution, rollout=True)
        return None

    def differences(self, spec: FigureSpec) -> Any:
        """Draw a reference explanation minus each of the others."""
        for panel, attributions in self._read_kept_attributions(spec):
            if spec.reference in attributions and len(attributions) > 1:
                others = dict(attributions)
                reference = others.pop(spec.reference)
                return figures.draw_difference_map(
                    (spec.reference, reference), others, title=panel.title
                )
        return None

    def texts(self, spec: FigureSpec) -> Any:
        """Draw the stored texts colored by each method; with a reference, by it and its differences."""
        shown: list[Attribution] = []
        for _, attributions in self._read_kept_attributions(spec):
            labeled = attributions
            reference = attributions.get(spec.reference)
            if reference is not None:
                labeled = {spec.reference: reference}
                for method, attribution in attributions.items():
                    if attribution is not reference:
                        label = f"{spec.reference} − {method}"
                        labeled[label] = difference(reference, attribution)
            for label, attribution in labeled.items():
                shown.append(replace(attribution, method=label, options={}))
        return draw_highlighted_text(shown) if shown else None

    def clouds(self, spec: FigureSpec) -> Any:
        """Draw a word cloud per method and class."""
        clouds = {}
        for panel, metric, _ in self._iter_panels(spec):
            idf = self._get_metric_entry(metric).metric.idf
            for method in filter(spec.includes, panel.rows):
                rows = self.report.run_folder.iter_rows(
                    model=panel.model, data=panel.data, method=method
                )
                weights_by_class = compute_class_weights(rows, metric, idf)
                for label, cloud in _draw_class_clouds(weights_by_class).items():
                    clouds[f"{method}, {label} ({panel.title})"] = cloud
        return clouds

    def _draw_frontier(self) -> Any:
        """Draw time and passes per text against the cost metric; needs two methods or more."""
        milliseconds = {}
        passes = {}
        for cost in self.report.costs:
            if cost.value is not None:
                milliseconds[cost.method] = (1000 * cost.seconds, cost.value)
                passes[cost.method] = (cost.forwards + cost.backwards, cost.value)
        if len(passes) < 2:
            return None
        panels = {
            "milliseconds per explained text": milliseconds,
            "passes (forward + backward) per text": passes,
        }
        metric = self.report.cost_metric
        lower_is_better = self.report.directions.get(metric) == "lower"
        return charts.draw_frontier(panels, metric, lower_is_better=lower_is_better)


def _draw_class_clouds(weights_by_class: ClassWeights) -> dict[str, bytes]:
    """Draw a word cloud per class; a class without positive weights has nothing to show."""
    clouds = {}
    for colour, (label, weights) in zip(
        cycle(charts.CLOUD_COLOURS), weights_by_class.items(), strict=False
    ):
        if any(weight > 0 for weight in weights.values()):
            cloud = charts.draw_word_cloud(weights, colour=colour)
            clouds[label] = charts.to_small_png(cloud)
    return clouds


def _collect_band(spec: FigureSpec, panel: Panel, metric: str) -> charts.Line | None:
    """Collect mean and spread of the rows named like ``spec.group``, whose ``{x}`` is the position."""
    prefix, _, suffix = spec.group.partition("{x}")
    bounds_by_rate: dict[float, tuple[float, float, float]] = {}
    for method, row in panel.rows.items():
        mean = row[metric].mean
        if mean is not None and method.startswith(prefix) and method.endswith(suffix):
            rate = float(method.removeprefix(prefix).removesuffix(suffix))
            spread = row[metric].sd or 0.0
            bounds_by_rate[rate] = (mean, mean - spread, mean + spread)
    if not bounds_by_rate:
        return None
    rates = sorted(bounds_by_rate)
    means = [bounds_by_rate[rate][0] for rate in rates]
    lows = [bounds_by_rate[rate][1] for rate in rates]
    highs = [bounds_by_rate[rate][2] for rate in rates]
    return charts.Line(rates, means, lows, highs)


def _average_lines(rows_by_point: Mapping[float, list[CurveRow]]) -> charts.Line:
    """Average the curves of repeated runs, point by point."""
    points = sorted(rows_by_point)

    def average(key: str) -> list[float]:
        return [fmean(float(row[key]) for row in rows_by_point[point]) for point in points]

    return charts.Line(points, average("mean"), average("low"), average("high"))
