"""A run's folder: its plan, its parts (see :mod:`tokenlight.files.parts`), and where it stands."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tokenlight.bench.plan import Cell, Part, Plan
from tokenlight.bench.suite import Suite
from tokenlight.bench.suite import read as read_suite
from tokenlight.errors import BadInput, DamagedFile, few
from tokenlight.files.documents import json_in
from tokenlight.files.parts import manifest_of, read_part, refuse_other, write_part
from tokenlight.files.write import write_text

FORMAT = 2


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
        place, file = Path(folder), Path(folder, "suite.yaml")
        try:
            manifest = json_in(place / "run.json")
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r:.20}, not {FORMAT}")
            plan = TypeAdapter(Plan).validate_python(manifest["plan"])
        except (OSError, ValueError, KeyError, TypeError) as broken:
            why = "there is no run.json" if isinstance(broken, FileNotFoundError) else repr(broken)
            wrong = f"{place} holds no benchmark run that can be read ({why})"
            raise DamagedFile(f"{wrong}; give another folder.") from broken
        suite, _ = read_suite(file)
        # Unnamed, the copy would be called as its file is: `suite`.
        suite = replace(suite, name=str(manifest.get("suite", suite.name)))
        if suite.digest() != manifest.get("digest"):
            raise DamagedFile(f"{file} is not the suite that this run was begun with; put it back.")
        return cls(place, suite, plan, manifest)

    @classmethod
    def begin(cls, folder: Path, suite_file: Path, suite: Suite, plan: Plan) -> "RunFolder":
        """Write the plan into a folder; one that holds another run is refused."""
        if (folder / "run.json").exists():
            before = cls.open(folder)
            refuse_other(f"{folder} holds a run", before.plan.settings, plan.settings)
            return before
        write_text(folder / "suite.yaml", suite_file.read_text(encoding="utf-8"))
        manifest = {
            "format": FORMAT,
            "suite": suite.name,
            "digest": suite.digest(),
            "seed": suite.seed,
            "versions": plan.settings["versions"],
            "device": plan.device,
            "plan": asdict(plan),
        }
        run = cls(folder, suite, plan, manifest)
        for cell in plan.cells:  # a run that is taken elsewhere can still draw its heads
            given = cell.options.get("heads")
            if cell.runs and isinstance(given, str):
                write_text(run.heads_file(cell), Path(given).read_text(encoding="utf-8"))
        text = json.dumps(manifest, ensure_ascii=False, indent=1, default=str)
        write_text(folder / "run.json", text)
        return cls.open(folder)

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.plan.cells

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.plan.parts(self.suite))

    def place(self, part: Part, ending: str = "jsonl") -> Path:
        """Where a part stands, or (``failed.txt``) why it could not be made."""
        return self.folder / "parts" / self.cells[part.cell].folder / f"{part.first:08d}.{ending}"

    def heads_file(self, cell: Cell) -> Path:
        """The heads file that the run makes for a cell's model; of one that was given, a copy."""
        return self.folder / "heads" / f"{cell.pair}.json"

    def done(self, part: Part) -> bool:
        return self.place(part).exists()

    def write(self, part: Part, rows: Iterable[Mapping[str, Any]], said: Mapping[str, Any]) -> None:
        manifest = {
            **self._belonging(part),
            "checkpoint": self.cells[part.cell].checkpoint,
            "seed": self.suite.seed,
            "batch_tokens": self.plan.batch_tokens,
            "versions": self.plan.settings["versions"],
            **said,
        }
        write_part(self.place(part), rows, manifest)
        self.place(part, "failed.txt").unlink(missing_ok=True)

    def _belonging(self, part: Part) -> dict[str, Any]:
        """What a manifest must say to be this part's of this run, with its data and models."""
        settings = json.dumps(self.plan.settings, sort_keys=True, default=str)
        return {
            "format": FORMAT,
            "suite": self.manifest["digest"],
            "settings": hashlib.sha256(settings.encode()).hexdigest(),
            **self.cells[part.cell].names,
            "first": part.first,
            "examples": part.count,
        }

    def trouble(self, part: Part) -> str:
        """Why a part does not count, or could not be made; empty where it is whole, or was not tried."""
        try:
            if self.done(part):
                self.rows_of(part)
                return ""
            return self.place(part, "failed.txt").read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except DamagedFile as broken:
            return str(broken)

    def said(self, part: Part) -> dict[str, Any]:
        return manifest_of(self.place(part), self._belonging(part))

    def rows_of(self, part: Part) -> list[dict[str, Any]]:
        """A finished part's rows, checked against the manifest's hash."""
        return read_part(self.place(part), self._belonging(part))

    def rows(self, **wanted: str) -> Iterator[dict[str, Any]]:
        """Rows of finished parts with the names of their model, data set and method; ``wanted``: of these."""
        for part in self.parts:
            names = self.cells[part.cell].names
            if wanted.items() <= names.items() and self.done(part):
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
    there = folder.iterdir() if folder.is_dir() and not (folder / "run.json").exists() else ()
    # A run that was stopped in its first moment has no more than these.
    found = {one.name for one in there if one.name[0] != "."} - {"suite.yaml", "heads"}
    if found:
        told = few(sorted(found), 3)
        raise BadInput(f"{folder} holds other things ({told}); give another folder with -o.")


def status(folder: str | Path) -> list[tuple[Cell, Counter[Any], str]]:
    """Of each cell, also while it is worked on: how many parts are ``done``, ``failed`` (not made, or
    damaged) and all, ``failed examples`` and ``seconds`` of those done; and the first trouble."""
    run, found = RunFolder.open(folder), []
    for cell in run.cells:
        own = [part for part in run.parts if part.cell == cell.number]
        troubles = {part: why for part in own if (why := run.trouble(part))}
        said = [run.said(part) for part in own if run.done(part) and part not in troubles]
        counts: Counter[Any] = Counter(done=len(said), failed=len(troubles), total=len(own))
        for one in said:
            counts.update({"failed examples": one["failed"], "seconds": one["seconds"]})
        found.append((cell, counts, next(iter(troubles.values()), "")))
    return found


def in_time(seconds: float) -> str:
    """``95 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
