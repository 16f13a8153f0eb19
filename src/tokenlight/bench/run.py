"""A suite run to its end: plan, parts by an engine, merged tables. Stopped anywhere, it goes on."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

from tokenlight.bench import request as planning
from tokenlight.bench import tables
from tokenlight.bench.part import Making
from tokenlight.bench.plan import Part, Request, Task
from tokenlight.bench.store import RunFolder, refuse_foreign
from tokenlight.bench.suite import LIBRARIES, SuiteRefused, find, read
from tokenlight.errors import MissingExtra, TokenlightError
from tokenlight.progress import progress as progress_bar
from tokenlight.scale.engine import Engine
from tokenlight.scale.lock import locked, tidy
from tokenlight.scale.worker import FULL, DiskFull, Outcome


@dataclass(frozen=True)
class RunSummary:
    """What a run came to."""

    run: RunFolder
    made: int  # parts made now
    kept: int  # parts that were there
    failed_examples: int
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
    try:
        with locked(where, crew.crew):
            run = RunFolder.begin(where, place, read_suite, planned)
            tidy(where)
            finished = _Work(run, crew, tell or (lambda _: None)).all(again, progress)
            tables.write(run)
    except OSError as broken:
        if broken.errno not in FULL:
            raise
        raise DiskFull(_full(where, None)) from broken
    return finished


def _full(folder: Path, run: RunFolder | None) -> str:
    told = f"the disk of {folder} is full ({disk_usage(folder).free / 1e6:.1f} MB free)"
    if run is not None:
        done, total = run.progress()
        said = run.manifests()
        each = sum(one["bytes"] for one in said) / len(said) if said else 0.0
        told += f" after {done} of {total} parts"
        if each:
            # Rows, a manifest of about two kilobytes, and the tables at the end.
            told += f"; the rest needs about {(total - done) * (each + 4096) / 1e6 + 1:.1f} MB"
    return f"{told}. Free some room, then give the same command: it goes on from there."


@dataclass(frozen=True)
class _Work:
    """The parts of a run that are still to be made."""

    run: RunFolder
    engine: Engine
    tell: Callable[[str], None]

    def all(self, again: bool, progress: bool | None) -> RunSummary:
        run = self.run
        for part in run.parts:
            if not run.done(part):
                continue
            if why := run.damage(part):
                self.tell(why)
            if why or (again and run.said(part).get("failed")):
                run.forget(part)
        waiting = [part for part in run.parts if not run.done(part)]
        failed: list[tuple[Part, str]] = []
        kept = len(run.parts) - len(waiting)
        examples = 0
        left = Counter(part.cell for part in waiting)
        heads = self._heads(waiting)
        with progress_bar("parts", len(heads) + len(waiting), progress) as advance:
            # An interrupt may come anywhere: closing ends the workers before it goes on its way.
            with closing(self._outcomes(heads)) as outcomes:
                for outcome in outcomes:
                    advance(1)
                    if outcome.trouble:  # no part of that model can be made without them
                        raise TokenlightError(f"the heads file was not made: {outcome.trouble}")
            tasks = [Task("part", part) for part in waiting]
            with closing(self._outcomes(tasks)) as outcomes:
                for outcome in outcomes:
                    part = waiting[outcome.task]
                    if outcome.trouble:
                        failed.append((part, outcome.trouble))
                        run.fail(part, outcome.trouble)
                    examples += outcome.said.get("failed", 0)
                    left[part.cell] -= 1
                    if not left[part.cell]:
                        self._say(part.cell)
                    advance(1)
        return RunSummary(run, len(waiting) - len(failed), kept, examples, tuple(failed))

    def _heads(self, waiting: Sequence[Part]) -> list[Task]:
        """One task for each heads file that is wanted and not there."""
        found: dict[Path, Task] = {}
        for part in waiting:
            cell = self.run.plan.cells[part.cell]
            place = self.run.heads_file(cell)
            if cell.makes_heads and not place.exists():
                found.setdefault(place, Task("heads", part))
        return list(found.values())

    def _outcomes(self, tasks: Sequence[Task]) -> Generator[Outcome, None, None]:
        if not tasks:
            return
        making = Making(str(self.run.folder.resolve()))
        results = self.engine.results(making, tasks, self.run.plan.device)
        with closing(results):
            for outcome in results:
                if outcome.full:
                    raise DiskFull(_full(self.run.folder, self.run))
                yield outcome

    def _say(self, number: int) -> None:
        """A sentence when the last part of a cell is in."""
        cell = self.run.plan.cells[number]
        said = self.run.manifests(number)
        seconds = sum(one["seconds"] for one in said)
        failed = sum(one["failed"] for one in said)
        broken = f", {failed} failed" if failed else ""
        examples = sum(one["examples"] for one in said)
        self.tell(
            f"{cell.model} · {cell.data} · {cell.method}: {examples} examples{broken}, "
            f"{seconds:.1f} s"
        )
