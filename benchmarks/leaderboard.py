"""One board for all methods: docs/results/leaderboard.json, its pages, and the table that the package shows.

    python benchmarks/leaderboard.py --models MODELS --data DATA --work WORK [--device cuda] [--limit 1000]
    python benchmarks/leaderboard.py --work WORK --report      # the pages and the table from WORK

MODELS and DATA as for benchmarks/reproduction.py, whose WORK serves as well: the suites are the same, and
a run that was stopped goes on from there. What was not run is left out and named.

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
FAITHFUL = "AOPC"  # the measure whose mean the package shows
PAGES = Path("docs/results")
TABLE = Path("src/tokenlight/explaining/leaderboard.json")
HOW = __doc__.split("\n\n")[3]  # how methods are ranked, in words
DRAWS = 1000
SEED = 0


@dataclass(frozen=True)
class Column:
    """One measure on one task: ``values`` of each method's texts, in the same order for all."""

    measure: str
    task: str
    values: Mapping[str, np.ndarray]
    sign: int  # -1 where lower is better

    def ranks(self, shares: np.ndarray) -> dict[str, np.ndarray]:
        """Method to its rank in each draw; ``shares``: ``draw text``, the weight of each text."""
        means = np.stack(
            [shares @ ranks_by_measure for ranks_by_measure in self.values.values()], axis=1
        )
        # Sums in another order differ in the last digit: equal methods must tie.
        method_ranks = rankdata(-self.sign * np.round(means, 12), axis=1)
        return dict(zip(self.values, method_ranks.T, strict=True))

    @property
    def texts(self) -> int:
        return len(next(iter(self.values.values())))


@dataclass
class Board:
    """Columns, costs and what was left out."""

    columns: list[Column] = field(default_factory=list)
    cost: dict[str, tuple[float, float]] = field(default_factory=dict)  # passes and ms a text
    missing: list[str] = field(default_factory=list)
    names: dict[str, str] = field(
        default_factory=dict
    )  # row to the method it is, if without options
    provenance: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(column.measure for column in self.columns))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name for column in self.columns for name in column.values))

    def ranks(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Method to measure (and ``""``, all of them) to rank, and the interval's ends."""
        generator = np.random.default_rng(SEED)
        ranks_by_cell: dict[tuple[str, str], list[np.ndarray]] = {}
        for column in self.columns:
            uniform_weights = np.full((1, column.texts), 1.0)
            draw_weights = generator.multinomial(
                column.texts, uniform_weights[0] / column.texts, DRAWS
            )
            for name, method_ranks in column.ranks(
                np.vstack([uniform_weights, draw_weights]) / column.texts
            ).items():
                ranks_by_cell.setdefault((name, column.measure), []).append(method_ranks)
        ranks_by_method: dict[str, dict[str, tuple[float, float, float]]] = {}
        for name in self.methods:
            ranks_by_measure = {
                m: np.mean(ranks_by_cell[name, m], axis=0)
                for m in self.measures
                if (name, m) in ranks_by_cell
            }
            ranks_by_measure[""] = np.mean(list(ranks_by_measure.values()), axis=0)
            ranks_by_method[name] = {
                measure: (
                    float(draw_weights[0]),
                    *map(float, np.quantile(draw_weights[1:], [0.025, 0.975])),
                )
                for measure, draw_weights in ranks_by_measure.items()
            }
        return ranks_by_method

    def mean(self, name: str, measure: str) -> float | None:
        """Mean over the measure's tasks."""
        task_means = [
            column.values[name].mean()
            for column in self.columns
            if column.measure == measure and name in column.values
        ]
        return float(np.mean(task_means)) if task_means else None


def collect_board(work: Path) -> Board:
    """The board of the suites that were run."""
    board = Board()
    for suite in SUITES:
        folder = work / suite
        if not (folder / "run.json").is_file():
            board.missing.append(f"{suite}: not run")
            continue
        report = RunReport.from_folder(folder)
        manifest = report.run_folder.manifest
        (num_done, num_parts) = report.run_folder.count_parts()
        board.provenance.append(
            f"{suite} on {manifest['device']}, {_format_versions(manifest['versions'])}"
        )
        if num_done < num_parts:
            board.missing.append(f"{suite}: {num_done} of {num_parts} parts finished")
        board.missing += [
            f"{suite}, {panel.title}: {panel.reason}"
            for panel in report.panels
            if not panel.has_scores
        ]
        for cost in report.costs:
            if suite == "leaderboard":
                passes = cost.forwards + cost.backwards
                board.cost[cost.method] = (passes, 1000 * cost.seconds)
        board.names |= {
            label: entry.name
            for label, entry in report.suite.row_entries.items()
            if not entry.options
        }
        board.columns += build_columns(suite, report.suite, report.tables.text_values)
    return board


def build_columns(
    name: str, suite: Suite, texts: Mapping[tuple[str, str, str, str], Mapping[int, float]]
) -> Iterator[Column]:
    """The columns of one suite, each over the texts that every method has."""
    better = get_directions(suite)
    for title, measure_suite, label, _ in MEASURES:
        for data in suite.data if measure_suite == name else ():
            values_by_method = {
                method: values
                for (_, data_name, method, metric), values in texts.items()
                if (data_name, metric) == (data.name, label)
            }
            shared = (
                sorted(set.intersection(*map(set, values_by_method.values())))
                if values_by_method
                else []
            )
            if shared:
                values = {m: np.array([v[i] for i in shared]) for m, v in values_by_method.items()}
                sign = -1 if better[label] == "lower" else 1
                yield Column(title, data.title or data.name, values, sign)


def _format_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions
    )


def build_content(board: Board, commit: str) -> dict[str, Any]:
    """The board as plain values, methods best first: what the pages are drawn from."""
    ranks = board.ranks()
    order = sorted(board.methods, key=lambda name: ranks[name][""][0])
    methods = []
    for name in order:
        passes, milliseconds = board.cost.get(name, (None, None))
        measure_ranks = {m: round(ranks[name][m][0], 1) for m in board.measures if m in ranks[name]}
        methods.append(
            {
                "label": name,
                "method": board.names.get(name),
                "rank": _round_rank(ranks[name][""]),
                "measures": measure_ranks,
                "passes": None if passes is None else round(passes, 1),
                "ms": None if milliseconds is None else round(milliseconds, 1),
            }
        )
    measures = []
    for title, suite, label, question in MEASURES:
        columns = [column for column in board.columns if column.measure == title]
        measured = [name for name in order if title in ranks[name]]
        if columns:
            best_first = sorted(measured, key=lambda name: ranks[name][title][0])
            measures.append(
                {
                    "title": title,
                    "suite": suite,
                    "label": label,
                    "asked": question,
                    "tasks": [{"title": c.task, "texts": c.texts} for c in columns],
                    "rows": [
                        _measure_row(name, ranks[name][title], columns) for name in best_first
                    ],
                }
            )
    return {
        "commit": commit,
        "how": " ".join(HOW.split()),
        "num_tasks": len(board.columns),
        "methods": methods,
        "measures": measures,
        "notes": describe_run(board, commit),
    }


def _round_rank(rank: tuple[float, float, float]) -> list[float]:
    return [round(value, 1) for value in rank]


def _measure_row(
    name: str, rank: tuple[float, float, float], columns: list[Column]
) -> dict[str, Any]:
    """A method's rank in one measure, and its mean on each task."""
    means = []
    for column in columns:
        values = column.values.get(name)
        means.append(None if values is None else round(float(values.mean()), 3))
    return {"label": name, "rank": _round_rank(rank), "means": means}


def describe_run(board: Board, commit: str) -> list[str]:
    """What stands around the tables."""
    missing = [f"Left out: {reason}." for reason in board.missing]
    return [
        *missing,
        "Made with " + "; ".join(board.provenance) + f"; seed {SEED}, at commit `{commit}`.",
    ]


def build_table(board: Board, commit: str) -> dict[str, object]:
    """What the package shows: of methods without options, by their registered names."""
    ranks = board.ranks()
    rows_by_name = {board.names[row]: row for row in board.methods if row in board.names}
    means = {name: board.mean(row, FAITHFUL) for name, row in rows_by_name.items()}
    texts = sum(column.texts for column in board.columns if column.measure == FAITHFUL)
    return {
        "commit": commit,
        "texts": texts,
        "means": {name: round(mean, 4) for name, mean in means.items() if mean is not None},
        "ranks": {
            name: [round(value, 1) for value in ranks[row][""]]
            for name, row in rows_by_name.items()
        },
    }


def main() -> None:
    """Run what is not there yet, then write pages and table."""
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
