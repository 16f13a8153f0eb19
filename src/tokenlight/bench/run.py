"""A suite run to its end: plan, parts by an engine, merged tables. Stopped anywhere, it goes on."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tokenlight.bench import request as planning
from tokenlight.bench import tables
from tokenlight.bench.part import Making
from tokenlight.bench.plan import Part, Request
from tokenlight.bench.store import RunFolder, refuse_foreign
from tokenlight.bench.suite import LIBRARIES, SuiteRefused, find, read
from tokenlight.errors import MissingExtra
from tokenlight.files.parts import locked, tidy
from tokenlight.files.write import write_text
from tokenlight.progress import progress as progress_bar
from tokenlight.scale.engine import Engine, outcomes, writing


@dataclass(frozen=True)
class RunSummary:
    """What a run came to."""

    run: RunFolder
    made: int  # parts made now
    kept: int  # parts that were there
    failed_parts: tuple[tuple[Part, str], ...]

    @property
    def fruitless(self) -> bool:
        """Whether there are examples and every one of them failed."""
        said = self.run.manifests()
        return bool(said) and all(one["failed"] == one["examples"] for one in said)

    def in_words(self) -> Iterator[str]:
        """What was run and what was not, line by line; nothing is left out silently."""
        run, kept = self.run, f", {self.kept} kept" if self.kept else ""
        ran = sum(cell.runs for cell in run.cells)
        yield f"{ran} of {len(run.cells)} cells run: {self.made} parts made{kept}"
        reasons: dict[str, list[str]] = {}
        for cell in run.cells:
            if not cell.runs:
                reasons.setdefault(cell.reason, []).append(f"{cell.model} · {cell.data}")
        for reason, names in reasons.items():
            yield f"not run: {reason}: {', '.join(dict.fromkeys(names))} ({len(names)} cells)"
        if failed := sum(said["failed"] for said in run.manifests()):
            yield f"failed examples: {failed} (see {run.folder / 'failures.csv'})"
        if self.failed_parts:
            yield f"{len(self.failed_parts)} parts are missing; the same command tries them again"
        if not self.made and not self.kept:
            yield "no part was made, so there is nothing to report"
            return
        yield f"written: {run.folder} (scores.csv, curves.csv, cells.csv, timings.csv)"
        yield f"report: tokenlight bench report {run.folder} --format html"


def run_suite(  # noqa: PLR0913 - the wishes a person has, each by name
    suite: str | Path,
    folder: str | Path,
    request: Request | None = None,
    *,
    engine: Engine | None = None,
    again: bool = False,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> RunSummary:
    """Run a suite (a shipped name or a path) into ``folder``; finished parts are kept.

    ``again``: parts with failed examples are made anew. ``tell`` is called with a sentence whenever
    a cell is finished. SuiteRefused lists every problem before any work.
    """
    MissingExtra.check(LIBRARIES, "bench", "tokenlight bench run")
    place, where = find(suite), Path(folder)
    crew = engine or Engine()
    read_suite, problems = read(place)
    planned, more = planning.plan(read_suite, request or Request())
    if problems or more:
        raise SuiteRefused(read_suite.name, [*problems, *more])
    refuse_foreign(where)
    with writing(where), locked(where, crew.crew):
        run = RunFolder.begin(where, place, read_suite, planned)
        tidy(where)
        finished = _finished(run, crew, again, tell or (lambda _: None), progress)
        tables.write(run)
    return finished


def _finished(
    run: RunFolder, engine: Engine, again: bool, tell: Callable[[str], None], progress: bool | None
) -> RunSummary:
    """What is missing made; ``tell`` hears of parts that do not count, and of every finished cell."""
    for part in (one for one in run.parts if run.done(one)):
        if why := run.trouble(part):
            tell(why)
        if why or (again and run.said(part)["failed"]):
            run.place(part).unlink()
    waiting = [part for part in run.parts if not run.done(part)]
    failed: list[tuple[Part, str]] = []
    left = Counter(part.cell for part in waiting)
    making, where = Making(str(run.folder.resolve())), (run.plan.device, run.folder)
    results = outcomes(engine, making, waiting, where)
    with progress_bar("parts", len(waiting), progress) as advance, closing(results):
        for outcome in results:
            part = waiting[outcome.task]
            if outcome.trouble:
                failed.append((part, outcome.trouble))
                write_text(run.place(part, "failed.txt"), outcome.trouble)
            left[part.cell] -= 1
            if not left[part.cell]:
                said = run.manifests(part.cell)
                taken = f"{sum(one['seconds'] for one in said):.1f} s"
                tell(f"{' · '.join(run.cells[part.cell].names.values())}: {taken}")
            advance(1)
    kept, now = len(run.parts) - len(waiting), len(waiting) - len(failed)
    return RunSummary(run, now, kept, tuple(failed))
