"""Compare the tables of a run with the published ones. A report is made from the result."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Self

from tokenlight.bench.completions import LEFT_OUT_REASON
from tokenlight.bench.plan import Cell
from tokenlight.bench.report.values import MethodCost, Panel, Ranking, Score
from tokenlight.bench.run_folder import RunFolder
from tokenlight.bench.suite import Suite
from tokenlight.bench.tables import Tables, merge_parts
from tokenlight.errors import BadInput

NOT_MEASURED = "no text could be measured"  # each was skipped, for example because it is too short
MIN_RANKED_METHODS = 3  # an order of fewer methods says nothing
ScoreRows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class SuiteReport:
    """Everything that a report says about a run, finished or not, except its figures.

    Args:
        run_folder: The folder of the run.
        tables: Its merged parts.
        include_timings: Whether to include seconds and passes, the only numbers that differ between two
            equal runs.
    """

    run_folder: RunFolder
    tables: Tables
    include_timings: bool = True

    @classmethod
    def from_folder(cls, folder: str | Path, *, include_timings: bool = True) -> Self:
        """Open the folder of a run and merge its parts.

        Raises:
            DamagedFile: The folder holds no run that can be read.
            BadInput: No part is finished.
        """
        run_folder = RunFolder.open(folder)
        num_done, num_parts = run_folder.count_parts()
        if num_done == 0:
            raise BadInput(
                f"None of the {num_parts} parts of {folder} is finished, so there is nothing to report. "
                f"Run tokenlight bench status {folder} to see why, or repeat bench run to continue.",
                code="run-without-parts",
            )
        return cls(run_folder, merge_parts(run_folder), include_timings)

    @property
    def suite(self) -> Suite:
        return self.run_folder.suite

    @cached_property
    def directions(self) -> dict[str, str]:
        """Metric → whether higher or lower is better."""
        return get_directions(self.suite)

    def get_direction_sign(self, metric: str) -> float:
        """Return the factor that makes larger numbers of a metric better."""
        return -1.0 if self.directions.get(metric) == "lower" else 1.0

    @cached_property
    def panels(self) -> list[Panel]:
        """One panel per model and data set."""
        cells_by_panel: dict[str, list[Cell]] = {}
        for cell in self.run_folder.cells:
            cells_by_panel.setdefault(cell.model_data_slug, []).append(cell)
        return [self._build_panel(cells) for cells in cells_by_panel.values()]

    @property
    def measured_panels(self) -> list[Panel]:
        return [panel for panel in self.panels if panel.has_scores]

    @property
    def has_paper(self) -> bool:
        """Whether the suite names a paper or published numbers."""
        return bool(self.suite.paper or self.suite.published)

    def has_published_scores(self, metric: str | None = None) -> bool:
        """Return whether a panel with numbers of ours has published ones too, of ``metric`` or of any."""
        for panel in self.measured_panels:
            for column in panel.build_columns(self.directions):
                if column.has_published and metric in (None, column.metric):
                    return True
        return False

    @property
    def cost_metric(self) -> str:
        """The metric that costs are compared with: AOPC if there is one, else the first."""
        for entry in self.suite.metrics:
            if entry.name == "aopc":
                return entry.label
        return self.suite.metrics[0].label

    @cached_property
    def costs(self) -> list[MethodCost]:
        """The cost of each method per text. Measuring is left out, since it costs the same for all."""
        if not self.include_timings:
            return []
        manifests_by_row: dict[str, list[Mapping[str, Any]]] = {}
        for manifest in self.run_folder.read_manifests():
            row = self._get_row(manifest["method"])
            manifests_by_row.setdefault(row, []).append(manifest)
        return [self._sum_costs(row, manifests) for row, manifests in manifests_by_row.items()]

    def _sum_costs(self, row: str, manifests: Sequence[Mapping[str, Any]]) -> MethodCost:
        num_texts = sum(manifest["examples"] for manifest in manifests)

        def average(key: str) -> float:
            return float(sum(manifest[key] for manifest in manifests) / num_texts)

        means = []
        for panel in self.panels:
            mean = panel.get_score(row, self.cost_metric).mean
            if mean is not None:
                means.append(mean)
        return MethodCost(
            method=row,
            seconds=average("explain_seconds"),
            forwards=average("explain_forwards"),
            backwards=average("explain_backwards"),
            value=fmean(means) if means else None,
            texts=num_texts,
        )

    @cached_property
    def rankings(self) -> list[Ranking]:
        """The rank correlation with the published order, where three methods or more have both numbers."""
        rankings = []
        for panel in self.panels:
            for metric in panel.metrics:
                ranking = self._compare_order(panel, metric)
                if ranking is not None:
                    rankings.append(ranking)
        return rankings

    def _compare_order(self, panel: Panel, metric: str) -> Ranking | None:
        from scipy.stats import kendalltau, spearmanr

        ours: dict[str, float] = {}
        published: dict[str, float] = {}
        for method, row in panel.rows.items():
            score = row[metric]
            if score.mean is not None and score.published is not None:
                ours[method] = score.mean
                published[method] = score.published
        # Both lists are in the same order of methods.
        our_means = list(ours.values())
        published_means = list(published.values())
        # A correlation needs several methods, and numbers that are not all the same.
        is_defined = len(set(our_means)) > 1 and len(set(published_means)) > 1
        if len(ours) < MIN_RANKED_METHODS or not is_defined:
            return None
        sign = self.get_direction_sign(metric)
        best = max(published, key=lambda method: sign * published[method])
        num_better = sum(sign * mean > sign * ours[best] for mean in our_means)
        return Ranking(
            panel=panel.title,
            metric=metric,
            methods=len(ours),
            best=best,
            rank=1 + num_better,
            kendall=float(kendalltau(our_means, published_means).statistic),
            spearman=float(spearmanr(our_means, published_means).statistic),
        )

    def _get_row(self, method: str) -> str:
        """Return the row of a method; the methods of a group share one."""
        return self.suite.row_by_method.get(method, method)

    def _build_panel(self, cells: Sequence[Cell]) -> Panel:
        """Build the panel of the cells of one model and data set."""
        model = cells[0].model
        data = cells[0].data
        score_rows = self._select_score_rows(model, data)
        metrics = self._list_metrics(data, score_rows)
        panel = Panel(
            model=model,
            data=data,
            title=self._make_title(model, data),
            metrics=metrics,
            rows=self._build_rows(cells, metrics, score_rows),
            skip_reasons=_join_skip_reasons(score_rows),
        )
        # All cells of a panel share their model and examples, so any running one can be read.
        running_cells = [cell for cell in cells if cell.is_run]
        if not running_cells:
            reasons = sorted({cell.reason for cell in cells})
            return replace(panel, reason="; ".join(reasons))
        num_planned = max(cell.examples for cell in running_cells)
        completed = self.run_folder.plan.get_completed(model, data)
        if completed is not None and completed.num_excluded:
            num_planned += completed.num_excluded
            reasons = [LEFT_OUT_REASON, panel.skip_reasons]
            panel = replace(panel, skip_reasons="; ".join(filter(None, reasons)))
        return replace(
            panel,
            checkpoint=running_cells[0].checkpoint,
            num_planned=num_planned,
            accuracy=self._compute_accuracy(running_cells[0]),
        )

    def _select_score_rows(self, model: str, data: str) -> ScoreRows:
        return [row for row in self.tables.scores if (row["model"], row["data"]) == (model, data)]

    def _build_rows(
        self, cells: Sequence[Cell], metrics: Sequence[str], score_rows: ScoreRows
    ) -> dict[str, dict[str, Score]]:
        """Build the scores of a panel by row and metric."""
        cells_by_row: dict[str, list[Cell]] = {}
        for cell in cells:
            cells_by_row.setdefault(self._get_row(cell.method_label), []).append(cell)
        rows: dict[str, dict[str, Score]] = {}
        for row, row_cells in cells_by_row.items():
            rows[row] = {}
            for metric in metrics:
                rows[row][metric] = self._build_score(row, metric, row_cells, score_rows)
        return rows

    def _make_title(self, model: str, data: str) -> str:
        """Title a panel by its data set, and by its model where the run has several."""
        title = self.suite.get_data_set(data).title or data
        models = {cell.model for cell in self.run_folder.cells}
        return f"{model} on {title}" if len(models) > 1 else title

    def _list_metrics(self, data: str, score_rows: ScoreRows) -> tuple[str, ...]:
        """List the metrics of a data set, then further numbers of a metric, such as ``rationale.f1``."""
        measured = {row["metric"] for row in score_rows}
        further = set()
        for metric in measured:
            if any(metric.startswith(f"{other}.") for other in measured):
                further.add(metric)
        return (*self.run_folder.plan.get_metrics(data), *sorted(further))

    def _compute_accuracy(self, cell: Cell) -> float | None:
        """Return the percentage of texts whose predicted class is their label, where labels are known."""
        is_correct = []
        for row in self.run_folder.iter_rows(**cell.identifiers):
            if row["label"] is not None:
                is_correct.append(row["predicted"] == row["label"])
        return 100 * fmean(is_correct) if is_correct else None

    def _build_score(
        self, row: str, metric: str, cells: Sequence[Cell], score_rows: ScoreRows
    ) -> Score:
        """Build the score of a row; repeated runs are summarized by their mean and deviation."""
        published = find_published_score(self.suite, (cells[0].model, cells[0].data), row, metric)
        methods = {cell.method_label for cell in cells}
        metric_rows = [entry for entry in score_rows if entry["metric"] == metric]
        own_rows = [entry for entry in metric_rows if entry["method"] in methods]
        measured_rows = [entry for entry in own_rows if entry["mean"] is not None]
        if not measured_rows:
            return replace(published, reason=_describe_missing_score(cells, own_rows))
        return _fill_measured_score(published, measured_rows)


def _fill_measured_score(published: Score, rows: ScoreRows) -> Score:
    """Add our numbers to a score: of one run its interval, of repeated runs their deviation."""
    score = replace(
        published,
        count=max(row["count"] for row in rows),
        draws=len(rows),
        left_out=sum(row["skipped"] + row["failed"] for row in rows),
    )
    if len(rows) > 1:
        means = [row["mean"] for row in rows]
        return replace(score, mean=fmean(means), sd=stdev(means))
    (row,) = rows
    return replace(score, mean=row["mean"], low=row["low"], high=row["high"])


def _join_skip_reasons(score_rows: ScoreRows) -> str:
    """Join the distinct reasons why texts were not measured."""
    reasons: list[str] = []
    for row in score_rows:
        reason = (row.get("skipped_since") or "").rstrip(".")
        if reason and reason not in reasons:
            reasons.append(reason)
    return "; ".join(reasons)


def _describe_missing_score(cells: Sequence[Cell], score_rows: ScoreRows) -> str:
    for cell in cells:
        if cell.reason:
            return f"not run: {cell.reason}"
    return NOT_MEASURED if score_rows else "not finished"


def get_directions(suite: Suite) -> dict[str, str]:
    """Return for each metric label which direction is better, given its options."""
    return {entry.label: entry.metric.direction for entry in suite.metrics}


def find_published_score(suite: Suite, pair: tuple[str, str], method: str, metric: str) -> Score:
    """Find the published mean and standard deviation.

    Args:
        suite: The suite.
        pair: Model and data set. Numbers of the pair come before numbers of the data set alone.
        method: Row of the table.
        metric: Label of the metric; a second reading of a metric has the numbers of the first.

    Returns:
        A score with the published numbers only; empty if there are none.
    """
    model, data = pair
    published_metric = suite.report.readings.get(metric, metric)
    # Some papers print a mean only, others a mean with a standard deviation.
    for scores_by_method in _iter_published(suite, model, data):
        score = scores_by_method.get(method, {}).get(published_metric)
        if isinstance(score, dict):
            return Score(published=score["mean"], published_sd=score.get("sd"))
        if score is not None:
            return Score(published=score)
    return Score()


def _iter_published(suite: Suite, model: str, data: str) -> Iterator[Mapping[str, Any]]:
    yield suite.published.get(f"{model}/{data}", {})
    yield suite.published.get(data, {})
