"""The figures of a report, as far as the run has what they show: a picture, or why there is none."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenlight import registry
from tokenlight.bench.report.values import Panel, SuiteReport
from tokenlight.bench.store import RunFolder
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
from tokenlight.plots.highlighted import highlighted


@dataclass(frozen=True)
class Drawing:
    """A figure as PNG, or (``missing``) why it could not be drawn."""

    title: str
    content: bytes = b""
    missing: str = ""


@dataclass(frozen=True)
class FigureWish:
    """One figure that a suite asks for under ``report: figures``; empty lists mean all."""

    kind: str
    title: str
    metrics: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "FigureWish":
        """From the suite's mapping."""
        lists = {key: tuple(map(str, given.get(key, ()))) for key in ("metrics", "data", "methods")}
        kind = str(given.get("kind", "bars"))
        return cls(kind, str(given.get("title", kind)), **lists, more=given)

    def takes(self, method: str) -> bool:
        """Whether a row belongs to the figure; ``layer *`` stands for all layers."""
        return not self.methods or any(fnmatchcase(method, one) for one in self.methods)

    def said(self, key: str, default: str = "") -> str:
        """A further word of the suite on this figure."""
        return str((self.more or {}).get(key, default))


@dataclass(frozen=True)
class Artist:
    """Draws what a run has; ``curves``: rows of its merged table of curves."""

    run: RunFolder
    report: SuiteReport
    curves: Sequence[Mapping[str, Any]]

    def drawings(self) -> Iterator[Drawing]:
        """The suite's figures, or bars and curves of every metric; then cost against faithfulness."""
        given = self.report.suite.report.get("figures")
        for wish in [FigureWish.of(one) for one in given] if given else self._usual():
            if wish.kind not in DRAWERS:
                raise BadInput(
                    f"a report draws {', '.join(DRAWERS)}; {wish.kind!r} is none of them."
                )
            try:
                drawn = DRAWERS[wish.kind](self, wish)
            except MissingExtra as absent:
                yield Drawing(wish.title, missing=str(absent))
                continue
            if drawn is None:
                yield Drawing(wish.title, missing="nothing of it was run")
            else:
                yield Drawing(wish.title, drawn if isinstance(drawn, bytes) else charts.png(drawn))
        drawn = self._frontier()
        if drawn is not None:
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
            for panel in report.ran:
                if metric in panel.metrics and (not wish.data or panel.data in wish.data):
                    yield panel, metric, f"{panel.title}: {metric} {arrow}".rstrip()

    def bars(self, wish: FigureWish) -> Any:
        """Methods side by side, with what is published."""
        limits = self.report.suite.report.get("maximum", {})
        found: dict[str, dict[str, charts.Bar]] = {}
        most = []
        for panel, metric, title in self._panels(wish):
            chosen: dict[str, charts.Bar] = {}
            for method, row in panel.rows.items():
                ours, published = row[metric].ours, row[metric].published
                if wish.takes(method) and ours is not None:
                    chosen[method] = charts.Bar(ours.mean, *ours.edges(1), published)
                elif wish.takes(method) and published is not None:
                    chosen[method] = charts.Bar(published=published)
            if chosen:
                found[title] = chosen
                most.append(limits.get(panel.data))
        return charts.bars(found, most) if found else None

    def lines(self, wish: FigureWish) -> Any:
        """Curves, a line a row: of several draws their means."""
        row_of = self.run.suite.row_of
        found: dict[str, dict[str, charts.Line]] = {}
        axis: dict[str, str] = {}
        for panel, metric, title in self._panels(wish):
            kept: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
            for point in self.curves:
                name = row_of.get(point["method"], point["method"])
                mine = (point["model"], point["data"], point["metric"])
                ours = mine == (panel.model, panel.data, metric) and point["mean"] is not None
                if ours and wish.takes(name):
                    kept.setdefault(name, {}).setdefault(point["point"], []).append(point)
            if kept:
                found[title] = {name: _line(at) for name, at in kept.items()}
                kind = next(one.name for one in self.report.suite.metrics if one.label == metric)
                axis |= {title: AXES[kind]} if kind in AXES else {}
        return charts.lines(found, axis) if found else None

    def bands(self, wish: FigureWish) -> Any:
        """Draws at each rate as a mean and its spread, between a first and a last level."""
        before, _, after = wish.said("group", "{x}").partition("{x}")
        found: dict[str, charts.Band] = {}
        for panel, metric, title in self._panels(wish):
            at: dict[float, tuple[float, float]] = {}
            for method, row in panel.rows.items():
                ours = row[metric].ours
                if ours is not None and method.startswith(before) and method.endswith(after):
                    rate = float(method.removeprefix(before).removesuffix(after))
                    at[rate] = (ours.mean, ours.sd or 0.0)
            levels = {
                name: number.mean
                for name in (wish.said("start"), wish.said("end"))
                if (number := panel.score(name, metric).ours) is not None
            }
            if at:
                x = sorted(at)
                means, spreads = [at[one][0] for one in x], [at[one][1] for one in x]
                found[title] = charts.Band(x, means, spreads, levels)
        return charts.bands(found, wish.said("x")) if found else None

    def _heads(self, wish: FigureWish) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Title and content of the heads file of each panel the figure speaks of."""
        for panel in self.report.panels:
            if wish.data and panel.data not in wish.data:
                continue
            pair = (panel.model, panel.data)
            cells = [c for c in self.run.cells if (c.model, c.data) == pair and c.runs]
            given = [c.options["heads"] for c in cells if isinstance(c.options.get("heads"), str)]
            made = [self.run.heads_file(c) for c in cells]
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
            into = io.BytesIO()
            figure.savefig(into, format="png", dpi=charts.DOTS, facecolor="white")
            drawn.append(Image.open(into).convert("RGB"))
        return _beside(drawn)

    def _kept(self, wish: FigureWish) -> Iterator[tuple[Panel, dict[str, Attribution]]]:
        """The kept explanations of each text of each panel, by row name; also of a text that is too
        short to be measured."""
        for panel in self.report.panels:
            if wish.data and panel.data not in wish.data:
                continue
            found: dict[int, dict[str, Attribution]] = {}
            for row in self.run.rows(model=panel.model, data=panel.data):
                if row.get("attribution") and wish.takes(row["method"]):
                    own = found.setdefault(row["example"], {})
                    own[row["method"]] = Attribution.from_dict(json_of(row["attribution"]))
            yield from ((panel, found[number]) for number in sorted(found))

    def heat_map(self, wish: FigureWish) -> Any:
        """The first kept explanation with layers, layer by layer."""
        for _, found in self._kept(wish):
            for attribution in found.values():
                if attribution.layers is not None:
                    return figures.heat_map(
                        attribution, rollout=True
                    )  # AttCAT's figure 5 has the row
        return None

    def differences(self, wish: FigureWish) -> Any:
        """A reference explanation less each of the others."""
        name = wish.said("reference")
        for panel, found in self._kept(wish):
            if name in found and len(found) > 1:
                others = {label: one for label, one in found.items() if label != name}
                return figures.difference_map((name, found[name]), others, title=panel.title)
        return None

    def texts(self, wish: FigureWish) -> Any:
        """The kept texts, coloured by each row; with a reference, by it and by it less each other."""
        name = wish.said("reference")
        shown: list[Attribution] = []
        for _, found in self._kept(wish):
            own = {label: _renamed(one, label) for label, one in found.items()}
            if name in own:
                base = own.pop(name)
                shown.append(base)
                shown += [
                    _renamed(difference(base, one), f"{name} − {label}")
                    for label, one in own.items()
                ]
            else:
                shown += own.values()
        return highlighted(shown) if shown else None

    def clouds(self, wish: FigureWish) -> Any:
        """The words of each class, by method."""
        drawn = []
        for panel, metric, _ in self._panels(wish):
            entry = next(one for one in self.run.suite.metrics if one.label == metric)
            idf = registry.build("metrics", entry.name, entry.options).idf
            for method in filter(wish.takes, panel.rows):
                rows = self.run.rows(model=panel.model, data=panel.data, method=method)
                weights = class_weights(rows, metric, idf)
                for number, (label, own) in enumerate(weights.items()):
                    if any(weight > 0 for weight in own.values()):
                        colour = charts.CLOUD_COLOURS[number % len(charts.CLOUD_COLOURS)]
                        drawn.append(
                            _captioned(charts.cloud(own, colour=colour), f"{method}: {label}")
                        )
        return _beside(drawn, across=2)

    def _frontier(self) -> Any:
        known = [cost for cost in self.report.costs if cost.value is not None]
        if len(known) < 2:
            return None
        kinds: dict[str, Callable[[Any], float]] = {
            "milliseconds of explaining a text": lambda cost: 1000 * cost.seconds,
            "passes (forward + backward) a text": lambda cost: cost.forwards + cost.backwards,
        }
        panels = {
            title: {one.method: charts.Place(cost(one), one.value or 0.0) for one in known}
            for title, cost in kinds.items()
        }
        faithful = self.report.faithful
        return charts.frontier(panels, faithful, lower=self.report.better.get(faithful) == "lower")


def _renamed(attribution: Attribution, label: str) -> Attribution:
    return replace(attribution, method=label, options={})


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


DRAWERS: dict[str, Callable[[Artist, FigureWish], Any]] = {
    "bars": Artist.bars,
    "curves": Artist.lines,
    "bands": Artist.bands,
    "relations": Artist.relations,
    "head_maps": Artist.head_maps,
    "heat_map": Artist.heat_map,
    "differences": Artist.differences,
    "texts": Artist.texts,
    "clouds": Artist.clouds,
}
