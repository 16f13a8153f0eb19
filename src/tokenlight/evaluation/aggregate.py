"""Aggregate the records of an evaluation: differences, agreement, rows and tables.

Explanations of one text, for several classes or tokens, are averaged before texts are: texts are the sample
from which intervals are drawn, not targets.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import Any

from tokenlight.data.intervals import Interval, bootstrap_mean
from tokenlight.evaluation.agreement import Agreement
from tokenlight.evaluation.measurement_records import Record
from tokenlight.metrics.base import DIRECTION_ARROWS, Measurement, Metric

MetricValues = dict[tuple[int, str], float]  # (index of the text, target) to the value
MISSING_CELL = "–"


def group_measurements(records: Sequence[Record], key: str) -> list[list[Measurement]]:
    """Return the measurements of one metric, grouped by text."""
    groups: dict[int, list[Measurement]] = {}
    for record in records:
        if key in record.measurements:
            groups.setdefault(record.text_index, []).append(record.measurements[key])
    return list(groups.values())


def count_skip_reasons(records: Sequence[Record]) -> dict[str, dict[str, int]]:
    """Return, for each metric, the reasons with the number of explanations skipped for them."""
    counts: dict[str, Counter[str]] = {}
    for record in records:
        for key, reason in record.skip_reasons.items():
            counts.setdefault(key, Counter())[reason] += 1
    return {key: dict(reasons) for key, reasons in counts.items()}


def compute_differences(
    records: Sequence[Record], metric_key: str, methods: Sequence[str], seed: int
) -> dict[str, Interval]:
    """Compare every other method with the first one, text by text.

    Args:
        records: Records of all methods.
        metric_key: The metric to compare by.
        methods: Names of the methods.
        seed: Seed of the intervals.

    Returns:
        Method to the mean of its value − that of the first method, over the texts on which both were
        measured. Methods without such a text are left out.
    """
    # The metric may be NaN for a text, such as token_overlap, which is a number of all texts.
    values_by_method: dict[str, MetricValues] = {}
    for record in records:
        measurement = record.measurements.get(metric_key)
        if measurement is not None and not isnan(measurement.value):
            values = values_by_method.setdefault(record.method, {})
            values[record.text_index, record.target] = measurement.value

    # A difference needs a value of both methods for the same text and target.
    differences = {}
    first_values = values_by_method.get(methods[0], {}) if methods else {}
    for method in methods[1:]:
        gaps = _compute_gaps(values_by_method.get(method, {}), first_values)
        if gaps:
            differences[method] = bootstrap_mean(gaps, seed=seed)
    return differences


def _compute_gaps(values: MetricValues, first_values: MetricValues) -> list[float]:
    """Return the mean difference of each text over the targets that both methods explained."""
    gaps: dict[int, list[float]] = {}
    for (text_index, target), value in values.items():
        if (text_index, target) in first_values:
            gap = value - first_values[text_index, target]
            gaps.setdefault(text_index, []).append(gap)
    return [fmean(text_gaps) for text_gaps in gaps.values()]


def compute_agreement(records: Sequence[Record], methods: tuple[str, ...], seed: int) -> Agreement:
    """Return the mean rank correlation over texts between every two methods."""
    correlations: dict[tuple[str, str], dict[int, list[float]]] = {}
    for record in records:
        for other, value in record.rank_correlations.items():
            by_text = correlations.setdefault((record.method, other), {})
            by_text.setdefault(record.text_index, []).append(value)
    # Average over the targets of a text first, then over texts.
    intervals = {}
    for pair, by_text in correlations.items():
        text_means = [fmean(values) for values in by_text.values()]
        intervals[pair] = bootstrap_mean(text_means, seed=seed)
    return Agreement(methods, intervals)


def make_row(record: Record, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return one flat row: the values, parts and curves of a record, or why there are none."""
    row: dict[str, Any] = {
        "text": record.text_index,
        "method": record.method,
        "target": record.target,
        "predicted": record.predicted,
        "label": record.label,
        "tokens": record.num_tokens,
    }
    for key in metrics:
        measurement = record.measurements.get(key)
        row[key] = None
        if measurement is not None:
            if not isnan(measurement.value):
                row[key] = measurement.value
            for part, value in measurement.parts.items():
                row[f"{key}.{part}"] = value
            if measurement.curve:
                row[f"{key}.curve"] = list(measurement.curve)
        row[f"{key}.skipped"] = record.skip_reasons.get(key)
    return row


def format_table(
    summaries: Mapping[str, Mapping[str, Mapping[str, Any]]], num_texts: Mapping[str, int]
) -> str:
    """Return methods × metrics as aligned text: mean [low, high].

    Args:
        summaries: Method to metric to its summary.
        num_texts: Method to the number of its texts.
    """
    # One column for each metric and part that any method has.
    directions: dict[str, str] = {}
    for summary in summaries.values():
        for key, entry in summary.items():
            directions[key] = entry["better"]
    # One line per method, below the header.
    header = ["method", "n"]
    for key, direction in directions.items():
        header.append(f"{key} {DIRECTION_ARROWS[direction]}".rstrip())
    lines = [header]
    for method, summary in summaries.items():
        cells = [format_cell(summary.get(key)) for key in directions]
        lines.append([method, str(num_texts[method]), *cells])
    return _align_columns(lines)


def _align_columns(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = []
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        aligned.append("  ".join(padded).rstrip())
    return "\n".join(aligned)


def format_cell(summary: Mapping[str, Any] | None) -> str:
    """Return ``mean [low, high]``, or a dash if there is no number."""
    if summary is None or not summary["count"] or isnan(summary["mean"]):
        return MISSING_CELL
    # "z" drops the sign of a number that rounds to zero.
    return f"{summary['mean']:z.3f} [{summary['low']:z.3f}, {summary['high']:z.3f}]"
