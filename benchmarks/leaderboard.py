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
from reproduction import Wish, here, run
from scipy.stats import rankdata

from tokenlight.bench.report.comparison import get_directions
from tokenlight.bench.report.writers import RunReport
from tokenlight.bench.suite import Suite
from tokenlight.files.write import write_text

# The pages are drawn by a module of the guide, from the file that is written here.
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import leaderboard_page

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
DRAWS, SEED = 1000, 0


@dataclass(frozen=True)
class Column:
    """One measure on one task: ``values`` of each method's texts, in the same order for all."""

    measure: str
    task: str
    values: Mapping[str, np.ndarray]
    sign: int  # -1 where lower is better

    def ranks(self, shares: np.ndarray) -> dict[str, np.ndarray]:
        """Method to its rank in each draw; ``shares``: ``draw text``, the weight of each text."""
        means = np.stack([shares @ own for own in self.values.values()], axis=1)
        # Sums in another order differ in the last digit: equal methods must tie.
        placed = rankdata(-self.sign * np.round(means, 12), axis=1)
        return dict(zip(self.values, placed.T, strict=True))

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
    made: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(column.measure for column in self.columns))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(name for column in self.columns for name in column.values))

    def ranks(self) -> dict[str, dict[str, tuple[float, float, float]]]:
        """Method to measure (and ``""``, all of them) to rank, and the interval's ends."""
        generator = np.random.default_rng(SEED)
        of: dict[tuple[str, str], list[np.ndarray]] = {}
        for column in self.columns:
            whole = np.full((1, column.texts), 1.0)
            drawn = generator.multinomial(column.texts, whole[0] / column.texts, DRAWS)
            for name, placed in column.ranks(np.vstack([whole, drawn]) / column.texts).items():
                of.setdefault((name, column.measure), []).append(placed)
        found: dict[str, dict[str, tuple[float, float, float]]] = {}
        for name in self.methods:
            own = {m: np.mean(of[name, m], axis=0) for m in self.measures if (name, m) in of}
            own[""] = np.mean(list(own.values()), axis=0)
            found[name] = {
                measure: (float(drawn[0]), *map(float, np.quantile(drawn[1:], [0.025, 0.975])))
                for measure, drawn in own.items()
            }
        return found

    def mean(self, name: str, measure: str) -> float | None:
        """Mean over the measure's tasks."""
        own = [
            c.values[name].mean() for c in self.columns if c.measure == measure and name in c.values
        ]
        return float(np.mean(own)) if own else None


def collected(work: Path) -> Board:
    """The board of the suites that were run."""
    board = Board()
    for suite in SUITES:
        folder = work / suite
        if not (folder / "run.json").is_file():
            board.missing.append(f"{suite}: not run")
            continue
        report = RunReport.from_folder(folder)
        made, (done, parts) = report.run_folder.manifest, report.run_folder.count_parts()
        board.made.append(f"{suite} on {made['device']}, {_versions(made['versions'])}")
        if done < parts:
            board.missing.append(f"{suite}: {done} of {parts} parts finished")
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
            label: one.name for label, one in report.suite.row_entries.items() if not one.options
        }
        board.columns += columns_of(suite, report.suite, report.tables.text_values)
    return board


def columns_of(
    name: str, suite: Suite, texts: Mapping[tuple[str, str, str, str], Mapping[int, float]]
) -> Iterator[Column]:
    """The columns of one suite, each over the texts that every method has."""
    better = get_directions(suite)
    for title, own, label, _ in MEASURES:
        for data in suite.data if own == name else ():
            found = {
                method: values
                for (_, of, method, metric), values in texts.items()
                if (of, metric) == (data.name, label)
            }
            shared = sorted(set.intersection(*map(set, found.values()))) if found else []
            if shared:
                values = {m: np.array([v[i] for i in shared]) for m, v in found.items()}
                sign = -1 if better[label] == "lower" else 1
                yield Column(title, data.title or data.name, values, sign)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions
    )


def contents(board: Board, commit: str) -> dict[str, Any]:
    """The board as plain values, methods best first: what the pages are drawn from."""
    ranks = board.ranks()
    order = sorted(board.methods, key=lambda name: ranks[name][""][0])
    methods = []
    for name in order:
        passes, milliseconds = board.cost.get(name, (None, None))
        places = {m: round(ranks[name][m][0], 1) for m in board.measures if m in ranks[name]}
        methods.append(
            {
                "label": name,
                "method": board.names.get(name),
                "rank": _rounded(ranks[name][""]),
                "measures": places,
                "passes": None if passes is None else round(passes, 1),
                "ms": None if milliseconds is None else round(milliseconds, 1),
            }
        )
    measures = []
    for title, suite, label, asked in MEASURES:
        columns = [column for column in board.columns if column.measure == title]
        measured = [name for name in order if title in ranks[name]]
        if columns:
            best_first = sorted(measured, key=lambda name: ranks[name][title][0])
            measures.append(
                {
                    "title": title,
                    "suite": suite,
                    "label": label,
                    "asked": asked,
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
        "notes": words(board, commit),
    }


def _rounded(rank: tuple[float, float, float]) -> list[float]:
    return [round(value, 1) for value in rank]


def _measure_row(
    name: str, rank: tuple[float, float, float], columns: list[Column]
) -> dict[str, Any]:
    """A method's rank in one measure, and its mean on each task."""
    means = []
    for column in columns:
        values = column.values.get(name)
        means.append(None if values is None else round(float(values.mean()), 3))
    return {"label": name, "rank": _rounded(rank), "means": means}


def words(board: Board, commit: str) -> list[str]:
    """What stands around the tables."""
    missing = [f"Left out: {one}." for one in board.missing]
    return [
        *missing,
        "Made with " + "; ".join(board.made) + f"; seed {SEED}, at commit `{commit}`.",
    ]


def table(board: Board, commit: str) -> dict[str, object]:
    """What the package shows: of methods without options, by their registered names."""
    ranks = board.ranks()
    own = {board.names[row]: row for row in board.methods if row in board.names}
    means = {name: board.mean(row, FAITHFUL) for name, row in own.items()}
    texts = sum(column.texts for column in board.columns if column.measure == FAITHFUL)
    return {
        "commit": commit,
        "texts": texts,
        "means": {name: round(mean, 4) for name, mean in means.items() if mean is not None},
        "ranks": {name: [round(one, 1) for one in ranks[row][""]] for name, row in own.items()},
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
    given = parser.parse_args()
    commit = given.commit or here()
    if given.data and not given.report:
        wish = Wish(given.models and given.models.resolve(), given.data.resolve(), given.work.resolve(),
                    PAGES, given.device, given.limit, 1, SUITES, commit)  # fmt: skip
        for name in SUITES:
            run(wish, name)
    board = collected(given.work.resolve())
    content = contents(board, commit)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write_text(PAGES / leaderboard_page.DATA.name, text + "\n")
    for name, page in leaderboard_page.render_files(content).items():
        write_text(PAGES / name, page)
    write_text(TABLE, json.dumps(table(board, commit), indent=1) + "\n")


if __name__ == "__main__":
    main()
