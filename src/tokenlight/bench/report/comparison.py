"""A run's tables beside the published ones: what a report is made of, and how far our order of methods is
the printed one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from tokenlight.bench.plan import Cell
from tokenlight.bench.report.values import Panel, Score
from tokenlight.bench.store import RunFolder
from tokenlight.bench.suite import Suite
from tokenlight.bench.tables import Tables, merged
from tokenlight.errors import BadInput

NOTHING = "no text could be measured"  # each was left out, say as too short
FEWEST = 3  # methods below which an order says nothing
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SuiteReport:
    """All that a report says of a run, finished or not, figures aside.

    ``timings``: with seconds and passes, the only numbers that differ between two equal runs.
    """

    run: RunFolder
    tables: Tables
    timings: bool = True

    @classmethod
    def of(cls, folder: str | Path, *, timings: bool = True) -> Self:
        """Open a run's folder, merge its parts."""
        run = RunFolder.open(folder)
        done, total = run.progress()
        if not done:
            raise BadInput(
                f"none of the {total} parts of {folder} is finished, so there is nothing to report. "
                f"tokenlight bench status {folder} says why; the same bench run command goes on."
            )
        return cls(run, merged(run), timings)

    @property
    def suite(self) -> Suite:
        return self.run.suite

    @cached_property
    def better(self) -> dict[str, str]:
        """Metric to which way is better."""
        return directions(self.suite)

    @cached_property
    def panels(self) -> list[Panel]:
        """One a model and data set."""
        pairs: dict[str, list[Cell]] = {}
        for cell in self.run.cells:
            pairs.setdefault(cell.pair, []).append(cell)
        return [self._panel(cells) for cells in pairs.values()]

    @property
    def ran(self) -> list[Panel]:
        return [panel for panel in self.panels if panel.ran]

    @property
    def of_paper(self) -> bool:
        """Whether there is a paper to compare with: a suite of one's own may have none."""
        return bool(self.suite.paper or self.suite.published)

    def compared(self, metric: str | None = None) -> bool:
        """Whether a panel with numbers has a published one too (of ``metric``)."""
        columns = (one for panel in self.ran for one in panel.columns(self.better))
        return any(one.compared for one in columns if metric in (None, one.metric))

    @property
    def faithful(self) -> str:
        """The metric that costs stand against: AOPC where there is one, else the first."""
        labels = (one.label for one in self.suite.metrics if one.name == "aopc")
        return next(labels, self.suite.metrics[0].label)

    @cached_property
    def costs(self) -> list[dict[str, Any]]:
        """One row a method: what it costs a text (measuring costs all the same), and how faithful it is."""
        spent: dict[str, list[Mapping[str, Any]]] = {}
        for part in self.run.manifests() if self.timings else ():
            name = self.suite.row_of.get(part["method"], part["method"])
            spent.setdefault(name, []).append(part)
        found = []
        for method, parts in spent.items():
            texts = sum(part["examples"] for part in parts)
            scores = [panel.score(method, self.faithful) for panel in self.panels]
            means = [score.mean for score in scores if score.mean is not None]
            costs = {
                key: sum(part[f"explain_{key}"] for part in parts) / texts
                for key in ("seconds", "forwards", "backwards")
            }
            value = fmean(means) if means else None
            found.append({"method": method, **costs, "value": value, "texts": texts})
        return found

    @cached_property
    def rankings(self) -> list[dict[str, Any]]:
        """Rank correlation with the printed order, wherever three methods or more have both numbers; the
        paper's best, and its place here."""
        from scipy.stats import kendalltau, spearmanr

        found = []
        for panel, metric in [(one, metric) for one in self.panels for metric in one.metrics]:
            both = {
                method: (score.mean, score.published)
                for method, row in panel.rows.items()
                if (score := row[metric]).mean is not None and score.published is not None
            }
            ours, printed = ([pair[side] for pair in both.values()] for side in (0, 1))
            if len(both) < FEWEST or len(set(ours)) < 2 or len(set(printed)) < 2:
                continue
            sign = -1.0 if self.better.get(metric) == "lower" else 1.0
            best = max(both, key=lambda name: sign * both[name][1])
            place = 1 + sum(sign * mine > sign * both[best][0] for mine in ours)
            tau, rho = (float(test(ours, printed).statistic) for test in (kendalltau, spearmanr))
            row = {"panel": panel.title, "metric": metric, "methods": len(both), "best": best}
            found.append({**row, "kendall": tau, "spearman": rho, "place": place})
        return found

    def _panel(self, cells: Sequence[Cell]) -> Panel:
        model, data = cells[0].model, cells[0].data
        several = len({cell.model for cell in self.run.cells}) > 1
        own = [row for row in self.tables.scores if (row["model"], row["data"]) == (model, data)]
        labels = {row["metric"] for row in own}
        # Further numbers of a metric (rationale.f1), as far as they were measured.
        parts = {one for one in labels for other in labels if one.startswith(f"{other}.")}
        metrics = (*self.run.plan.metrics_for(data), *sorted(parts))
        members: dict[str, list[Cell]] = {}
        for cell in cells:
            members.setdefault(self.suite.row_of.get(cell.method, cell.method), []).append(cell)
        title = self.suite.data_set(data).title or data
        running = [cell for cell in cells if cell.runs]
        reasons = dict.fromkeys(row.get("skipped_since") for row in own)
        # Share of texts whose predicted class is their label, in per cent.
        texts = self.run.rows(**running[0].names) if running else ()
        right = [text["predicted"] == text["label"] for text in texts if text["label"] is not None]
        accuracy = 100 * fmean(right) if right else None
        return Panel(
            model=model,
            data=data,
            title=f"{model} on {title}" if several else title,
            metrics=metrics,
            rows={
                name: {metric: self._score(name, metric, listed, own) for metric in metrics}
                for name, listed in members.items()
            },
            checkpoint=running[0].checkpoint if running else "",
            planned=max((cell.examples for cell in running), default=0),
            skipped_since="; ".join(reason.rstrip(".") for reason in reasons if reason),
            reason="" if running else "; ".join(sorted({cell.reason for cell in cells})),
            accuracy=accuracy,
        )

    def _score(self, name: str, metric: str, members: Sequence[Cell], scores: Rows) -> Score:
        labels = {cell.method for cell in members}
        own = [row for row in scores if row["metric"] == metric and row["method"] in labels]
        found = [row for row in own if row["mean"] is not None]
        printed = published(self.suite, (members[0].model, members[0].data), name, metric)
        if not found:
            why = next((cell.reason for cell in members if cell.reason), "")
            reason = f"not run: {why}" if why else NOTHING if own else "not finished"
            return replace(printed, reason=reason)
        means, draws = [row["mean"] for row in found], len(found)
        if draws > 1:
            ours = {"mean": fmean(means), "sd": stdev(means)}
        else:
            ours = {key: found[0][key] for key in ("mean", "low", "high")}
        left_out = sum(row["skipped"] + row["failed"] for row in found)
        count = max(row["count"] for row in found)
        return replace(printed, **ours, count=count, draws=draws, left_out=left_out)


def directions(suite: Suite) -> dict[str, str]:
    """Metric label to which way is better with its options."""
    return {one.label: one.metric.direction for one in suite.metrics}


def published(suite: Suite, pair: tuple[str, str], method: str, metric: str) -> Score:
    """The printed mean and standard deviation; a second reading of a metric has the first's."""
    reading = suite.report.readings.get(metric, metric)
    for cell in ("/".join(pair), pair[1]):
        number = suite.published.get(cell, {}).get(method, {}).get(reading)
        if number is not None:
            printed = number if isinstance(number, dict) else {"mean": number}
            return Score(published=printed["mean"], published_sd=printed.get("sd"))
    return Score()
