"""A run's folder: its plan, its parts, and who works in it.

A part is done when its manifest stands beside its rows and names their hash; both are written beside
and renamed, the manifest last. So a stop at any moment leaves whole parts only, and what was half
done is done again.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenlight.bench.plan import Cell, Part, Plan
from tokenlight.bench.suite import Suite
from tokenlight.bench.suite import read as read_suite
from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.files.documents import json_in
from tokenlight.files.write import write_parquet, write_text
from tokenlight.scale.lock import refuse_other

FORMAT = 1
AGAIN = "the same bench run command makes it again"
NUMBERS = {"example": "int64", "tokens": "int64"}
TIMINGS = (
    *("model", "data", "method", "first", "examples"),
    *("seconds", "explain_seconds", "measure_seconds"),
    *("explain_forwards", "explain_backwards", "measure_forwards", "forward_tokens"),
    *("bytes", "device"),
)
TEXTS = ("target", "predicted", "label", "error", "attribution")


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
            plan = Plan.from_dict(manifest["plan"])
        except FileNotFoundError as missing:
            raise DamagedFile(
                f"{place} holds no benchmark run; make one with: tokenlight bench run SUITE -o {place}"
            ) from missing
        except (OSError, ValueError, KeyError, TypeError) as broken:
            raise DamagedFile(
                f"{place / 'run.json'} is damaged ({broken!r}); delete it."
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

    def place(self, part: Part, ending: str) -> Path:
        """Where a file of a part stands; ``ending`` is parquet, json or failed.json."""
        cell = self.plan.cells[part.cell]
        return self.folder / "parts" / cell.folder / f"{part.first:08d}.{ending}"

    def heads_file(self, cell: Cell) -> Path:
        """The heads file that the run makes for a cell's model; of one that was given, a copy."""
        return self.folder / "heads" / f"{cell.pair}.json"

    def done(self, part: Part) -> bool:
        """Whether a part stands whole on the disk."""
        rows = self.place(part, "parquet")
        return self.place(part, "json").exists() and rows.exists() and rows.stat().st_size > 0

    def write(self, part: Part, rows: Sequence[Mapping[str, Any]], said: Mapping[str, Any]) -> None:
        """Write a part: rows first, then the manifest that makes it count."""
        cell = self.plan.cells[part.cell]
        kinds = columns([one.label for one in self.plan.metrics_for(cell.data)])
        content = write_parquet(self.place(part, "parquet"), rows, kinds=kinds)
        manifest = {
            **self._belonging(part),
            "checkpoint": cell.checkpoint,
            "seed": self.suite.seed,
            "batch_tokens": self.plan.batch_tokens,
            "versions": self.plan.settings["versions"],
            **said,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        text = json.dumps(manifest, ensure_ascii=False, indent=1)
        write_text(self.place(part, "json"), text)
        self.place(part, "failed.json").unlink(missing_ok=True)

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
            self._content(part)
        except DamagedFile as broken:
            return str(broken)
        return ""

    def fail(self, part: Part, reason: str) -> None:
        """Note that a part could not be made; the next run tries it again."""
        text = json.dumps({"reason": reason}, ensure_ascii=False)
        write_text(self.place(part, "failed.json"), text)

    def failure(self, part: Part) -> str:
        """Why a part could not be made, empty where it was not tried or is done."""
        place = self.place(part, "failed.json")
        if not place.exists() or self.done(part):
            return ""
        try:
            return str(json_in(place)["reason"])
        except (OSError, ValueError, KeyError):
            return "unknown"

    def forget(self, part: Part) -> None:
        """Take a part back, so that it is made again."""
        self.place(part, "json").unlink(missing_ok=True)
        self.place(part, "parquet").unlink(missing_ok=True)

    def said(self, part: Part) -> dict[str, Any]:
        """A finished part's manifest."""
        place = self.place(part, "json")
        try:
            found: dict[str, Any] = json_in(place)
        except (OSError, ValueError) as broken:
            raise DamagedFile(f"{place} is damaged; {AGAIN}.") from broken
        expected = self._belonging(part)
        other = [
            key
            for key in expected
            if not isinstance(found, dict) or found.get(key) != expected[key]
        ]
        if other:
            raise DamagedFile(
                f"{place} is of another part or run ({', '.join(other)} differ); {AGAIN}."
            )
        return found

    def rows_of(self, part: Part) -> list[dict[str, Any]]:
        """A finished part's rows, checked against the manifest's hash."""
        parquet = MissingExtra.importing("pyarrow.parquet", "bench", "reading a run")
        rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(self._content(part))).to_pylist()
        return rows

    def _content(self, part: Part) -> bytes:
        place = self.place(part, "parquet")
        try:
            content = place.read_bytes()
        except OSError as missing:
            raise DamagedFile(f"{place} cannot be read: {missing}.") from missing
        if hashlib.sha256(content).hexdigest() != self.said(part).get("sha256"):
            raise DamagedFile(f"{place} is not the file its manifest names; {AGAIN}.")
        return content

    def rows(
        self, model: str | None = None, data: str | None = None, method: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Rows of finished parts, each with the names of its model, data set and method."""
        for part in self.parts:
            cell = self.plan.cells[part.cell]
            names = {"model": cell.model, "data": cell.data, "method": cell.method}
            wanted = {"model": model, "data": data, "method": method}
            if all(wanted[k] in (None, names[k]) for k in names) and self.done(part):
                yield from (names | row for row in self.rows_of(part))

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


def columns(metrics: Sequence[str]) -> dict[str, str]:
    """The columns of a part and their kinds."""
    found = dict(NUMBERS) | dict.fromkeys(TEXTS, "string")
    for label in metrics:
        found |= {
            label: "double",
            f"{label}.curve": "list<double>",
            f"{label}.parts": "string",
            f"{label}.detail": "string",
            f"{label}.skipped": "string",
        }
    return found
