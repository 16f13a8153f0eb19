"""The sentences of a report: what was run, how the order of methods compares, and what can be compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tokenlight.bench.report.comparison import NOT_MEASURED, SuiteReport
from tokenlight.bench.report.values import MISSING, Panel
from tokenlight.bench.suite_entries import DataSetEntry, MetricEntry
from tokenlight.evaluation.ranking_stability import check_ranking_stability
from tokenlight.evaluation.replacement_tokens import (
    list_replacement_warnings,
    replacements_from_dict,
)
from tokenlight.perturb.variants import ReplacementIds

MAX_LISTED_NAMES = 6  # names in a sentence
MIN_TEXTS_FOR_VERDICT = 100  # with fewer texts, a mean does not support a verdict


def describe_run(report: SuiteReport) -> list[str]:
    """Return what a reader must know before the numbers, one sentence or two per entry."""
    return [
        *_describe_coverage(report),
        *_describe_missing_panels(report),
        *_describe_missing_rows(report),
        *_describe_ranking_stability(report),
        *_describe_failures(report),
    ]


def _describe_coverage(report: SuiteReport) -> Iterator[str]:
    """Describe how many methods, panels and texts were measured, and whether the run is finished."""
    measured = report.measured_panels
    methods: set[str] = set()
    for panel in measured:
        methods.update(panel.rows)
    coverage = (
        f"{_format_count(len(methods), 'method')} on {len(measured)} of "
        f"{_format_count(len(report.panels), 'panel')} (a model on a data set)"
    )
    if not measured:
        yield f"{coverage}."
    else:
        yield f"{coverage}: {_join_names([panel.title for panel in measured])}."
        yield from _describe_num_texts(report, measured)
    num_done, num_parts = report.run_folder.count_parts()
    if num_done < num_parts:
        yield (
            f"The run is not finished: {num_done:,} of {num_parts:,} parts. The numbers are those of the "
            "finished parts; run the same command again to continue."
        )


def _describe_num_texts(report: SuiteReport, measured: Sequence[Panel]) -> Iterator[str]:
    # One number where all panels have as many texts, else the range.
    counts = sorted({panel.num_texts for panel in measured})
    num_texts = f"{counts[0]:,}"
    if len(counts) > 1:
        num_texts += f" to {counts[-1]:,}"
    limit = report.run_folder.plan.limit
    if limit:
        num_texts += f" (limit: {limit:,} per data set)"
    device = report.run_folder.manifest.get("device") or "unknown"
    yield f"Texts per panel: {num_texts}. Device: {device}."
    if counts[-1] < MIN_TEXTS_FOR_VERDICT:
        yield "So few texts show that everything runs, not which method is better."


def _describe_missing_panels(report: SuiteReport) -> Iterator[str]:
    """Yield one sentence per reason why panels have no numbers of ours."""
    titles_by_reason: dict[str, list[str]] = {}
    for panel in report.panels:
        if not panel.has_scores:
            titles_by_reason.setdefault(describe_missing_panel(panel), []).append(panel.title)
    for reason, titles in titles_by_reason.items():
        yield f"{_join_names(titles)}: {reason} ({_format_count(len(titles), 'panel')})."


def _describe_missing_rows(report: SuiteReport) -> Iterator[str]:
    """Yield one sentence per reason why methods were not run on panels that have other numbers."""
    rows_by_reason: dict[str, list[str]] = {}
    for panel in report.measured_panels:
        for method, row in panel.rows.items():
            reasons = {score.reason for score in row.values()}
            # With several reasons, some metrics have a number.
            if len(reasons) != 1:
                continue
            (reason,) = reasons
            if reason.startswith("not run"):
                rows_by_reason.setdefault(reason, []).append(f"{method} on {panel.title}")
    for reason, rows in rows_by_reason.items():
        yield f"{_join_names(rows)}: {reason}."


def _describe_ranking_stability(report: SuiteReport) -> Iterator[str]:
    """Say for each panel whether the order of methods depends on what replaces a removed token."""
    metrics = {entry.label: entry.metric for entry in report.suite.metrics}
    replacement_ids = _read_replacements(report)
    for panel in report.measured_panels:
        panel_metrics = {}
        means = {}
        for label, metric in metrics.items():
            if label in panel.metrics:
                panel_metrics[label] = metric
                means[label] = _collect_means(panel, label)
        panel_replacement_ids = replacement_ids.get((panel.model, panel.data))
        for caution in list_replacement_warnings(panel_metrics, panel_replacement_ids):
            yield f"{panel.title}: {caution}"
        for _, sentence in check_ranking_stability(panel_metrics, means, panel_replacement_ids):
            yield f"{panel.title}: {sentence}"


def _collect_means(panel: Panel, metric: str) -> dict[str, float]:
    """Return our mean of each method that has one."""
    means = {}
    for method, row in panel.rows.items():
        mean = row[metric].mean
        if mean is not None:
            means[method] = mean
    return means


def _read_replacements(report: SuiteReport) -> dict[tuple[str, str], ReplacementIds]:
    """Read which tokens replaced removed ones, by model and data set."""
    replacement_ids = {}
    for manifest in report.run_folder.read_manifests():
        if manifest.get("stand_ins"):  # manifests of earlier versions do not have them
            key = (manifest["model"], manifest["data"])
            replacement_ids[key] = replacements_from_dict(manifest["stand_ins"])
    return replacement_ids


def _describe_failures(report: SuiteReport) -> Iterator[str]:
    failures = report.tables.failures
    if failures:
        # Only the first sentence: errors of a device can fill a page.
        first_sentence = failures[0]["error"].partition(". ")[0]
        first_line = first_sentence.splitlines()[0].rstrip(".")
        count = _format_count(len(failures), "explanation")
        yield f"{count} failed and were left out; the first: {first_line}."


def describe_missing_panel(panel: Panel) -> str:
    """Return why a panel has no numbers of ours."""
    if panel.reason:
        return f"not run: {panel.reason}"
    reasons = {score.reason for score in panel.iter_scores()}
    if reasons != {NOT_MEASURED}:
        return "not finished"
    if panel.skip_reasons:
        return f"{NOT_MEASURED}: {panel.skip_reasons}"
    return NOT_MEASURED


def describe_order(report: SuiteReport) -> str:
    """Return a sentence on how our order of methods compares with the published one, empty without one."""
    correlations = [ranking.spearman for ranking in report.rankings]
    if not correlations:
        return "No order can be compared." if report.suite.published else ""
    num_first = sum(ranking.rank == 1 for ranking in report.rankings)
    return (
        f"The order of the methods compared with the published one, over "
        f"{_format_count(len(correlations), 'column')}: mean rank correlation (Spearman) "
        f"{fmean(correlations):+.2f}, from {min(correlations):+.2f} to {max(correlations):+.2f}; the paper's "
        f"best method ranks first here in {num_first} of them."
    )


def build_comparison_table(report: SuiteReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Build the table that says what was measured, and what of it can be compared with the paper.

    Returns:
        The header, and one row per panel.
    """
    header = ("panel", "model", "data", "texts", "accuracy")
    rows: list[tuple[str, ...]] = []
    for panel in report.measured_panels:
        data = report.suite.get_data_set(panel.data)
        default_note = "the same" if report.has_paper else MISSING
        note = data.note or default_note
        model = _describe_model(report, panel)
        texts = _describe_texts(panel, data)
        rows.append((panel.title, model, note, texts, _format_accuracy(report, panel)))
    return header, rows


def _describe_texts(panel: Panel, data: DataSetEntry) -> str:
    texts = f"{panel.num_texts:,}"
    if panel.num_texts < panel.num_planned:
        texts += f" of {panel.num_planned:,} planned"
        if panel.skip_reasons:
            texts += f" (of the others: {panel.skip_reasons})"
    suite_size = f"{data.size:,}" if data.size else "all"
    return f"{texts}; the suite uses {suite_size}"


def _format_accuracy(report: SuiteReport, panel: Panel) -> str:
    accuracy = MISSING if panel.accuracy is None else f"{panel.accuracy:.1f} %"
    published = report.suite.report.accuracy.get(panel.data)
    if published is not None:
        accuracy += f" (paper {published:.2f} %)"
    return accuracy


def _describe_model(report: SuiteReport, panel: Panel) -> str:
    """Describe what was explained, and which model of the paper it replaces."""
    # A checkpoint of the paper may not be public, and none is loaded where only a stand-in is at hand.
    entry = report.suite.get_model(panel.model, panel.data)
    original = _shorten_checkpoint(entry.hub) or "not public"
    description = _shorten_checkpoint(panel.checkpoint) or "not public"
    if description != original:
        description += f" in place of {original}"
        if report.has_paper:
            description += ": only the order of the methods can be compared"
    if entry.note:
        description += f" ({entry.note})"
    return description


def describe_protocol(report: SuiteReport) -> list[str]:
    """Return how texts were explained and measured, then the notes of the suite."""
    explained = f"Explained with {_format_options(asdict(report.suite.protocol))}."
    measured = f"Measured: {'; '.join(map(_describe_metric, report.suite.metrics))}."
    return [explained, measured, *report.suite.notes]


def _describe_metric(metric: MetricEntry) -> str:
    """Describe a metric by its label, and by what the label does not say."""
    if metric.label.startswith(f"{metric.name}:"):
        return metric.label  # the label is the specification itself
    description = metric.name
    if metric.label != metric.name:
        description = f"{metric.label} is {metric.name}"
    if metric.options:
        description += f" ({_format_options(metric.options)})"
    return description


def list_renamed_methods(report: SuiteReport) -> list[tuple[str, str]]:
    """List rows whose name is not that of the method: the row, and what it runs."""
    shown_rows: set[str] = set()
    for panel in report.panels:
        shown_rows.update(panel.rows)
    # An embedded stand-in has other layers than the paper's model, so it has options of its own.
    uses_stand_ins = all(
        panel.checkpoint.startswith("tokenlight/") for panel in report.measured_panels
    )
    renamed = []
    for label, entry in report.suite.row_entries.items():
        options = dict(entry.options)
        if uses_stand_ins:
            options |= entry.stand_in
        method = entry.name
        if options:
            method += f"({_format_options(options)})"
        # A bare name, or a specification with options, already says what it runs.
        is_explicit = label == method or label.startswith(f"{entry.name}:")
        if label in shown_rows and not is_explicit:
            renamed.append((label, method))
    return renamed


def _join_names(names: Sequence[str]) -> str:
    """Join the first names; say how many more there are."""
    joined = ", ".join(names[:MAX_LISTED_NAMES])
    num_more = len(names) - MAX_LISTED_NAMES
    if num_more > 0:
        return f"{joined} and {num_more} more"
    return joined


def _format_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _format_count(count: int, noun: str) -> str:
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def _shorten_checkpoint(checkpoint: str) -> str:
    """Return a hub id as it is, and only the name of a folder, since its path means nothing elsewhere."""
    path = Path(checkpoint)
    if path.is_absolute():
        return f"{path.name} (a local model)"
    return checkpoint
