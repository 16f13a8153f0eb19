"""The folder of a run: its plan, its parts (see :mod:`tokenlight.files.parts`), and its progress."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tokenlight.bench.plan import Cell, Part, Plan
from tokenlight.bench.suite import Suite, read_suite_file
from tokenlight.bench.suite_entries import rename_old_keys
from tokenlight.errors import BadInput, DamagedFile, join_first
from tokenlight.files.parsing import read_json
from tokenlight.files.parts import (
    FolderCheck,
    check_same_settings,
    read_manifest,
    read_part,
    write_part,
)
from tokenlight.files.write import write_text

FORMAT_VERSION = 2  # of run.json and of the manifests; other versions are refused
# Fields of the plan in run.json of earlier versions, and what they are called now.
OLD_PLAN_KEYS = {"slice": "part_size"}
OLD_CELL_KEYS = {
    "makes_heads": "computes_heads_file",
    "method": "method_label",
    "name": "method_name",
}
OLD_COMPLETED_KEYS = {"num_asked": "num_prompts"}
TABLES = ("cells", "scores", "curves", "failures", "timings")  # merged from the parts, each a .csv


@dataclass(frozen=True)
class RunFolder:
    """An open folder of a run.

    Args:
        folder: The folder.
        suite: The copy of the suite in the folder.
        plan: The plan of the run.
        manifest: Content of ``run.json``.
    """

    folder: Path
    suite: Suite
    plan: Plan
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "RunFolder":
        """Read the folder of a run.

        Raises:
            DamagedFile: The folder holds no run that can be read, or its suite was changed.
        """
        path = Path(folder)
        manifest, plan = _read_manifest_and_plan(path)
        suite_path = path / "suite.yaml"
        suite, _ = read_suite_file(suite_path)
        # A suite without a name is named after its file, which is `suite.yaml` for every copy.
        suite = replace(suite, name=str(manifest.get("suite", suite.name)))
        if suite.compute_digest() != manifest.get("digest"):
            raise DamagedFile(
                f"{suite_path} is not the suite that this run was started with. Restore that file.",
                code="run-suite-changed",
            )
        return cls(path, suite, plan, manifest)

    @classmethod
    def create_or_resume(
        cls, folder: Path, suite_file: Path, suite: Suite, plan: Plan
    ) -> "RunFolder":
        """Write the plan into a folder, or open the run that is there.

        Args:
            folder: The folder of the run; it is made if it does not exist.
            suite_file: The YAML file; a copy of it is kept in the folder.
            suite: The suite that was read from it.
            plan: All cells, and the settings that a run must share to be continued.

        Raises:
            BadInput: The folder holds a run with other settings.
        """
        if (folder / "run.json").exists():
            existing = cls.open(folder)
            check_same_settings(f"{folder} holds a run", existing.plan.settings, plan.settings)
            return existing
        write_text(folder / "suite.yaml", suite_file.read_text(encoding="utf-8"))
        manifest = {
            "format": FORMAT_VERSION,
            "suite": suite.name,
            "digest": suite.compute_digest(),
            "seed": suite.seed,
            "versions": plan.settings["versions"],
            "device": plan.device,
            "plan": asdict(plan),
        }
        cls(folder, suite, plan, manifest)._copy_heads_files()
        # The manifest comes last: a folder with run.json has everything else.
        serialized = json.dumps(manifest, ensure_ascii=False, indent=1, default=str)
        write_text(folder / "run.json", serialized)
        return cls.open(folder)

    def _copy_heads_files(self) -> None:
        """Copy heads files that were given, so that a run that is moved can still draw its heads."""
        for cell in self.cells:
            heads = cell.options.get("heads")
            if cell.is_run and isinstance(heads, str):
                write_text(self.heads_path(cell), Path(heads).read_text(encoding="utf-8"))

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.plan.cells

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.plan.iter_parts(self.suite))

    def part_path(self, part: Part, extension: str = "jsonl") -> Path:
        """Return the file of a part, or with ``failed.txt`` the file that says why it could not be made."""
        cell_folder = self.folder / "parts" / self.cells[part.cell].relative_folder
        return cell_folder / f"{part.first:08d}.{extension}"

    def heads_path(self, cell: Cell) -> Path:
        """Return the heads file of a model in this folder, computed by the run or copied."""
        return self.folder / "heads" / f"{cell.model_data_slug}.json"

    def is_done(self, part: Part) -> bool:
        return self.part_path(part).exists()

    def write_part(
        self, part: Part, rows: Iterable[Mapping[str, Any]], metadata: Mapping[str, Any]
    ) -> None:
        """Write a part with its manifest; ``metadata`` is added to the manifest.

        Args:
            part: Which examples of which cell the rows are for.
            rows: One JSON object per example and metric.
            metadata: More entries for the manifest, such as how long the part took.
        """
        manifest = {
            **self.build_expected_manifest(part),
            "checkpoint": self.cells[part.cell].checkpoint,
            "seed": self.suite.seed,
            "batch_tokens": self.plan.batch_tokens,
            "versions": self.plan.settings["versions"],
            **metadata,
        }
        # The part itself comes first: a part that is there counts, whatever an earlier attempt left.
        write_part(self.part_path(part), rows, manifest)
        self.part_path(part, "failed.txt").unlink(missing_ok=True)

    def build_expected_manifest(self, part: Part) -> dict[str, Any]:
        """Return what the manifest of a file must say for it to be this part of this run."""
        return {
            "format": FORMAT_VERSION,
            "suite": self.manifest["digest"],
            "settings": compute_settings_digest(self.plan),
            **self.cells[part.cell].identifiers,
            "first": part.first,
            "examples": part.count,
        }

    def find_error(self, part: Part) -> str:
        """Return why a part is damaged or could not be made; empty if it is intact or was not tried."""
        try:
            if self.is_done(part):
                self.read_rows(part)
                return ""
            return self.part_path(part, "failed.txt").read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except DamagedFile as error:
            return str(error)

    def read_manifest(self, part: Part) -> dict[str, Any]:
        return read_manifest(self.part_path(part), self.build_expected_manifest(part))

    def read_rows(self, part: Part) -> list[dict[str, Any]]:
        """Read the rows of a finished part, and check them against the hash of its manifest."""
        return read_part(self.part_path(part), self.build_expected_manifest(part))

    def iter_rows(self, **filters: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of finished parts, each with its model, data set and method.

        Args:
            **filters: Only rows of this ``model``, ``data`` or ``method``.
        """
        for part in self.parts:
            identifiers = self.cells[part.cell].identifiers
            is_selected = filters.items() <= identifiers.items()
            if is_selected and self.is_done(part):
                for row in self.read_rows(part):
                    yield row | identifiers

    def read_manifests(self, cell_number: int | None = None) -> list[dict[str, Any]]:
        """Read the manifests of finished parts, of one cell or of all."""
        manifests = []
        for part in self.parts:
            is_selected = cell_number is None or part.cell == cell_number
            if is_selected and self.is_done(part):
                manifests.append(self.read_manifest(part))
        return manifests

    def count_parts(self) -> tuple[int, int]:
        """Return the number of finished parts, and of all parts."""
        num_done = sum(self.is_done(part) for part in self.parts)
        return num_done, len(self.parts)


def _read_manifest_and_plan(folder: Path) -> tuple[Mapping[str, Any], Plan]:
    try:
        manifest = read_json(folder / "run.json")
        if manifest["format"] != FORMAT_VERSION:
            raise ValueError(f"format {manifest['format']!r:.20} instead of {FORMAT_VERSION}")
        return manifest, TypeAdapter(Plan).validate_python(_rename_plan_keys(manifest["plan"]))
    except FileNotFoundError as error:
        raise DamagedFile(
            f"{folder} is not the folder of a benchmark run: it has no run.json. Give another folder.",
            code="run-not-found",
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(
            f"The benchmark run in {folder} cannot be read ({error!r}). Give another folder.",
            code="run-unreadable",
        ) from error


def _rename_plan_keys(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a run.json, maybe of an earlier version, under the present names of its fields."""
    fields = rename_old_keys(plan, OLD_PLAN_KEYS)
    fields["cells"] = [rename_old_keys(cell, OLD_CELL_KEYS) for cell in fields["cells"]]
    completed = {}
    for name, prompts in fields.get("completed", {}).items():
        completed[name] = rename_old_keys(prompts, OLD_COMPLETED_KEYS)
    fields["completed"] = completed
    return fields


def check_run(folder: Path) -> FolderCheck:
    """Check every part of a run against its checksum, and whether the merged tables are there.

    Raises:
        DamagedFile: The folder holds no run that can be read.
    """
    run = RunFolder.open(folder)
    check = FolderCheck(len(run.parts))
    for part in run.parts:
        check.add_part(run.part_path(part), run.build_expected_manifest(part))
    check.add_products(folder, [f"{name}.csv" for name in TABLES])
    return check


def check_folder_unused(folder: Path, plan: Plan) -> None:
    """Check that a folder is empty, or holds nothing but a run.

    Raises:
        BadInput: The folder holds other files.
    """
    if not folder.is_dir() or (folder / "run.json").exists():
        return
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    names -= {"suite.yaml", "heads"}  # a run that was stopped at its very start has only these
    if "parts" in names and _holds_only_parts_of(plan, folder / "parts"):
        # run.json was lost. Parts with the same settings are kept, and tables are written again.
        names -= {"parts", *(f"{name}.csv" for name in TABLES)}
    if names:
        raise BadInput(
            f"{folder} contains other files ({join_first(sorted(names), 3)}). Give another folder with -o.",
            code="run-folder-not-empty",
        )


def _holds_only_parts_of(plan: Plan, folder: Path) -> bool:
    """Return whether there are readable parts, and all of them belong to a run with these settings."""
    settings_digests: set[Any] = set()
    for path in folder.rglob("*.jsonl"):
        with suppress(DamagedFile):  # damaged parts are made again
            settings_digests.add(read_manifest(path, {}).get("settings"))
    return settings_digests == {compute_settings_digest(plan)}


def compute_settings_digest(plan: Plan) -> str:
    """Hash everything that the numbers of a run depend on."""
    settings = json.dumps(plan.settings, sort_keys=True, default=str)
    return hashlib.sha256(settings.encode()).hexdigest()


def read_status(folder: str | Path) -> list[tuple[Cell, Counter[Any], str]]:
    """Read the progress of every cell, also while the run is in progress.

    Returns:
        For each cell: the cell; how many parts are ``done``, ``failed`` (not made, or damaged) and ``total``,
        with ``failed examples`` and ``seconds`` of finished parts; and the first error.
    """
    run = RunFolder.open(folder)
    status = []
    for cell in run.cells:
        counts: Counter[Any] = Counter(done=0, failed=0, total=0)
        first_error = ""
        for part in run.parts:
            if part.cell != cell.number:
                continue
            # A damaged part counts as failed, since the next run makes it again.
            counts["total"] += 1
            error = run.find_error(part)
            if error:
                counts["failed"] += 1
                first_error = first_error or error
            elif run.is_done(part):
                manifest = run.read_manifest(part)
                counts["done"] += 1
                counts["failed examples"] += manifest["failed"]
                counts["seconds"] += manifest["seconds"]
        status.append((cell, counts, first_error))
    return status


def format_duration(seconds: float) -> str:
    """Format a duration for people.

    Example:
        >>> from tokenlight.bench.run_folder import format_duration
        >>> format_duration(95), format_duration(720), format_duration(12240)
        ('95 s', '12 min', '3.4 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
