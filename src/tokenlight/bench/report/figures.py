"""The figures of a report, as far as the run has what they show: a picture, or why there is none."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from io import BytesIO
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tokenlight import registry
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.values import Number, Panel
from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.evaluation.corpus import class_weights
from tokenlight.evaluation.report import AXES
from tokenlight.files.documents import json_of
from tokenlight.heads.mask import read_heads
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots import charts, figures
from tokenlight.plots.characters import in_line
from tokenlight.plots.figures import highlighted

DRAWERS = [
    "bars",
    "curves",
    "bands",
    "relations",
    "head_maps",
    "heat_map",
    "differences",
    "texts",
    "clouds",
]


class Drawing(NamedTuple):
    """A figure as PNG, or (``missing``) why it could not be drawn."""

    title: str
    content: bytes = b""
    missing: str = ""


@dataclass(frozen=True)
class FigureWish:
    """One figure that a suite asks for under ``report: figures``; empty lists mean all."""

    kind: str = "bars"
    title: str = ""
    metrics: Sequence[str] = ()
    data: Sequence[str] = ()
    methods: Sequence[str] = ()
    reference: str = ""
    group: str = "{x}"  # of bands: the names of their rows, where they begin and end, the axis
    start: str = ""
    end: str = ""
    x: str = ""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "FigureWish":
        """From the suite's mapping."""
        found = {"title": given.get("kind", cls.kind), **given}
        known = {one.name: found[one.name] for one in fields(cls) if one.name in found}
        texts = {k: [*map(str, v)] if isinstance(v, list) else str(v) for k, v in known.items()}
        return cls(**texts)  # type: ignore[arg-type]

    def takes(self, method: str) -> bool:
        """Whether a row belongs to the figure; ``layer *`` stands for all layers."""
        return not self.methods or any(fnmatchcase(method, one) for one in self.methods)

    def panels(self, among: Sequence[Panel]) -> list[Panel]:
        """Those of its data sets."""
        return [panel for panel in among if not self.data or panel.data in self.data]


@dataclass(frozen=True)
class Artist:
    """Draws what a run has."""

    report: SuiteReport

    def drawings(self) -> Iterator[Drawing]:
        """The suite's figures, or bars and curves of every metric; then cost against faithfulness."""
        given = self.report.suite.report.get("figures")
        for wish in [FigureWish.of(one) for one in given] if given else self._usual():
            if wish.kind not in DRAWERS:
                raise BadInput(
                    f"a report draws {', '.join(DRAWERS)}; {wish.kind!r} is none of them."
                )
            try:
                drawn = getattr(self, wish.kind)(wish)
            except MissingExtra as absent:
                yield Drawing(wish.title, missing=str(absent))
                continue
            if drawn is None:
                yield Drawing(wish.title, missing="nothing of it was run")
            else:
                yield Drawing(wish.title, drawn if isinstance(drawn, bytes) else charts.png(drawn))
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
            if measured and registry.build("metrics", one.name, one.options).points:
                yield FigureWish("curves", f"{one.label} point by point", (one.label,))

    def _panels(self, wish: FigureWish) -> Iterator[tuple[Panel, str, str]]:
        """Panels with numbers, each with a metric that is wanted, and their title together."""
        report = self.report
        for metric in wish.metrics or tuple(one.label for one in report.suite.metrics):
            arrow = ARROWS[report.better.get(metric, "neither")]
            for panel in wish.panels(report.ran):
                if metric in panel.metrics:
                    yield panel, metric, f"{panel.title}: {metric} {arrow}".rstrip()

    def bars(self, wish: FigureWish) -> Any:
        """Methods side by side, with what is published."""
        limits = self.report.suite.report.get("maximum", {})
        found: dict[str, dict[str, charts.Bar]] = {}
        most = []
        for panel, metric, title in self._panels(wish):
            chosen = {}
            for method in filter(wish.takes, panel.rows):
                score = panel.rows[method][metric]
                if score.ours is not None:
                    edges = score.ours.edges(1)
                    chosen[method] = charts.Bar(score.ours.mean, *edges, score.published)
                elif score.published is not None:
                    chosen[method] = charts.Bar(published=score.published)
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
            at: dict[float, Number] = {}
            for method, row in panel.rows.items():
                ours = row[metric].ours
                if ours is not None and method.startswith(before) and method.endswith(after):
                    at[float(method.removeprefix(before).removesuffix(after))] = ours
            fixed = {name: panel.score(name, metric).ours for name in (wish.start, wish.end)}
            levels = {name: ours.mean for name, ours in fixed.items() if ours is not None}
            if at:
                x = sorted(at)
                means, spreads = [at[one].mean for one in x], [at[one].sd or 0.0 for one in x]
                reach = [[m + k * s for m, s in zip(means, spreads, strict=True)] for k in (-1, 1)]
                own = {"mean ± one standard deviation": charts.Line(x, means, *reach)}
                flat = {n: charts.Line((x[0], x[-1]), (one, one)) for n, one in levels.items()}
                found[title] = own | flat
        return charts.lines(found, dict.fromkeys(found, wish.x))

    def _heads(self, wish: FigureWish) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Title and content of the heads file of each panel the figure speaks of."""
        run = self.report.run
        for panel in wish.panels(self.report.panels):
            pair = (panel.model, panel.data)
            cells = [c for c in run.cells if (c.model, c.data) == pair and c.runs]
            given = [c.options["heads"] for c in cells if isinstance(c.options.get("heads"), str)]
            made = [run.heads_file(c) for c in cells]
            place = next((p for p in (*made, *map(Path, given)) if p.is_file()), None)
            if place is not None:
                yield panel.title, read_heads(place)

    def relations(self, wish: FigureWish) -> Any:
        """Histograms of the syntactic relations of the first heads file."""
        first = next(self._heads(wish), None)
        return None if first is None else figures.relation_histograms(first[1])

    def head_maps(self, wish: FigureWish) -> Any:
        """The masks of heads, panel by panel."""
        from PIL import Image

        drawn = []
        for title, heads in self._heads(wish):
            figure = figures.head_map(heads)
            charts.titled(figure.axes[0], title)
            figure.tight_layout()
            drawn.append(Image.open(BytesIO(charts.plain_png(figure, charts.DOTS))).convert("RGB"))
        return _beside(drawn)

    def _kept(self, wish: FigureWish) -> Iterator[tuple[Panel, dict[str, Attribution]]]:
        """The kept explanations of each text of each panel, by row name; also of a text that is too
        short to be measured."""
        for panel in wish.panels(self.report.panels):
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
        """The words of each class, by method."""
        drawn = []
        for panel, metric, _ in self._panels(wish):
            entry = next(one for one in self.report.suite.metrics if one.label == metric)
            idf = registry.build("metrics", entry.name, entry.options).idf
            for method in filter(wish.takes, panel.rows):
                rows = self.report.run.rows(model=panel.model, data=panel.data, method=method)
                weights = class_weights(rows, metric, idf)
                for colour, (label, own) in zip(
                    cycle(charts.CLOUD_COLOURS), weights.items(), strict=False
                ):
                    if any(weight > 0 for weight in own.values()):
                        cloud = charts.cloud(own, colour=colour)
                        drawn.append(_captioned(cloud, f"{method}: {label}"))
        return _beside(drawn, across=2)

    def _frontier(self) -> Any:
        milliseconds, passes = {}, {}
        for one in self.report.costs:
            if one.value is not None:
                milliseconds[one.method] = charts.Place(1000 * one.seconds, one.value)
                passes[one.method] = charts.Place(one.forwards + one.backwards, one.value)
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
    return charts.small(sheet)


def _captioned(image: Any, words: str) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    image.thumbnail((600, 400))
    sheet = Image.new("RGB", (image.width + 20, image.height + 50), "white")
    sheet.paste(image, (10, 40))
    font = ImageFont.load_default(20)
    ImageDraw.Draw(sheet).text((14, 10), in_line(words), fill="black", font=font)
    return sheet
