"""One board for all methods: docs/results/leaderboard.json, its pages, and the table that the package shows.

    python benchmarks/leaderboard.py --models MODELS --data DATA --work WORK [--device cuda] [--limit 1000]
    python benchmarks/leaderboard.py --work WORK --report      # the pages and the table from WORK

MODELS and DATA as for benchmarks/reproduction.py, whose WORK serves as well: the suites are the same, and
a run that was stopped resumes from there. What was not run is left out and named.

A column is one measure on one task. In each, methods are ranked by their mean over texts (1 is best, equal
means share a rank); a measure's rank is the mean over its tasks, and the board's the mean over measures, so
that six planted tasks weigh no more than one of human rationales. Intervals are 95 %, from 1,000 resamples
of each column's texts, the same texts for every method. Cost takes no part in the rank. Methods with
options stand below their own names; the package shows those without.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from reproduction import RunOptions, read_commit, run
from scipy.stats import rankdata

from tokenlight.bench.report.comparison import get_directions
from tokenlight.bench.report.writers import RunReport
from tokenlight.bench.suite import Suite
from tokenlight.files.write import write_text

# The pages are drawn by a module of the guide, from the file that is written here.
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import leaderboard_page  # type: ignore[import-not-found]  # docs is no package

MEASURES = (  # title, suite, label of the metric, what it asks
    ("Normalised AOPC", "leaderboard", "NAOPC", "how far the prediction falls, between the lowest and the "
     "highest that any order reaches"),
    ("AOPC", "leaderboard", "AOPC, deleted", "how far it falls while the top tokens are deleted"),
    ("Soft erasure", "leaderboard", "Soft-NC", "how far it falls while embeddings are dropped by score"),
    ("F-Fidelity", "leaderboard", "FFid+", "how far it falls on a model that knows gaps"),
    ("Planted words", "planted_shortcuts", "Precision@k", "are the words that decide, since we put them "
     "there, on top"),
    ("Pointing game", "hybrid_documents", "Pointing game", "is the top token in the part of the text that "
     "the target comes from"),
    ("Human rationales", "leaderboard", "AUPRC", "are the tokens on top that people marked"),
    ("Signs", "sst_signs", "Signs", "has a word the sign that its polarity demands"),
)  # fmt: skip
SUITES = tuple(dict.fromkeys(suite for _, suite, _, _ in MEASURES))
SHOWN_MEASURE = "AOPC"  # whose mean the package shows
PAGES = Path("docs/results")
TABLE = Path("src/tokenlight/explaining/leaderboard.json")
RANKING_TEXT = __doc__.split("\n\n")[3]  # how methods are ranked, in words
DRAWS = 1000
SEED = 0


@dataclass(frozen=True)
class Column:
    """One measure on one task.

    Attributes:
        measure: Title of the measure.
        task: Title of the data set.
        values: Value of each text by method, ``text``, in the same order for all methods.
        sign: 1, or -1 where lower is better.
    """

    measure: str
    task: str
    values: Mapping[str, np.ndarray]
    sign: int

    def ranks(self, shares: np.ndarray) -> dict[str, np.ndarray]:
        """Rank the methods in each draw.

        Args:
            shares: Weight of each text in each draw, ``draw text``.

        Returns:
            Rank of each method, ``draw``.
        """
        means = np.stack([shares @ text_values for text_values in self.values.values()], axis=1)
        # Sums in another order differ in the last digit: equal methods must tie.
        method_ranks = rankdata(-self.sign * np.round(means, 12), axis=1)
        return dict(zip(self.values, method_ranks.T, strict=True))

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(next(iter(self.values.values())))


@dataclass
class Board:
    """Columns, costs and what was left out.

    Attributes:
        columns: Every measure on every task.
        cost: Passes and milliseconds per text, by row.
        missing: What was not run, in words.
        names: Registered name of the method of each row without options.
        provenance: Devices and versions of the runs.
    """

    columns: list[Column] = field(default_factory=list)
    cost: dict[str, tuple[float, float]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    provenance: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[str]:
        """Titles of the measures."""
        return list(dict.fromkeys(column.measure for column in self.columns))

    @property
    def methods(self) -> list[str]:
        """Labels of the rows."""
        return list(dict.fromkeys(name for column in self.columns for name in column.values))

    def ranks(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Rank the methods in each measure.

        Returns:
            By method and measure (``""`` for all measures): rank and the ends of its interval.
        """
        generator = np.random.default_rng(SEED)
        ranks_by_cell: dict[tuple[str, str], list[np.ndarray]] = {}
        for column in self.columns:
            uniform_weights = np.ones(column.texts)
            resampled_weights = generator.multinomial(
                column.texts, uniform_weights / column.texts, DRAWS
            )
            # The first draw is the texts as they are.
            weights = np.vstack([uniform_weights, resampled_weights])
            for name, column_ranks in column.ranks(weights / column.texts).items():
                ranks_by_cell.setdefault((name, column.measure), []).append(column_ranks)
        ranks_by_method = {}
        for name in self.methods:
            draws_by_measure = {}
            for measure in self.measures:
                if (name, measure) in ranks_by_cell:
                    task_ranks = ranks_by_cell[name, measure]
                    draws_by_measure[measure] = np.mean(task_ranks, axis=0)
            draws_by_measure[""] = np.mean(list(draws_by_measure.values()), axis=0)
            ranks_by_method[name] = {
                measure: _summarize_draws(rank_draws)
                for measure, rank_draws in draws_by_measure.items()
            }
        return ranks_by_method

    def mean(self, name: str, measure: str) -> float | None:
        """Return the mean of a method over the measure's tasks; None if it was not measured."""
        task_means = []
        for column in self.columns:
            if column.measure == measure and name in column.values:
                task_means.append(column.values[name].mean())
        return float(np.mean(task_means)) if task_means else None


def _summarize_draws(rank_draws: np.ndarray) -> tuple[float, float, float]:
    """Return the rank, which is the first draw, and the ends of its interval over the others."""
    low, high = np.quantile(rank_draws[1:], [0.025, 0.975])
    return float(rank_draws[0]), float(low), float(high)


def collect_board(work: Path) -> Board:
    """Collect the suites that were run."""
    board = Board()
    for suite in SUITES:
        folder = work / suite
        if not (folder / "run.json").is_file():
            board.missing.append(f"{suite}: not run")
            continue
        report = RunReport.from_folder(folder)
        manifest = report.run_folder.manifest
        num_done, num_parts = report.run_folder.count_parts()
        board.provenance.append(
            f"{suite} on {manifest['device']}, {_format_versions(manifest['versions'])}"
        )
        if num_done < num_parts:
            board.missing.append(f"{suite}: {num_done} of {num_parts} parts finished")
        for panel in report.panels:
            if not panel.has_scores:
                board.missing.append(f"{suite}, {panel.title}: {panel.reason}")
        if suite == "leaderboard":
            for cost in report.costs:
                passes = cost.forwards + cost.backwards
                board.cost[cost.method] = (passes, 1000 * cost.seconds)
        for label, entry in report.suite.row_entries.items():
            if not entry.options:
                board.names[label] = entry.name
        board.columns += build_columns(suite, report.suite, report.tables.text_values)
    return board


def build_columns(
    name: str, suite: Suite, texts: Mapping[tuple[str, str, str, str], Mapping[int, float]]
) -> Iterator[Column]:
    """Build the columns of one suite, each over the texts that every method has.

    Args:
        name: Name of the suite.
        suite: The suite.
        texts: Values by text, by model, data set, row and metric.

    Yields:
        A column per measure and data set.
    """
    directions = get_directions(suite)
    for title, measure_suite, label, _ in MEASURES:
        if measure_suite != name:
            continue
        for data in suite.data:
            values_by_method = {}
            for (_, data_name, method, metric), text_values in texts.items():
                if (data_name, metric) == (data.name, label):
                    values_by_method[method] = text_values
            shared_texts = _find_shared_texts(values_by_method)
            if not shared_texts:
                continue
            values = {}
            for method, text_values in values_by_method.items():
                values[method] = np.array([text_values[text] for text in shared_texts])
            sign = -1 if directions[label] == "lower" else 1
            yield Column(title, data.title or data.name, values, sign)


def _find_shared_texts(values_by_method: Mapping[str, Mapping[int, float]]) -> list[int]:
    """Return the texts for which every method has a value, in order."""
    if not values_by_method:
        return []
    text_sets = [set(text_values) for text_values in values_by_method.values()]
    return sorted(set.intersection(*text_sets))


def _format_versions(versions: Mapping[str, str]) -> str:
    """Name the versions of the libraries that compute."""
    names = [name for name in ("torch", "transformers") if name in versions]
    return ", ".join(f"{name} {versions[name]}" for name in names)


def build_content(board: Board, commit: str) -> dict[str, Any]:
    """Return the board as plain values, methods best first: what the pages are drawn from."""
    ranks = board.ranks()
    best_first = sorted(board.methods, key=lambda name: ranks[name][""][0])
    return {
        "commit": commit,
        "how": " ".join(RANKING_TEXT.split()),
        "num_tasks": len(board.columns),
        "methods": [_build_method_row(name, board, ranks[name]) for name in best_first],
        "measures": _build_measures(board, ranks, best_first),
        "notes": describe_run(board, commit),
    }


def _build_method_row(
    name: str, board: Board, ranks: Mapping[str, tuple[float, float, float]]
) -> dict[str, Any]:
    """Return a method's ranks and costs."""
    measure_ranks = {}
    for measure in board.measures:
        if measure in ranks:
            measure_ranks[measure] = round(ranks[measure][0], 1)
    row = {
        "label": name,
        "method": board.names.get(name),
        "rank": _round_rank(ranks[""]),
        "measures": measure_ranks,
        "passes": None,
        "ms": None,
    }
    if name in board.cost:
        passes, milliseconds = board.cost[name]
        row["passes"] = round(passes, 1)
        row["ms"] = round(milliseconds, 1)
    return row


def _build_measures(
    board: Board,
    ranks: Mapping[str, Mapping[str, tuple[float, float, float]]],
    methods: list[str],
) -> list[dict[str, Any]]:
    """Return the table of each measure, its methods best first."""
    measures = []
    for title, suite, label, question in MEASURES:
        columns = [column for column in board.columns if column.measure == title]
        if not columns:
            continue
        measured = [name for name in methods if title in ranks[name]]
        measured.sort(key=lambda name: ranks[name][title][0])
        rows = [_build_measure_row(name, ranks[name][title], columns) for name in measured]
        measures.append(
            {
                "title": title,
                "suite": suite,
                "label": label,
                "asked": question,
                "tasks": [{"title": column.task, "texts": column.texts} for column in columns],
                "rows": rows,
            }
        )
    return measures


def _round_rank(rank: tuple[float, float, float]) -> list[float]:
    """Round a rank and the ends of its interval to a tenth."""
    return [round(value, 1) for value in rank]


def _build_measure_row(
    name: str, rank: tuple[float, float, float], columns: list[Column]
) -> dict[str, Any]:
    """Return a method's rank in one measure, and its mean on each task."""
    means = []
    for column in columns:
        values = column.values.get(name)
        means.append(None if values is None else round(float(values.mean()), 3))
    return {"label": name, "rank": _round_rank(rank), "means": means}


def describe_run(board: Board, commit: str) -> list[str]:
    """Describe what was left out, and on what the rest was made."""
    notes = [f"Left out: {reason}." for reason in board.missing]
    provenance = "; ".join(board.provenance)
    notes.append(f"Made with {provenance}; seed {SEED}, at commit `{commit}`.")
    return notes


def build_table(board: Board, commit: str) -> dict[str, object]:
    """Build what the package shows: methods without options, by their registered names."""
    ranks = board.ranks()
    means = {}
    rounded_ranks = {}
    for row in board.methods:
        if row not in board.names:
            continue
        name = board.names[row]
        rounded_ranks[name] = _round_rank(ranks[row][""])
        mean = board.mean(row, SHOWN_MEASURE)
        if mean is not None:
            means[name] = round(mean, 4)
    texts = sum(column.texts for column in board.columns if column.measure == SHOWN_MEASURE)
    return {"commit": commit, "texts": texts, "means": means, "ranks": rounded_ranks}


def main() -> None:
    """Run what is not there yet, then write the pages and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, default=1000, help="texts a data set")
    parser.add_argument("--commit", help="that the run was made at; else the one checked out")
    parser.add_argument("--report", action="store_true", help="pages and table from WORK alone")
    arguments = parser.parse_args()
    commit = arguments.commit or read_commit()
    if arguments.data and not arguments.report:
        options = RunOptions(
            models=arguments.models and arguments.models.resolve(),
            data=arguments.data.resolve(),
            work=arguments.work.resolve(),
            out=PAGES,
            device=arguments.device,
            limit=arguments.limit,
            jobs=1,
            only=SUITES,
            commit=commit,
        )
        for name in SUITES:
            run(options, name)
    board = collect_board(arguments.work.resolve())
    content = build_content(board, commit)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_text(PAGES / leaderboard_page.DATA.name, text + "\n")
    for name, page in leaderboard_page.render_files(content).items():
        write_text(PAGES / name, page)
    write_text(TABLE, json.dumps(build_table(board, commit), indent=1) + "\n")


if __name__ == "__main__":
    main()
