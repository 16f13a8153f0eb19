"""Merge finished parts into tables. The bytes do not depend on how and where the parts were made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isclose, isnan
from statistics import fmean
from typing import Any

from tokenlight.bench.plan import Cell
from tokenlight.bench.run_folder import RunFolder
from tokenlight.data.intervals import to_json_value
from tokenlight.evaluation.corpus import load_model_tokenizer
from tokenlight.evaluation.digests import check_unchanged
from tokenlight.evaluation.evaluate import load_document_frequencies
from tokenlight.evaluation.measurement_records import Record
from tokenlight.evaluation.results import Evaluation
from tokenlight.files.write import dump_csv, write_text
from tokenlight.models.embedded import digest_file

CELL_COLUMNS = ("model", "data", "method", "status", "reason", "examples", "options", "checkpoint")
KEY_COLUMNS = ("model", "data", "method")
INTERVAL_COLUMNS = ("mean", "low", "high", "count")
SCORE_COLUMNS = (
    *KEY_COLUMNS,
    "metric",
    *INTERVAL_COLUMNS,
    "skipped",
    "skipped_since",
    "failed",
    "better",
)
CURVE_COLUMNS = (*KEY_COLUMNS, "metric", "point", *INTERVAL_COLUMNS)
FAILURE_COLUMNS = (*KEY_COLUMNS, "example", "error")
TIMING_COLUMNS = (
    *(*KEY_COLUMNS, "first", "examples", "seconds", "explain_seconds", "measure_seconds"),
    *("explain_forwards", "explain_backwards", "measure_forwards", "forward_tokens"),
    *("bytes", "device"),
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """Rows of the merged tables, in the order of the plan.

    Args:
        scores: One row per cell and metric.
        curves: One row per cell, metric and point of its curve.
        failures: One row per example that could not be explained or measured.
        text_values: (model, data, method, metric) → example → value, for scores that are the mean of these.
    """

    scores: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    failures: list[Row] = field(default_factory=list)
    text_values: dict[tuple[str, str, str, str], dict[int, float]] = field(default_factory=dict)


def merge_parts(run_folder: RunFolder) -> Tables:
    """Compute scores with intervals, curves and failures from every finished part."""
    tables = Tables()
    for cell in run_folder.cells:
        if cell.is_run:
            _add_cell(tables, run_folder, cell)
    return tables


def write_tables(run_folder: RunFolder) -> Tables:
    """Write cells, scores, curves, failures and timings as CSV files into the folder of the run."""
    tables = merge_parts(run_folder)
    rows_by_table: dict[str, tuple[Sequence[str], list[Row]]] = {
        "cells": (CELL_COLUMNS, [_describe_cell(cell) for cell in run_folder.cells]),
        "scores": (SCORE_COLUMNS, tables.scores),
        "curves": (CURVE_COLUMNS, tables.curves),
        "failures": (FAILURE_COLUMNS, tables.failures),
        "timings": (TIMING_COLUMNS, run_folder.read_manifests()),
    }
    for name, (columns, rows) in rows_by_table.items():
        write_text(run_folder.folder / f"{name}.csv", dump_csv(columns, rows))
    return tables


def _describe_cell(cell: Cell) -> Row:
    row = asdict(cell) | cell.identifiers | {"status": "run", "options": ""}
    if cell.options:
        row["options"] = json.dumps(cell.options, ensure_ascii=False, sort_keys=True, default=str)
    if not cell.is_run:
        row |= {"status": "not run", "examples": 0}
    return row


def _add_cell(tables: Tables, run_folder: RunFolder, cell: Cell) -> None:
    """Add the scores, curves and failures of one cell."""
    # Separate measured examples from failed ones.
    rows = list(run_folder.iter_rows(**cell.identifiers))
    if not rows:
        return
    records = []
    num_failed = 0
    for row in rows:
        if row["error"] is None:
            records.append(Record.from_dict({key: row[key] for key in Record.json_keys()}))
        else:
            num_failed += 1
            tables.failures.append({column: row[column] for column in FAILURE_COLUMNS})
    # Scores with their intervals, one row per metric.
    evaluation = _make_evaluation(run_folder, cell, records)
    for metric, summary in to_json_value(evaluation.summary).items():
        tables.scores.append(_build_score_row(cell, metric, summary, num_failed))
        values = _collect_values(records, metric)
        # Some scores are not means over texts; those cannot be compared text by text.
        if _is_mean_of(summary["mean"], values):
            tables.text_values[cell.model, cell.data, cell.method_label, metric] = values
    # Curves, one row per point.
    for metric, (points, intervals) in evaluation.curves.items():
        for point, interval in zip(points, intervals, strict=True):
            identifiers = {**cell.identifiers, "metric": metric, "point": point}
            tables.curves.append(identifiers | to_json_value(interval))


def _make_evaluation(run_folder: RunFolder, cell: Cell, records: Sequence[Record]) -> Evaluation:
    metrics = run_folder.plan.get_metrics(cell.data)
    corpora = []
    for metric in metrics.values():
        corpus = getattr(metric, "corpus", None)
        if corpus is not None:
            corpora.append(corpus)
    tokenizer = load_model_tokenizer(cell.checkpoint) if corpora else None
    frequencies = load_document_frequencies(tokenizer, metrics)
    # The corpus is read here, long after the run was planned.
    for corpus in corpora:
        check_unchanged(run_folder.plan.settings, "corpora", corpus, digest_file(corpus))
    return Evaluation(
        records=tuple(records),
        metrics=metrics,
        seed=run_folder.suite.seed,
        document_frequencies=frequencies,
    )


def _build_score_row(cell: Cell, metric: str, summary: Mapping[str, Any], num_failed: int) -> Row:
    skipped = summary.get("skipped", {})  # reason → number of texts
    return {
        **cell.identifiers,
        "metric": metric,
        **summary,
        "skipped": sum(skipped.values()),
        "skipped_since": " / ".join(skipped),
        "failed": num_failed,
    }


def _collect_values(records: Sequence[Record], metric: str) -> dict[int, float]:
    """Return the value of each text that has one."""
    values = {}
    for record in records:
        if metric in record.measurements:
            value = record.measurements[metric].value
            if not isnan(value):
                values[record.text_index] = value
    return values


def _is_mean_of(mean: float | None, values: Mapping[int, float]) -> bool:
    if mean is None or not values:
        return False
    return isclose(fmean(values.values()), mean, rel_tol=1e-9)
