"""Evaluation: how faithful explanations are, per text and in the mean, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tokenlight import registry
from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, MissingExtra, shown
from tokenlight.evaluation.corpus import Frequencies
from tokenlight.evaluation.coverage import Omission, cut_in_words, cut_texts, omissions, together
from tokenlight.evaluation.measure import Failure, Record, by_text, measure, short_names
from tokenlight.evaluation.preflight import read_labels, read_spans
from tokenlight.files.write import json_text, write_parquet, write_text
from tokenlight.metrics._interval import Interval, mean_interval, plain
from tokenlight.metrics._metric import ARROWS, Measured, Metric, MetricSummary
from tokenlight.metrics._ranking import Agreement, removal_orders

if TYPE_CHECKING:
    from pandas import DataFrame

    from tokenlight.explainer import Explainer

FEW = 20  # texts below which intervals are rough
MetricLike = str | tuple[str, dict[str, Any]] | Metric


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Records of many explanations and what they say together.

    ``summary[metric]["mean" | "low" | "high"]`` is the mean over texts with its 95 % bootstrap
    interval (with ``count`` texts and ``skipped`` reasons); explanations of one text, for several
    classes or by several methods, are averaged first, since texts are drawn and not classes.
    ``by_method[name]`` is the same for one method alone; ``rows`` has one flat row per explanation;
    ``curves[metric]`` the points of its curve; ``notes`` says in words what the numbers do not cover.
    ``about``: what was evaluated and how, as the report says it.
    """

    records: tuple[Record, ...]
    metrics: Mapping[str, Metric]
    seed: int = 0
    frequencies: Mapping[str, Frequencies] = field(default_factory=dict)
    refusals: tuple[Failure, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order they were given."""
        return tuple(dict.fromkeys(record.method for record in self.records))

    @cached_property
    def by_method(self) -> dict[str, Evaluation]:
        """One Evaluation for each method."""
        found = {}
        for name in self.methods:
            records = tuple(one for one in self.records if one.method == name)
            refusals = tuple(one for one in self.refusals if one.method == name)
            found[name] = replace(self, records=records, refusals=refusals)
        return found

    @cached_property
    def _summaries(self) -> dict[str, MetricSummary]:
        found: dict[str, dict[int, list[Measured]]] = {key: {} for key in self.metrics}
        for record in self.records:
            for key in found.keys() & record.measured.keys():
                found[key].setdefault(record.text, []).append(record.measured[key])
        summaries = {}
        for key, metric in self.metrics.items():
            own, counted = map(metric.joined, found[key].values()), self.frequencies.get(key)
            summaries[key] = metric.summarise([*own], seed=self.seed, frequencies=counted)
        return summaries

    @cached_property
    def summary(self) -> dict[str, dict[str, Any]]:
        """Mean, low, high and count of each metric and of its parts (``rationale.f1``)."""
        found: dict[str, dict[str, Any]] = {}
        for key, summary in self._summaries.items():
            metric = self.metrics[key]
            own = {"skipped": self.skipped.get(key, {}), "better": metric.direction}
            found[key] = {**asdict(summary.interval), **own}
            for part, interval in summary.parts.items():
                way = "neither" if part in metric.asides else metric.direction
                found[f"{key}.{part}"] = {**asdict(interval), "better": way}
        return found

    @cached_property
    def differences(self) -> dict[str, dict[str, Interval]]:
        """For each metric, how far every other method lies from the first, text by text: its value − that
        of the first, as a mean over the texts that both were measured on."""
        values: dict[tuple[str, str], dict[tuple[int, str], float]] = {}
        for record in self.records:
            for key, one in record.measured.items():
                if not isnan(one.value):
                    own = values.setdefault((key, record.method), {})
                    own[record.text, record.target] = one.value
        found: dict[str, dict[str, Interval]] = {key: {} for key in self.metrics}
        for key, name in product(found, self.methods[1:]):
            first = values.get((key, self.methods[0]), {})
            own = values.get((key, name), {})
            if gaps := [value - first[at] for at, value in own.items() if at in first]:
                found[key][name] = mean_interval(gaps, seed=self.seed)
        return found

    @cached_property
    def skipped(self) -> dict[str, dict[str, int]]:
        """For each metric: reason to the number of explanations left out for it."""
        found: dict[str, Counter[str]] = {}
        for key, reason in (pair for record in self.records for pair in record.skipped.items()):
            found.setdefault(key, Counter())[reason] += 1
        return {key: dict(counts) for key, counts in found.items()}

    @cached_property
    def left_out(self) -> list[Omission]:
        """Texts not explained or not measured; what many methods or texts have in common stands once."""
        return together(omissions(self.records, self.refusals))

    @cached_property
    def cautions(self) -> tuple[str, ...]:
        """What to know before the numbers are read, a sentence each: texts cut, and orders of methods
        that depend on what stands in a removed token's place."""
        means = {
            key: {name: part.summary[key]["mean"] for name, part in self.by_method.items()}
            for key in self.metrics
        }
        unsteady = [said for steady, said in removal_orders(self.metrics, means) if not steady]
        cut = cut_in_words(cut_texts(self.records, self.refusals))
        return tuple(filter(None, (cut, *unsteady)))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """The cautions, and what the numbers do not cover: texts not explained, not measured."""
        return (*self.cautions, *map(str, self.left_out))

    @cached_property
    def caution(self) -> str:
        """That the texts are few, where they are; else empty."""
        texts = len({record.text for record in self.records})
        few = f"{texts} texts are few: the intervals are rough; give {FEW} or more to compare methods."
        return few if 0 < texts < FEW else ""

    @cached_property
    def curves(self) -> dict[str, tuple[tuple[float, ...], tuple[Interval, ...]]]:
        """For each metric with a curve: where its points stand, and the mean at each."""
        found = {}
        for key, summary in self._summaries.items():
            if summary.curve:
                points = self.metrics[key].points or tuple(map(float, range(len(summary.curve))))
                found[key] = (points, summary.curve)
        return found

    @cached_property
    def agreement(self) -> Agreement:
        """Rank correlation between every two methods over the same texts."""
        if len(self.methods) < 2:
            raise BadInput("agreement compares methods; give the explanations of two or more.")
        pairs: dict[tuple[str, str], dict[int, list[float]]] = {}
        for record in self.records:
            for other, value in record.agrees.items():
                texts = pairs.setdefault((record.method, other), {})
                texts.setdefault(record.text, []).append(value)
        means = {pair: [*map(fmean, by.values())] for pair, by in pairs.items()}
        found = {pair: mean_interval(own, seed=self.seed) for pair, own in means.items()}
        return Agreement(self.methods, found)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One flat row an explanation: its numbers, their parts and curves, or why there are none."""
        names, found = ("text", "method", "target", "predicted", "label", "tokens"), []
        for record in self.records:
            row: dict[str, Any] = {name: getattr(record, name) for name in names}
            for key in self.metrics:
                one = record.measured.get(key)
                row[key] = None if one is None or isnan(one.value) else one.value
                if one is not None:
                    row |= {f"{key}.{part}": number for part, number in one.parts.items()}
                    row |= {f"{key}.curve": list(one.curve)} if one.curve else {}
                row[f"{key}.skipped"] = record.skipped.get(key)
            found.append(row)
        return found

    def to_pandas(self) -> DataFrame:
        """The rows as a data frame."""
        pandas: Any = MissingExtra.importing("pandas", "bench", "to_pandas()")
        frame: DataFrame = pandas.DataFrame.from_records(self.rows)
        return frame

    def table(self) -> str:
        """Methods × metrics as text: mean [low, high]; the arrow says which way is better."""
        better = {k: v["better"] for own in self.by_method.values() for k, v in own.summary.items()}
        lines = [["method", "n", *(f"{key} {ARROWS[way]}".rstrip() for key, way in better.items())]]
        for name, part in self.by_method.items():
            texts = str(len({record.text for record in part.records}))
            lines.append([name, texts, *(_cell(part.summary.get(key)) for key in better)])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def __repr__(self) -> str:
        return f"<Evaluation of {len(self.records)} explanations>\n{self.table()}"

    def _repr_html_(self) -> str:
        from tokenlight.evaluation.report import fragment

        return fragment(self)

    def plot(self) -> Any:
        """The curves as a figure of matplotlib."""
        from tokenlight.evaluation.report import figure

        return figure(self)

    def to_dict(self) -> dict[str, Any]:
        """Summary, curves, agreement and differences as plain JSON values; rows are saved beside it."""
        parts = self.by_method
        pairs = self.agreement.pairs if len(parts) > 1 else {}
        values = {
            "methods": {name: part.summary for name, part in parts.items()},
            "curves": {
                name: {key: {"points": at, "means": own} for key, (at, own) in part.curves.items()}
                for name, part in parts.items()
            },
            "agreement": {f"{one} · {other}": found for (one, other), found in pairs.items()},
            "differences": {metric: gaps for metric, gaps in self.differences.items() if gaps},
            "metrics": {key: metric.label for key, metric in self.metrics.items()},
            "seed": self.seed,
            "cut": cut_texts(self.records, self.refusals),
            "caution": self.caution,
            "left_out": [one.to_dict() for one in omissions(self.records, self.refusals)],
            "about": self.about,
        }
        return dict(plain(values))

    def save(self, folder: str | Path) -> Path:
        """Write rows.parquet, summary.json, report.html and, where a metric has a curve, curves.png
        into ``folder``."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        # First: it needs no library beside it.
        write_text(place / "summary.json", json_text(self.to_dict(), indent=1))
        write_parquet(place / "rows.parquet", self.rows)
        from tokenlight.evaluation.report import save

        save(self, place)
        return place


def evaluate(  # noqa: PLR0913 - the keywords users set, each by name
    explainer: Explainer,
    attributions: Attribution | Iterable[Attribution],
    metrics: MetricLike | Sequence[MetricLike] = ("aopc", "lodds"),
    *,
    labels: Sequence[str | int | None] | None = None,
    spans: Sequence[Any] | None = None,
    seed: int = 0,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Measure explanations; see :meth:`tokenlight.Explainer.evaluate`."""
    MissingExtra.check(["scipy"], "bench", "an evaluation, whose means have intervals,")
    given: list[Any] = [attributions]
    if isinstance(attributions, Iterable) and not isinstance(attributions, str):
        given = list(attributions)
    if not given or not all(isinstance(one, Attribution) for one in given):
        raise BadInput(f"{shown(attributions)} cannot be evaluated; give what explain() returned.")
    chosen, numbers = built(metrics), by_text(given)
    texts = numbers[-1] + 1
    for name, known in (("labels", labels), ("spans", spans)):
        if known is not None and (isinstance(known, str) or not hasattr(known, "__len__")):
            raise BadInput(f"{name}={shown(known)} is not a list; give one entry per text.")
        if known is not None and len(known) != texts:
            raise BadInput(
                f"{len(known)} {name} were given for {texts} texts; give one a text, with the "
                "explanations in the order explain() gives them: text by text."
            )
    truths = None if labels is None else read_labels(labels, explainer.live.head)
    rows = {number: a.row for number, a in reversed(list(zip(numbers, given, strict=True)))}
    marks = None if spans is None else read_spans(spans, [rows[i] for i in sorted(rows)])
    how: dict[str, Any] = {"batch_tokens": batch_tokens, "progress": progress}
    found = measure(explainer, given, chosen, numbers, labels=truths, spans=marks, **how)
    records, _ = short_names(found)
    return Evaluation(records, chosen, seed, frequencies_for(explainer.tokenizer, chosen))


def built(metrics: MetricLike | Sequence[MetricLike]) -> dict[str, Metric]:
    """Metrics by name, from names, (name, options) pairs, or metrics; with their options where one name
    is there twice."""
    given: Any = metrics
    single = isinstance(given, str | Metric) or not isinstance(given, Iterable)
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
    listed = [given] if single or pair else [*given]
    if not listed:
        raise BadInput(f"no metric was given; known: {', '.join(registry.names('metrics'))}.")
    for i, one in enumerate(listed):
        if not isinstance(one, Metric):
            listed[i] = registry.build("metrics", *registry.asked("metrics", one))
    times = Counter(metric.name for metric in listed)
    keys = [metric.label if times[metric.name] > 1 else metric.name for metric in listed]
    if twice := [key for key, count in Counter(keys).items() if count > 1]:
        raise BadInput(f"the metric {twice[0]} is given twice.")
    return dict(zip(keys, listed, strict=True))


def frequencies_for(tokenizer: Any, metrics: Mapping[str, Metric]) -> dict[str, Frequencies]:
    """Document frequencies from the file a metric names as its ``corpus``: texts, or what
    ``tokenlight idf`` counted in them (.json); by the tokens' ids."""
    found = {}
    for key, metric in metrics.items():
        if (corpus := getattr(metric, "corpus", None)) is not None:
            known = Frequencies.read(corpus, tokenizer)
            ids = tokenizer.convert_tokens_to_ids(list(known.counts))
            counts = dict(zip(ids, known.counts.values(), strict=True))
            found[key] = Frequencies(known.documents, counts)
    return found


def _cell(numbers: Mapping[str, Any] | None) -> str:
    if numbers is None or not numbers["count"] or isnan(numbers["mean"]):
        return "–"
    # z: a number that rounds to zero has no sign.
    return f"{numbers['mean']:z.3f} [{numbers['low']:z.3f}, {numbers['high']:z.3f}]"
