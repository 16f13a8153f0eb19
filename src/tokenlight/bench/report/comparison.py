"""A run's tables beside the published ones: what a report is made of, and how far our order of methods is
the printed one."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from tokenlight import registry
from tokenlight.bench.plan import Cell
from tokenlight.bench.report import values
from tokenlight.bench.report.claims import Claims
from tokenlight.bench.store import RunFolder
from tokenlight.bench.suite import Suite
from tokenlight.bench.tables import Tables

NOTHING = "no text could be measured"  # each was left out, say as too short
FEWEST = 3  # methods below which an order says nothing
Rows = Sequence[Mapping[str, Any]]


def build(run: RunFolder, tables: Tables, *, timings: bool = True) -> values.SuiteReport:
    """The report of a run, finished or not, and its merged tables.

    ``timings``: with seconds and passes, the only numbers that differ between two equal runs.
    """
    suite = run.suite
    better = directions(suite)
    panels = tuple(_panels(run, tables.scores))
    done, parts = run.progress()
    # Costs stand against AOPC where there is one, else against the first metric.
    labels = (one.label for one in suite.metrics if one.name == "aopc")
    faithful = next(labels, suite.metrics[0].label)
    return values.SuiteReport(
        suite=suite,
        panels=panels,
        better=better,
        claims=Claims(run, panels, better, tables).verdicts(),
        rankings=tuple(ranked(panels, better)),
        costs=tuple(_costs(run, panels, faithful)) if timings else (),
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


def _panels(run: RunFolder, scores: Rows) -> Iterator[values.Panel]:
    suite, row_of = run.suite, run.suite.row_of
    pairs: dict[tuple[str, str], list[Cell]] = {}
    for cell in run.cells:
        pairs.setdefault((cell.model, cell.data), []).append(cell)
    several = len({model for model, _ in pairs}) > 1
    for (model, data), cells in pairs.items():
        own = [row for row in scores if (row["model"], row["data"]) == (model, data)]
        labels = {row["metric"] for row in own}
        # Further numbers of a metric (rationale.f1), as far as they were measured.
        parts = sorted(
            one for one in labels if any(one.startswith(f"{other}.") for other in labels)
        )
        metrics = (*(one.label for one in run.plan.metrics_for(data)), *parts)
        members: dict[str, list[Cell]] = {}
        for cell in cells:
            members.setdefault(row_of.get(cell.method, cell.method), []).append(cell)
        title = suite.data_set(data).title or data
        running = [cell for cell in cells if cell.runs]
        reasons = dict.fromkeys(row.get("skipped_since") for row in own)
        yield values.Panel(
            model=model,
            data=data,
            title=f"{model} on {title}" if several else title,
            metrics=metrics,
            rows={
                name: {metric: _score(suite, name, metric, listed, own) for metric in metrics}
                for name, listed in members.items()
            },
            checkpoint=running[0].checkpoint if running else "",
            planned=max((cell.examples for cell in running), default=0),
            skipped_since="; ".join(reason.rstrip(".") for reason in reasons if reason),
            reason="" if running else "; ".join(sorted({cell.reason for cell in cells})),
            accuracy=_accuracy(run, running[0]) if running else None,
        )


def _accuracy(run: RunFolder, cell: Cell) -> float | None:
    """Share of texts whose predicted class is their label, in per cent."""
    rows = run.rows(model=cell.model, data=cell.data, method=cell.method)
    right = [row["predicted"] == row["label"] for row in rows if row["label"] is not None]
    return 100 * fmean(right) if right else None


def _score(
    suite: Suite, name: str, metric: str, members: Sequence[Cell], scores: Rows
) -> values.Score:
    labels = {cell.method for cell in members}
    own = [row for row in scores if row["metric"] == metric and row["method"] in labels]
    found = [row for row in own if row["mean"] is not None]
    reason = ""
    if not found:
        why = next((cell.reason for cell in members if cell.reason), "")
        reason = f"not run: {why}" if why else NOTHING if own else "not finished"
    pair = (members[0].model, members[0].data)
    return values.Score(_number(found), *published(suite, pair, name, metric), reason)


def _number(rows: Rows) -> values.Number | None:
    if not rows:
        return None
    left_out = sum(int(row["skipped"]) + int(row["failed"]) for row in rows)
    if len(rows) == 1:
        one = rows[0]
        return values.Number(one["mean"], one["low"], one["high"], one["count"], left_out=left_out)
    means = [row["mean"] for row in rows]
    count = max(row["count"] for row in rows)
    return values.Number(
        fmean(means), count=count, sd=stdev(means), draws=len(rows), left_out=left_out
    )


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


def _costs(
    run: RunFolder, panels: Sequence[values.Panel], metric: str
) -> Iterator[values.MethodCost]:
    """One line a method, in the suite's order: means over all texts it explained.

    ``metric``: whose mean over the panels stands beside the cost. Only the time of explaining is
    counted: measuring costs every method the same.
    """
    row_of = run.suite.row_of
    spent: dict[str, list[Mapping[str, Any]]] = {}
    for part in run.manifests():
        spent.setdefault(row_of.get(part["method"], part["method"]), []).append(part)
    for method, parts in spent.items():
        texts = sum(int(part["examples"]) for part in parts)
        numbers = [panel.score(method, metric).ours for panel in panels]
        means = [number.mean for number in numbers if number is not None]
        seconds, forwards, backwards = (
            sum(float(part.get(f"explain_{key}") or 0.0) for part in parts) / max(1, texts)
            for key in ("seconds", "forwards", "backwards")
        )
        value = fmean(means) if means else None
        yield values.MethodCost(method, seconds, forwards, backwards, value, texts)


def ranked(panels: Sequence[values.Panel], better: Mapping[str, str]) -> Iterator[values.Ranking]:
    """Rank correlation with the printed order, wherever three methods or more have both numbers."""
    from scipy.stats import kendalltau, spearmanr

    for panel in panels:
        for metric in panel.metrics:
            both = {
                method: (entry.ours.mean, entry.published)
                for method, row in panel.rows.items()
                if (entry := row[metric]).ours is not None and entry.published is not None
            }
            if len(both) < FEWEST:
                continue
            ours = [mine for mine, _ in both.values()]
            printed = [number for _, number in both.values()]
            if len(set(ours)) < 2 or len(set(printed)) < 2:
                continue
            kendall = float(kendalltau(ours, printed).statistic)
            spearman = float(spearmanr(ours, printed).statistic)
            sign = -1.0 if better.get(metric) == "lower" else 1.0
            best = max(both, key=lambda name: sign * both[name][1])
            place = 1 + sum(sign * mine > sign * both[best][0] for mine in ours)
            yield values.Ranking(panel.title, metric, len(both), kendall, spearman, best, place)
