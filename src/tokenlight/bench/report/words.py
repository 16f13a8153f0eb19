"""The report in plain words: what was run, what holds, what does not, what can be compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenlight import registry
from tokenlight.bench.entries import MetricEntry
from tokenlight.bench.report.claims import Claims
from tokenlight.bench.report.comparison import NOTHING, SuiteReport
from tokenlight.bench.report.values import Panel, Verdict
from tokenlight.metrics._ranking import removal_orders

MOST = 6  # names in a sentence
FEW = 100  # texts below which a mean is not worth a verdict
HOLDS = {
    "holds": "holds",
    "weakly": "holds, but within chance",
    "ties": "a tie",
    "undecided": "undecided: behind, but within chance",
    "fails": "does not hold",
    "untestable": "cannot be tested here",
}


def what_was_run(report: SuiteReport) -> list[str]:
    """One to four sentences."""
    ran = report.ran
    rows = {method for panel in ran for method in panel.rows}
    said = [
        f"{_count(len(rows), 'method')} on {len(ran)} of {_count(len(report.panels), 'panel')} "
        f"(a model on a data set)"
        + (f": {_names([panel.title for panel in ran])}." if ran else ".")
    ]
    if ran:
        texts = [panel.texts for panel in ran]
        few, many = min(texts), max(texts)
        span = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        limit = report.run.plan.limit
        limited = f" (limit {limit:,} a data set)" if limit else ""
        device = report.run.manifest.get("device") or "unknown"
        said.append(f"Texts measured a panel: {span}{limited}. Device: {device}.")
        if many < FEW:
            said.append("So few texts show that everything runs, not which method is better.")
    done, parts = report.run.progress()
    if done < parts:
        said.append(
            f"The run is not finished: {done:,} of {parts:,} parts. The numbers are "
            "those of the finished parts; run the same command again to go on."
        )
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
    """Rows that panels with numbers lack, with the reason in full, or that are means over fewer texts;
    and whether the order of the methods depends on what stands in a removed token's place."""
    lacking: dict[str, list[str]] = {}
    fewer, orders = [], []
    metrics = report.suite.metrics
    built = {one.label: registry.build("metrics", one.name, one.options) for one in metrics}
    for panel in report.ran:
        own = {label: metric for label, metric in built.items() if label in panel.metrics}
        means: dict[str, dict[str, float]] = {label: {} for label in own}
        for method, row in panel.rows.items():
            reasons = {score.reason for score in row.values()}
            if len(reasons) == 1 and (reason := reasons.pop()).startswith("not run"):
                lacking.setdefault(reason, []).append(f"{method} on {panel.title}")
            known = {label: score.ours for label, score in row.items() if score.ours is not None}
            most = max((number.count for number in known.values()), default=0)
            if 0 < most < panel.texts:
                fewer.append(f"{method} on {panel.title} {most:,}")
            for label in own.keys() & known.keys():
                means[label][method] = known[label].mean
        orders += [f"{panel.title}: {said}" for _, said in removal_orders(own, means)]
    said = [f"{_names(rows)}: {reason}." for reason, rows in lacking.items()]
    said += [f"Fewer texts than their panel: {_names(fewer)}."] if fewer else []
    return said + orders


def why_not(panel: Panel) -> str:
    """Why a panel has no number of ours."""
    if panel.reason:
        return f"not run: {panel.reason}"
    reasons = {entry.reason for row in panel.rows.values() for entry in row.values()}
    if reasons != {NOTHING}:
        return "not finished"
    return f"{NOTHING}: {panel.skipped_since}" if panel.skipped_since else NOTHING


def claims(report: SuiteReport) -> list[tuple[str, str, str]]:
    """For each claim of the suite: the claim, a verdict in a word or two, and the detail."""
    return [
        (claim, _verdict(verdicts), _detail(verdicts))
        for claim, verdicts in Claims(report).verdicts().items()
        if verdicts
    ]


def _verdict(verdicts: Sequence[Verdict]) -> str:
    known = Counter(one.verdict for one in verdicts)
    asked = sum(known.values()) - known["not run"] - known["untestable"]
    if known["untestable"] and not asked:
        return HOLDS["untestable"]
    good, bad = known["holds"] + known["weakly"], known["fails"]
    whole = {
        "not run": not asked,
        "holds": known["holds"] == asked,
        "a tie": known["ties"] == asked,
        "does not hold": bad == asked,
        "holds weakly": good == asked,
        "undecided": not good and not bad,
    }
    words = next((word for word, so in whole.items() if so), f"holds on {good} of {asked}")
    if good + bad not in (0, asked):
        words += f", undecided on {asked - good - bad}"
    return words


def _detail(verdicts: Sequence[Verdict]) -> str:
    told = []
    for verdict, words in HOLDS.items():
        alike = (one for one in verdicts if one.verdict == verdict)
        told += [f"{one.panel}: {words} ({one.words})".removeprefix(": ") for one in alike]
    missing = [one.panel for one in verdicts if one.verdict == "not run"]
    if missing:
        told.append(f"not run: {_names(missing)}")
    return "; ".join(told)


def order(report: SuiteReport) -> str:
    """One sentence on how far our order of methods is the printed one; none where none is printed."""
    found = report.rankings
    if not report.suite.published:
        return ""
    if not found:
        return "No order can be compared: it takes three methods with both numbers, not all equal."
    rho = [one.spearman for one in found]
    first = sum(one.place == 1 for one in found)
    return (
        f"The order of the methods against the printed one, {_count(len(found), 'column')}: mean rank "
        f"correlation (Spearman) {fmean(rho):+.2f}, from {min(rho):+.2f} to {max(rho):+.2f}; the "
        f"paper's best method is first here in {first} of {len(found)}."
    )


def comparable(report: SuiteReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows: panel, model, data, texts and accuracy, beside the paper's where there is one."""
    found: list[tuple[str, ...]] = []
    with_data = report.of_paper or any(one.note for one in report.suite.data)
    for panel in report.ran:
        data = report.suite.data_set(panel.data)
        planned = f" of {panel.planned:,} planned" if panel.texts < panel.planned else ""
        if planned and panel.skipped_since:
            planned += f" (of the others: {panel.skipped_since})"
        wanted = f"; the suite takes {data.size:,}" if data.size else "; the suite takes all"
        texts = f"{panel.texts:,}{planned}{wanted}"
        note = (data.note or ("the same" if report.of_paper else "–"),) if with_data else ()
        printed = report.suite.report.get("accuracy", {}).get(panel.data)
        accuracy = "–" if panel.accuracy is None else f"{panel.accuracy:.1f} %"
        accuracy += "" if printed is None else f" (paper {float(printed):.2f} %)"
        found.append((panel.title, _checkpoint(report, panel), *note, texts, accuracy))
    heads = ("panel", "model", *(("data",) if with_data else ()), "texts", "accuracy")
    return heads, found


def _checkpoint(report: SuiteReport, panel: Panel) -> str:
    """What was explained, and what it stands for."""
    entry = report.suite.model(panel.model, panel.data)
    theirs, ours = entry.hub or "not public", _plain_path(panel.checkpoint)
    said = ours
    if report.of_paper and ours == theirs:
        said = f"the paper's checkpoint, {ours}"
    elif report.of_paper:
        said = f"{ours} in place of {theirs}: only the order of the methods can be compared"
    elif entry.hub and panel.checkpoint == entry.twin != entry.hub:
        said = f"{ours} in place of {_plain_path(theirs)}"
    return f"{said} ({entry.note})" if entry.note else said


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
    shown = ", ".join(names[:MOST])
    return f"{shown} and {len(names) - MOST} more" if len(names) > MOST else shown


def _options(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _plain_path(checkpoint: str) -> str:
    """A hub id or embedded model as it is; of a folder its name alone, which means more elsewhere."""
    place = Path(checkpoint)
    return f"{place.name} (a local model)" if place.is_absolute() else checkpoint
