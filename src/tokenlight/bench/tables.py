"""Finished parts merged into score tables: the same bytes however the parts came to be."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isclose, isnan
from statistics import fmean
from typing import Any

from tokenlight.bench.plan import Cell
from tokenlight.bench.store import RunFolder
from tokenlight.evaluation.corpus import tokenizer_of
from tokenlight.evaluation.measure import Record
from tokenlight.evaluation.results import Evaluation, frequencies_for
from tokenlight.evaluation.weights import refuse_changed
from tokenlight.files.write import csv_text, write_text
from tokenlight.metrics._interval import plain
from tokenlight.models.embedded import digest_of

CELLS = ("model", "data", "method", "status", "reason", "examples", "options", "checkpoint")
NAMES = ("model", "data", "method")
INTERVAL = ("mean", "low", "high", "count")
SCORES = (*NAMES, "metric", *INTERVAL, "skipped", "skipped_since", "failed", "better")
CURVES = (*NAMES, "metric", "point", *INTERVAL)
FAILURES = (*NAMES, "example", "error")
TIMINGS = (
    *(*NAMES, "first", "examples", "seconds", "explain_seconds", "measure_seconds"),
    *("explain_forwards", "explain_backwards", "measure_forwards", "forward_tokens"),
    *("bytes", "device"),
)


@dataclass(frozen=True)
class Tables:
    """Rows of the merged tables, in the order of the plan."""

    scores: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    # (model, data, method, metric) to the number of each example, where the score is their mean.
    texts: dict[tuple[str, str, str, str], dict[int, float]] = field(default_factory=dict)


def merged(run: RunFolder) -> Tables:
    """Scores with their intervals, curves and failures of every finished part."""
    tables = Tables()
    for cell in run.cells:
        if cell.runs:
            _add(tables, run, cell)
    return tables


def write(run: RunFolder) -> Tables:
    """Write cells, scores, curves, failures and timings as CSV files into the run's folder."""
    tables, cells = merged(run), []
    for cell in run.cells:
        options = json.dumps(cell.options, ensure_ascii=False, sort_keys=True, default=str)
        status = {"status": "run"} if cell.runs else {"status": "not run", "examples": 0}
        cells.append(asdict(cell) | {"options": options if cell.options else ""} | status)
    content: dict[str, tuple[Sequence[str], list[dict[str, Any]]]] = {
        "cells": (CELLS, cells),
        "scores": (SCORES, tables.scores),
        "curves": (CURVES, tables.curves),
        "failures": (FAILURES, tables.failures),
        "timings": (TIMINGS, run.manifests()),
    }
    for name, (columns, rows) in content.items():
        write_text(run.folder / f"{name}.csv", csv_text(columns, rows))
    return tables


def _add(tables: Tables, run: RunFolder, cell: Cell) -> None:
    names, metrics = cell.names, run.plan.metrics_for(cell.data)
    rows = list(run.rows(**names))
    if not rows:
        return
    failed = [row for row in rows if row["error"] is not None]
    tables.failures.extend({key: row[key] for key in FAILURES} for row in failed)
    kept, fine = [one.name for one in fields(Record)], (r for r in rows if r["error"] is None)
    records = tuple(Record.from_dict({name: row[name] for name in kept}) for row in fine)
    corpora = [c for one in metrics.values() if (c := getattr(one, "corpus", None)) is not None]
    counted = frequencies_for(tokenizer_of(cell.checkpoint) if corpora else None, metrics)
    for corpus in corpora:
        refuse_changed(run.plan.settings, "corpora", corpus, digest_of(corpus))
    evaluation = Evaluation(records, metrics, run.suite.seed, counted)
    for metric, numbers in plain(evaluation.summary).items():
        skipped = numbers.get("skipped", {})
        why = {"skipped": sum(skipped.values()), "skipped_since": " / ".join(skipped)}
        tables.scores.append({**names, "metric": metric, **numbers, **why, "failed": len(failed)})
        values = {
            record.text: found
            for record in records
            if metric in record.measured and not isnan(found := record.measured[metric].value)
        }
        mean = numbers["mean"]
        if values and mean is not None and isclose(fmean(values.values()), mean, rel_tol=1e-9):
            tables.texts[cell.model, cell.data, cell.method, metric] = values
    tables.curves.extend(
        {**names, "metric": metric, "point": point, **plain(interval)}
        for metric, (points, intervals) in evaluation.curves.items()
        for point, interval in zip(points, intervals, strict=True)
    )
