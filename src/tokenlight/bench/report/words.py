"""The report in plain words: what was run, what holds, what does not, what can be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenlight.bench.entries import MetricEntry
from tokenlight.bench.report.comparison import NOTHING, SuiteReport
from tokenlight.bench.report.values import Panel
from tokenlight.metrics._ranking import removal_orders

MOST = 6  # names in a sentence
FEW = 100  # texts below which a mean is not worth a verdict


def what_was_run(report: SuiteReport) -> list[str]:
    """What a reader must know before the numbers, a sentence each."""
    ran, (done, parts) = report.ran, report.run.progress()
    rows = {method for panel in ran for method in panel.rows}
    titles = f": {_names([panel.title for panel in ran])}" if ran else ""
    panels = f"{len(ran)} of {_count(len(report.panels), 'panel')} (a model on a data set)"
    said = [f"{_count(len(rows), 'method')} on {panels}{titles}."]
    if ran:
        texts = sorted({panel.texts for panel in ran})
        span = " to ".join(f"{one:,}" for one in dict.fromkeys((texts[0], texts[-1])))
        limit = report.run.plan.limit
        limited = f" (limit {limit:,} a data set)" if limit else ""
        device = report.run.manifest.get("device") or "unknown"
        said.append(f"Texts measured a panel: {span}{limited}. Device: {device}.")
        if texts[-1] < FEW:
            said.append("So few texts show that everything runs, not which method is better.")
    if done < parts:
        again = "The numbers are those of the finished parts; run the same command again to go on."
        said.append(f"The run is not finished: {done:,} of {parts:,} parts. {again}")
    missing: dict[str, list[str]] = {}
    for panel in report.panels:
        if not panel.ran:
            missing.setdefault(why_not(panel), []).append(panel.title)
    said += [f"{_names(t)}: {why} ({_count(len(t), 'panel')})." for why, t in missing.items()]
    said += _doubts(report)
    if failures := report.tables.failures:
        # Its first sentence: what libraries say of a device goes on for a page.
        first = failures[0]["error"].partition(". ")[0].splitlines()[0].rstrip(".")
        failed = _count(len(failures), "explanation")
        said.append(f"{failed} failed and were left out; the first: {first}.")
    return said


def _doubts(report: SuiteReport) -> list[str]:
    """Rows that panels lack, and whether the order depends on what replaces a removed token."""
    lacking: dict[str, list[str]] = {}
    orders = []
    built = {one.label: one.metric for one in report.suite.metrics}
    for panel in report.ran:
        own = {label: metric for label, metric in built.items() if label in panel.metrics}
        means: dict[str, dict[str, float]] = {label: {} for label in own}
        for method, row in panel.rows.items():
            reasons = {score.reason for score in row.values()}
            if len(reasons) == 1 and (reason := reasons.pop()).startswith("not run"):
                lacking.setdefault(reason, []).append(f"{method} on {panel.title}")
            for label in own:
                if (mean := row[label].mean) is not None:
                    means[label][method] = mean
        orders += [f"{panel.title}: {said}" for _, said in removal_orders(own, means)]
    return [f"{_names(rows)}: {reason}." for reason, rows in lacking.items()] + orders


def why_not(panel: Panel) -> str:
    """Why a panel has no number of ours."""
    if panel.reason:
        return f"not run: {panel.reason}"
    if {entry.reason for row in panel.rows.values() for entry in row.values()} != {NOTHING}:
        return "not finished"
    return f"{NOTHING}: {panel.skipped_since}" if panel.skipped_since else NOTHING


def order(report: SuiteReport) -> str:
    """One sentence on how far our order of methods is the printed one; none where none is printed."""
    rho = [one["spearman"] for one in report.rankings]
    if not rho:
        return "No order can be compared." if report.suite.published else ""
    first = sum(one["place"] == 1 for one in report.rankings)
    return (
        f"The order of the methods against the printed one, {_count(len(rho), 'column')}: mean rank "
        f"correlation (Spearman) {fmean(rho):+.2f}, from {min(rho):+.2f} to {max(rho):+.2f}; the paper's "
        f"best method is first here in {first} of them."
    )


def comparable(report: SuiteReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows: panel, model, data, texts and accuracy, beside the paper's where there is one."""
    found: list[tuple[str, ...]] = []
    for panel in report.ran:
        data = report.suite.data_set(panel.data)
        texts = f"{panel.texts:,}"
        if panel.texts < panel.planned:
            why = f" (of the others: {panel.skipped_since})" if panel.skipped_since else ""
            texts += f" of {panel.planned:,} planned{why}"
        texts += f"; the suite takes {f'{data.size:,}' if data.size else 'all'}"
        note = data.note or ("the same" if report.of_paper else "–")
        printed = report.suite.report.accuracy.get(panel.data)
        accuracy = "–" if panel.accuracy is None else f"{panel.accuracy:.1f} %"
        accuracy += "" if printed is None else f" (paper {printed:.2f} %)"
        # What was explained, and what it stands for.
        entry = report.suite.model(panel.model, panel.data)
        theirs, said = (_plain_path(one) or "not public" for one in (entry.hub, panel.checkpoint))
        if said != theirs:
            only = ": only the order of the methods can be compared" if report.of_paper else ""
            said += f" in place of {theirs}{only}"
        said += f" ({entry.note})" if entry.note else ""
        found.append((panel.title, said, note, texts, accuracy))
    return ("panel", "model", "data", "texts", "accuracy"), found


def protocol(report: SuiteReport) -> list[str]:
    """How texts were explained and measured, then the suite's own notes."""
    explained = f"Explained with {_options(asdict(report.suite.protocol))}."
    measured = f"Measured: {'; '.join(map(_measured, report.suite.metrics))}."
    return [explained, measured, *report.suite.notes]


def _measured(metric: MetricEntry) -> str:
    """A metric by its label, with what the label does not say."""
    if metric.label.startswith(f"{metric.name}:"):
        return metric.label  # written with its options
    said = metric.name if metric.label == metric.name else f"{metric.label} is {metric.name}"
    return f"{said} ({_options(metric.options)})" if metric.options else said


def renamed(report: SuiteReport) -> list[tuple[str, str]]:
    """Rows whose name is not the method's: the row and what it runs."""
    shown = {method for panel in report.panels for method in panel.rows}
    # Another model has other layers: what stands in for the paper's has options of its own.
    stands_in = all(panel.checkpoint.startswith("tokenlight/") for panel in report.ran)
    found = []
    for label, entry in report.suite.rows.items():
        chosen = entry.options | (entry.twin if stands_in else {})
        method = f"{entry.name}({_options(chosen)})" if chosen else entry.name
        # A bare name, or one written with its options, says itself what it runs.
        if label in shown and label != method and not label.startswith(f"{entry.name}:"):
            found.append((label, method))
    return found


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _options(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _plain_path(checkpoint: str) -> str:
    """A hub id or embedded model as it is; of a folder its name alone, which means more elsewhere."""
    place = Path(checkpoint)
    return f"{place.name} (a local model)" if place.is_absolute() else checkpoint
