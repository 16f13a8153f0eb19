"""A run's folder: its plan, its parts (see :mod:`tokenlight.files.parts`), and where it stands."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenlight.bench.plan import Cell, Part, Plan
from tokenlight.bench.suite import Suite
from tokenlight.bench.suite import read as read_suite
from tokenlight.errors import BadInput, DamagedFile
from tokenlight.files.documents import json_in
from tokenlight.files.parts import manifest_of, read_part, refuse_other, worked_in, write_part
from tokenlight.files.write import write_text

FORMAT = 2
TIMINGS = (
    *("model", "data", "method", "first", "examples"),
    *("seconds", "explain_seconds", "measure_seconds"),
    *("explain_forwards", "explain_backwards", "measure_forwards", "forward_tokens"),
    *("bytes", "device"),
)


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, opened: what it will do and what is done."""

    folder: Path
    suite: Suite
    plan: Plan
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "RunFolder":
        """Read a run's folder; DamagedFile where it is none."""
        place = Path(folder)
        try:
            manifest = json_in(place / "run.json")
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r:.20}, not {FORMAT}")
            plan = Plan.from_dict(manifest["plan"])
        except FileNotFoundError as missing:
            raise DamagedFile(
                f"{place} holds no benchmark run; make one with: tokenlight bench run SUITE -o {place}"
            ) from missing
        except (OSError, ValueError, KeyError, TypeError) as broken:
            raise DamagedFile(
                f"{place / 'run.json'} is damaged, or of another version ({broken!r}); begin another run "
                "with -o."
            ) from broken
        suite, _ = read_suite(place / "suite.yaml")
        # Unnamed, the copy would be called as its file is: `suite`.
        suite = replace(suite, name=str(manifest.get("suite", suite.name)))
        if suite.digest() != manifest.get("digest"):
            raise DamagedFile(
                f"{place / 'suite.yaml'} is not the suite that this run was begun with; put it back, or "
                "begin another run with -o."
            )
        return cls(place, suite, plan, manifest)

    @classmethod
    def begin(cls, folder: Path, suite_file: Path, suite: Suite, plan: Plan) -> "RunFolder":
        """Write the plan into a folder; one that holds another run is refused."""
        if (folder / "run.json").exists():
            before = cls.open(folder)
            refuse_other(f"{folder} holds a run", before.plan.settings, plan.settings)
            return before
        refuse_foreign(folder)
        write_text(folder / "suite.yaml", suite_file.read_text(encoding="utf-8"))
        manifest = {
            "format": FORMAT,
            "suite": suite.name,
            "digest": suite.digest(),
            "seed": suite.seed,
            "versions": plan.settings["versions"],
            "device": plan.device,
            "plan": plan.to_dict(),
        }
        for cell in plan.cells:  # a run that is taken elsewhere can still draw its heads
            given = cell.options.get("heads")
            if cell.runs and isinstance(given, str):
                place = folder / "heads" / f"{cell.pair}.json"
                write_text(place, Path(given).read_text(encoding="utf-8"))
        text = json.dumps(manifest, ensure_ascii=False, indent=1, default=str)
        write_text(folder / "run.json", text)
        return cls.open(folder)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, run or not."""
        return self.plan.cells

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the run, in order."""
        return tuple(self.plan.parts(self.suite))

    def place(self, part: Part, ending: str = "jsonl") -> Path:
        """Where a part stands, or (``failed.txt``) why it could not be made."""
        cell = self.plan.cells[part.cell]
        return self.folder / "parts" / cell.folder / f"{part.first:08d}.{ending}"

    def heads_file(self, cell: Cell) -> Path:
        """The heads file that the run makes for a cell's model; of one that was given, a copy."""
        return self.folder / "heads" / f"{cell.pair}.json"

    def done(self, part: Part) -> bool:
        """Whether a part stands on the disk."""
        return self.place(part).exists()

    def write(self, part: Part, rows: Iterable[Mapping[str, Any]], said: Mapping[str, Any]) -> None:
        """Write a part with what its manifest says of how it was made."""
        manifest = {
            **self._belonging(part),
            "checkpoint": self.plan.cells[part.cell].checkpoint,
            "seed": self.suite.seed,
            "batch_tokens": self.plan.batch_tokens,
            "versions": self.plan.settings["versions"],
            **said,
        }
        write_part(self.place(part), rows, manifest)
        self.place(part, "failed.txt").unlink(missing_ok=True)

    def _belonging(self, part: Part) -> dict[str, Any]:
        """What a manifest must say to be this part's of this run, with its data and models."""
        cell = self.plan.cells[part.cell]
        settings = json.dumps(self.plan.settings, sort_keys=True, default=str)
        return {
            "format": FORMAT,
            "suite": self.manifest["digest"],
            "settings": hashlib.sha256(settings.encode()).hexdigest(),
            "model": cell.model,
            "data": cell.data,
            "method": cell.method,
            "first": part.first,
            "examples": part.count,
        }

    def damage(self, part: Part) -> str:
        """Why a part that is done does not count, empty where it is whole."""
        try:
            self.rows_of(part)
        except DamagedFile as broken:
            return str(broken)
        return ""

    def fail(self, part: Part, reason: str) -> None:
        """Note that a part could not be made; the next run tries it again."""
        write_text(self.place(part, "failed.txt"), reason)

    def failure(self, part: Part) -> str:
        """Why a part could not be made, empty where it was not tried or is done."""
        place = self.place(part, "failed.txt")
        there = place.exists() and not self.done(part)
        return place.read_text("utf-8", errors="replace") if there else ""

    def forget(self, part: Part) -> None:
        """Take a part back, so that it is made again."""
        self.place(part).unlink(missing_ok=True)

    def said(self, part: Part) -> dict[str, Any]:
        """A finished part's manifest."""
        return manifest_of(self.place(part), self._belonging(part))

    def rows_of(self, part: Part) -> list[dict[str, Any]]:
        """A finished part's rows, checked against the manifest's hash."""
        return read_part(self.place(part), self._belonging(part))

    def rows(
        self, model: str | None = None, data: str | None = None, method: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows of finished parts, each with the names of its model, data set and method."""
        for part in self.parts:
            cell = self.plan.cells[part.cell]
            names = {"model": cell.model, "data": cell.data, "method": cell.method}
            wanted = {"model": model, "data": data, "method": method}
            if all(wanted[k] in (None, names[k]) for k in names) and self.done(part):
                yield from (row | names for row in self.rows_of(part))

    def manifests(self, cell: int | None = None) -> list[dict[str, Any]]:
        """What the finished parts say of themselves: how many failed, what they took."""
        own = (part for part in self.parts if cell in (None, part.cell))
        return [self.said(part) for part in own if self.done(part)]

    def progress(self) -> tuple[int, int]:
        """Finished parts, of how many."""
        return sum(self.done(part) for part in self.parts), len(self.parts)


def refuse_foreign(folder: Path) -> None:
    """A folder with something else in it is not made a run of."""
    if not folder.exists() or (folder / "run.json").exists():
        return
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file; give a folder with -o.")
    # A run that was stopped in its first moment has no more than this.
    first = {"suite.yaml", "heads"}
    found = {one.name for one in folder.iterdir() if not one.name.startswith(".")} - first
    if found:
        raise BadInput(
            f"{folder} holds other things ({', '.join(sorted(found)[:3])}) and no benchmark run; give "
            "another folder with -o."
        )


@dataclass(frozen=True)
class CellStatus:
    """One cell: its parts, the examples that failed in finished ones, and the seconds they took.

    ``damaged``: parts that are there and do not count; the same bench run command makes them again.
    """

    cell: Cell
    done: int
    damaged: int
    failed: int
    total: int
    failed_examples: int
    seconds: float
    trouble: str


@dataclass(frozen=True)
class Status:
    """All cells, who works on them now (empty: nobody), and the parts of all cells together."""

    run: RunFolder
    cells: tuple[CellStatus, ...]
    worker: str
    done: int
    damaged: int
    failed: int
    total: int

    @property
    def left(self) -> float | None:
        """Seconds of work of one worker that are left, by what the finished parts took: a cell's
        own, else its method's on other data, else any. None where nothing is finished."""
        finished = [one for one in self.cells if one.done]
        if not finished:
            return None

        def each(chosen: list[CellStatus]) -> float:
            return sum(one.seconds for one in chosen) / sum(one.done for one in chosen)

        seconds = 0.0
        for one in self.cells:
            missing = one.total - one.done
            alike = [other for other in finished if other.cell.method == one.cell.method]
            seconds += missing * each([one] if one.done else alike or finished)
        return seconds


def status(folder: str | Path) -> Status:
    """Read a run's folder; also while it is worked in."""
    run = RunFolder.open(folder)
    found = []
    for cell in run.cells:
        own = [part for part in run.parts if part.cell == cell.number] if cell.runs else []
        damage = {part: run.damage(part) for part in own if run.done(part)}
        said = [run.said(part) for part, why in damage.items() if not why]
        broken = [why for why in damage.values() if why]
        troubles = [trouble for part in own if (trouble := run.failure(part))]
        found.append(
            CellStatus(
                cell=cell,
                done=len(said),
                damaged=len(broken),
                failed=len(troubles),
                total=len(own),
                failed_examples=sum(one["failed"] for one in said),
                seconds=sum(one["seconds"] for one in said),
                trouble=next(iter((*broken, *troubles)), ""),
            )
        )
    kinds = ("done", "damaged", "failed", "total")
    sums = [sum(getattr(one, kind) for one in found) for kind in kinds]
    return Status(run, tuple(found), worked_in(run.folder), *sums)


def in_time(seconds: float) -> str:
    """``95 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
