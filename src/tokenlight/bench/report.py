"""A report on a run: our numbers beside the published ones, and what they say, as plain values.

The writers (Markdown, LaTeX, CSV, HTML) read a :class:`Report` and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tokenlight import registry
from tokenlight.bench.entries import DataSet, MethodEntry, Model, Suite
from tokenlight.bench.plan import Cell

DEEPEST = 200  # layers that `each: layers` is filled in for when labels are looked up
NOTHING = "no text could be measured"  # each was left out, say as too short


@dataclass(frozen=True)
class Number:
    """A mean over ``count`` texts with its 95 % interval, or over ``draws`` runs with their ``sd``."""

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 0
    sd: float | None = None
    draws: int = 1
    left_out: int = 0  # texts that the metric or the model refused


@dataclass(frozen=True)
class Entry:
    """One method by one metric: ours, what the paper prints, and why there is nothing of ours."""

    ours: Number | None = None
    published: float | None = None
    published_sd: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the published number."""
        if self.ours is None or self.published is None:
            return None
        return self.ours.mean - self.published


@dataclass(frozen=True)
class Panel:
    """One model on one data set: methods by metrics."""

    model: str
    data: str
    title: str
    metrics: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Entry]]
    checkpoint: str = ""
    planned: int = 0
    skipped_since: str = ""  # why some texts were not measured
    reason: str = ""  # why nothing of it was run
    accuracy: float | None = None  # of the explained passes, in per cent, where labels are known

    @property
    def ran(self) -> bool:
        """Whether it has any number of ours."""
        return any(entry.ours for row in self.rows.values() for entry in row.values())


@dataclass(frozen=True)
class Outcome:
    """What became of a claim on one panel: holds, weakly (no more than chance gives), ties, fails,
    or not run."""

    panel: str
    verdict: str
    words: str


@dataclass(frozen=True)
class Ranking:
    """How the order of the methods agrees with the published one, on one panel by one metric."""

    panel: str
    metric: str
    methods: int
    kendall: float
    spearman: float
    best: str  # the paper's best
    place: int  # its place here


@dataclass(frozen=True)
class Cost:
    """What one method costs a text, and how faithful it is; means over what was run."""

    method: str
    seconds: float
    forwards: float
    backwards: float
    value: float | None
    texts: int


@dataclass(frozen=True)
class Report:
    """All that a report says, figures aside."""

    suite: Suite
    panels: tuple[Panel, ...]
    better: Mapping[str, str]  # metric to which way is better
    claims: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    rankings: tuple[Ranking, ...] = ()
    costs: tuple[Cost, ...] = ()
    faithful: str = ""  # the metric that costs stand against
    done: int = 0
    parts: int = 0
    failures: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    limit: int | None = None

    @property
    def ran(self) -> tuple[Panel, ...]:
        """Panels with numbers."""
        return tuple(panel for panel in self.panels if panel.ran)

    @property
    def of_paper(self) -> bool:
        """Whether there is a paper to compare with: a suite of one's own may have none."""
        return bool(self.suite.paper or self.suite.published)

    def compared(self, metric: str | None = None) -> bool:
        """Whether a panel with numbers has a published one too (of ``metric``)."""
        return any(
            entry.published is not None
            for panel in self.ran
            for row in panel.rows.values()
            for name, entry in row.items()
            if metric in (None, name)
        )


def build(run: Any, tables: Any, *, timings: bool = True) -> Report:
    """The report of a run, finished or not (:class:`tokenlight.bench.store.Run`), and its tables.

    ``timings``: with seconds and passes, the only numbers that differ between two equal runs.
    """
    from tokenlight.bench.report_claims import checked, ranked
    from tokenlight.bench.report_costs import costs

    better = directions(run.suite)
    panels = tuple(_panels(run, tables.scores))
    done, parts = run.progress()
    faithful = _faithful(run.suite)
    return Report(
        suite=run.suite,
        panels=panels,
        better=better,
        claims=checked(run.suite, panels, better, tables.texts),
        rankings=tuple(ranked(panels, better)),
        costs=tuple(costs(run, panels, faithful)) if timings else (),
        faithful=faithful,
        done=done,
        parts=parts,
        failures=tuple(tables.failures),
        versions=run.manifest.get("versions", {}),
        device=str(run.manifest.get("device", "")),
        limit=run.plan.limit,
    )


def directions(suite: Suite) -> dict[str, str]:
    """Metric label to which way is better with its options."""
    return {
        one.label: registry.build("metrics", one.name, one.options).direction
        for one in suite.metrics
    }


def _faithful(suite: Suite) -> str:
    """The metric that costs stand against: AOPC where there is one, else the first."""
    return next((one.label for one in suite.metrics if one.name == "aopc"), suite.metrics[0].label)


def groups(suite: Suite) -> dict[str, str]:
    """Method label to the row it stands in: its group's name, where it is one draw of several."""
    found: dict[str, str] = {}
    for entry in suite.methods:
        for one in entry.expanded(DEEPEST):
            found[one.label] = one.group or one.label
    return found


def _panels(run: Any, scores: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    suite: Suite = run.suite
    row_of = groups(suite)
    known: dict[tuple[str, str], list[Cell]] = {}
    for cell in run.cells:
        known.setdefault((cell.model, cell.data), []).append(cell)
    several = len({model for model, _ in known}) > 1
    for (model, data), cells in known.items():
        metrics = tuple(
            one.label for one in suite.metrics if not one.data or data in one.data
        ) + _parts(scores, model, data)
        of_pair = [row for row in scores if (row["model"], row["data"]) == (model, data)]
        rows: dict[str, dict[str, Entry]] = {}
        for name, members in _rows(cells, row_of).items():
            rows[name] = {
                metric: _entry(suite, (model, data), name, metric, members, of_pair)
                for metric in metrics
            }
        title = data_set(suite, data).title or data
        whole = {cell.reason for cell in cells if not cell.runs}
        yield Panel(
            model=model,
            data=data,
            title=f"{model} on {title}" if several else title,
            metrics=metrics,
            rows=rows,
            checkpoint=next((cell.checkpoint for cell in cells if cell.runs), ""),
            planned=max((cell.examples for cell in cells if cell.runs), default=0),
            skipped_since=_skipped_since(of_pair),
            reason="; ".join(sorted(whole)) if all(not cell.runs for cell in cells) else "",
            accuracy=_accuracy(run, next((cell for cell in cells if cell.runs), None)),
        )


def _skipped_since(scores: Sequence[Mapping[str, Any]]) -> str:
    reasons = dict.fromkeys(row.get("skipped_since") for row in scores)
    return "; ".join(reason.rstrip(".") for reason in reasons if reason)


def _accuracy(run: Any, cell: Cell | None) -> float | None:
    """Share of texts whose predicted class is their label, in per cent."""
    if cell is None:
        return None
    rows = run.rows(model=cell.model, data=cell.data, method=cell.method)
    right = [row["predicted"] == row["label"] for row in rows if row["label"] is not None]
    return 100 * fmean(right) if right else None


def _parts(scores: Sequence[Mapping[str, Any]], model: str, data: str) -> tuple[str, ...]:
    """Further numbers of a metric (``rationale.f1``), as far as they were measured."""
    labels = {row["metric"] for row in scores if (row["model"], row["data"]) == (model, data)}
    return tuple(sorted(label for label in labels if _is_part(label, labels)))


def _is_part(label: str, labels: set[str]) -> bool:
    return any(label.startswith(f"{other}.") for other in labels)


def _rows(cells: Sequence[Cell], row_of: Mapping[str, str]) -> dict[str, list[Cell]]:
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(row_of.get(cell.method, cell.method), []).append(cell)
    return rows


def _entry(
    suite: Suite,
    pair: tuple[str, str],
    name: str,
    metric: str,
    members: Sequence[Cell],
    scores: Sequence[Mapping[str, Any]],
) -> Entry:
    labels = {cell.method for cell in members}
    found = [
        row
        for row in scores
        if row["metric"] == metric and row["method"] in labels and row["mean"] is not None
    ]
    mean, sd = published(suite, pair, name, metric)
    reason = ""
    if not found:
        why = next((cell.reason for cell in members if cell.reason), "")
        reason = f"not run: {why}" if why else _nothing(scores, labels, metric)
    return Entry(_number(found), mean, sd, reason)


def _nothing(scores: Sequence[Mapping[str, Any]], labels: set[str], metric: str) -> str:
    measured = any(row["method"] in labels and row["metric"] == metric for row in scores)
    return NOTHING if measured else "not finished"


def _number(rows: Sequence[Mapping[str, Any]]) -> Number | None:
    if not rows:
        return None
    left_out = sum(int(row["skipped"]) + int(row["failed"]) for row in rows)
    if len(rows) == 1:
        one = rows[0]
        return Number(one["mean"], one["low"], one["high"], one["count"], left_out=left_out)
    means = [row["mean"] for row in rows]
    count = max(row["count"] for row in rows)
    return Number(fmean(means), count=count, sd=stdev(means), draws=len(rows), left_out=left_out)


def published(
    suite: Suite, pair: tuple[str, str], method: str, metric: str
) -> tuple[float | None, float | None]:
    """The printed mean and standard deviation; a second reading of a metric has the first's."""
    model, data = pair
    readings = suite.report.get("readings", {})
    for cell in (f"{model}/{data}", data):
        number = suite.published.get(cell, {}).get(method, {}).get(readings.get(metric, metric))
        if isinstance(number, dict):
            return float(number["mean"]), float(number["sd"]) if "sd" in number else None
        if number is not None:
            return float(number), None
    return None, None


def digits(value: float, *, sign: bool = False) -> str:
    """Three decimals, as the papers print; two for per cents."""
    places = 3 if abs(value) < 10 else 2
    return f"{value:+.{places}f}" if sign else f"{value:.{places}f}"


def data_set(suite: Suite, name: str) -> DataSet:
    """The suite's data set of that name."""
    return next(one for one in suite.data if one.name == name)


def model_entry(suite: Suite, name: str, data: str) -> Model:
    """The suite's model of that name for a data set."""
    return next(
        one for one in suite.models if one.name == name and (not one.data or data in one.data)
    )


def method_entries(suite: Suite) -> dict[str, MethodEntry]:
    """Row name to its (first) entry."""
    found: dict[str, MethodEntry] = {}
    for entry in suite.methods:
        for one in entry.expanded(DEEPEST):
            found.setdefault(one.group or one.label, one)
    return found


def plain_path(checkpoint: str) -> str:
    """A hub id or embedded model as it is; of a folder its name alone, which means more elsewhere."""
    place = Path(checkpoint)
    return f"{place.name} (a local model)" if place.is_absolute() else checkpoint
