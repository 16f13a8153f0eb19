"""A report as one self-contained HTML page: no script, no outside resource, every value escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tokenlight.bench import report_words as words
from tokenlight.bench.report import Entry, Panel, Report
from tokenlight.bench.report_figures import Picture
from tokenlight.bench.report_text import briefly, change, number, printed
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots.html import _environment

TONES = {"holds": "good", "holds weakly": "good", "does not hold": "bad", "not run": "none"}


def page(report: Report, pictures: Sequence[Picture]) -> str:
    """The page; pictures are inside it."""
    style = _environment().get_template("bench.css.j2").render()
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    return (
        _environment()
        .get_template("bench.html.j2")
        .render(
            title=report.suite.title or report.suite.name,
            style=Markup(style),  # ours alone: escaped, it would no longer be what the policy names
            policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; "
            "base-uri 'none'; form-action 'none'",
            suite=report.suite.name,
            run=words.what_was_run(report),
            order=words.order(report),
            claims=[(*claim, TONES.get(claim[1], "half")) for claim in words.claims(report)],
            panels=[_panel(panel, report) for panel in report.ran],
            missing=[(p.title, words.why_not(p)) for p in report.panels if not p.ran],
            rankings=report.rankings,
            costs=report.costs,
            faithful=report.faithful,
            claimed_by=words.claimed_by(report),
            of_paper=report.of_paper,
            compared=report.compared(),
            comparable=words.comparable(report),
            notes=words.protocol(report),
            rows=words.renamed(report),
            printed=[(k, f"{v:g}") for k, v in report.suite.report.get("printed", {}).items()],
            failures=report.failures[:20],
            more=max(0, len(report.failures) - 20),
            versions=sorted(report.versions.items()),
            pictures=[
                (one.title, base64.b64encode(one.content).decode("ascii"), one.missing)
                for one in pictures
            ],
        )
    )


def _panel(panel: Panel, report: Report) -> dict[str, Any]:
    metrics: list[dict[str, Any]] = []
    for metric in panel.metrics:
        entries = [row[metric] for row in panel.rows.values()]
        metrics.append(
            {
                "name": metric,
                "arrow": ARROWS[report.better.get(metric, "neither")],
                "compared": any(entry.published is not None for entry in entries),
                "best": _best(entries, report.better.get(metric, "neither")),
                "printed_best": _best_printed(entries, report.better.get(metric, "neither")),
            }
        )
    rows = [
        (method, [_cell(row[one["name"]], one) for one in metrics])
        for method, row in panel.rows.items()
    ]
    return {"title": panel.title, "metrics": metrics, "rows": rows}


def _cell(entry: Entry, metric: dict[str, Any]) -> dict[str, Any]:
    ours = entry.ours
    mean, _, rest = ("", "", "") if ours is None else number(ours).partition(" ")
    return {
        "mean": mean or "–",
        "rest": rest if ours else briefly(entry.reason),
        "texts": ours.count if ours else 0,
        "left_out": ours.left_out if ours else 0,
        "best": ours is not None and ours.mean == metric["best"],
        "compared": metric["compared"],
        "printed": printed(entry),
        "printed_best": entry.published is not None and entry.published == metric["printed_best"],
        "change": change(entry),
    }


def _best(entries: Sequence[Entry], better: str) -> float | None:
    means = [entry.ours.mean for entry in entries if entry.ours is not None]
    return _extreme(means, better)


def _best_printed(entries: Sequence[Entry], better: str) -> float | None:
    return _extreme([e.published for e in entries if e.published is not None], better)


def _extreme(values: Sequence[float], better: str) -> float | None:
    if not values or better == "neither":
        return None
    return max(values) if better == "higher" else min(values)
