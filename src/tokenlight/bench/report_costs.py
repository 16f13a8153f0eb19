"""What a method costs: seconds and passes a text, against how faithful it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from tokenlight.bench.report import Cost, Entry, Panel, groups


def costs(run: Any, panels: Sequence[Panel], metric: str) -> Iterator[Cost]:
    """One line a method, in the suite's order: means over all texts it explained.

    ``metric``: whose mean over the panels stands beside the cost. Only the time of explaining is
    counted: measuring costs every method the same.
    """
    row_of = groups(run.suite)
    spent: dict[str, list[Mapping[str, Any]]] = {}
    for part in run.timings():
        spent.setdefault(row_of.get(part["method"], part["method"]), []).append(part)
    for method, parts in spent.items():
        texts = sum(int(part["examples"]) for part in parts)
        found = [
            entry.ours.mean
            for panel in panels
            if (entry := panel.rows.get(method, {}).get(metric, Entry())).ours is not None
        ]
        yield Cost(
            method=method,
            seconds=_each(parts, "explain_seconds", texts),
            forwards=_each(parts, "explain_forwards", texts),
            backwards=_each(parts, "explain_backwards", texts),
            value=fmean(found) if found else None,
            texts=texts,
        )


def _each(parts: Sequence[Mapping[str, Any]], key: str, texts: int) -> float:
    return sum(float(part.get(key) or 0.0) for part in parts) / max(1, texts)
