"""Run a suite: plan it, let an engine run its parts, and merge them into tables.

A run that was stopped anywhere continues from its finished parts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tokenlight.bench import planner, tables
from tokenlight.bench.completions import LEFT_OUT_REASON
from tokenlight.bench.part_runner import PartRunner
from tokenlight.bench.plan import Part, RunRequest
from tokenlight.bench.run_folder import RunFolder, check_folder_unused
from tokenlight.bench.suite import REQUIRED_LIBRARIES, InvalidSuite, find_suite, read_suite_file
from tokenlight.errors import MissingExtra
from tokenlight.files.folder_lock import locked_folder
from tokenlight.files.parts import remove_partial_files
from tokenlight.files.write import write_text
from tokenlight.progress import progress_bar
from tokenlight.scale.engine import Engine, folder_errors_reported, iter_outcomes

PartFailure = tuple[Part, str]  # a part that could not be made, and why


@dataclass(frozen=True)
class RunSummary:
    """Summary of a call of :func:`run_suite`.

    Args:
        run_folder: The folder of the run.
        num_parts_made: Number of parts that this call made.
        num_existing: Number of parts that were finished before.
        failed_parts: Parts that could not be made, each with its error.
    """

    run_folder: RunFolder
    num_parts_made: int
    num_existing: int
    failed_parts: tuple[PartFailure, ...]

    @property
    def has_only_failures(self) -> bool:
        """Whether there are examples and every one of them failed."""
        manifests = self.run_folder.read_manifests()
        all_failed = all(manifest["failed"] == manifest["examples"] for manifest in manifests)
        return bool(manifests) and all_failed

    def describe(self) -> Iterator[str]:
        """Yield lines on what was run and what was not."""
        run = self.run_folder
        num_cells_run = sum(cell.is_run for cell in run.cells)
        parts = f"{self.num_parts_made} parts made"
        if self.num_existing:
            parts += f", {self.num_existing} kept"
        yield f"{num_cells_run} of {len(run.cells)} cells run: {parts}"
        yield from self._describe_omitted_cells()
        for name, completed in run.plan.completed.items():
            yield (
                f"{name}: {len(completed.indices):,} of {completed.num_prompts:,} prompts measured; of the "
                f"others, {LEFT_OUT_REASON}"
            )
        num_failed = sum(manifest["failed"] for manifest in run.read_manifests())
        if num_failed:
            yield f"failed examples: {num_failed} (see {run.folder / 'failures.csv'})"
        if self.failed_parts:
            yield f"{len(self.failed_parts)} parts are missing; run the same command again to retry"
        if not self.num_parts_made and not self.num_existing:
            yield "no part was completed, so there is nothing to report"
            return
        yield f"written: {run.folder} (scores.csv, curves.csv, cells.csv, timings.csv)"
        yield f"report: tokenlight bench report {run.folder} --format html"

    def _describe_omitted_cells(self) -> Iterator[str]:
        """Yield one line per reason why cells are not run."""
        names_by_reason: dict[str, list[str]] = {}
        for cell in self.run_folder.cells:
            if not cell.is_run:
                names = names_by_reason.setdefault(cell.reason, [])
                names.append(f"{cell.model} · {cell.data}")
        for reason, names in names_by_reason.items():
            distinct_names = ", ".join(dict.fromkeys(names))
            yield f"not run: {reason}: {distinct_names} ({len(names)} cells)"


def run_suite(  # noqa: PLR0913 - independent settings, all but three by keyword
    suite: str | Path,
    folder: str | Path,
    request: RunRequest | None = None,
    *,
    engine: Engine | None = None,
    retry_failed: bool = False,
    on_message: Callable[[str], None] | None = None,
    progress: bool | None = None,
) -> RunSummary:
    """Run a suite into a folder. Finished parts that are in the folder already are kept.

    Args:
        suite: Name of a shipped suite, or path of a file.
        folder: Folder of the run; it is created, or continued.
        request: Models, data and limits for this run.
        engine: Where workers run; by default in local processes.
        retry_failed: Whether parts with failed examples are made again.
        on_message: Called with a sentence whenever a cell is finished.
        progress: Whether to show a progress bar; by default only in a terminal.

    Returns:
        What was made, kept and failed.

    Raises:
        InvalidSuite: Something is wrong with the suite or the request; every problem is listed.
        BadInput: The folder holds another run or other files.

    Example:
        >>> from tokenlight.bench.run import run_suite
        >>> summary = run_suite("quick", "results")  # doctest: +SKIP
        >>> summary.failed_parts  # doctest: +SKIP
        ()
    """
    MissingExtra.check_installed(REQUIRED_LIBRARIES, "bench", "tokenlight bench run")
    # Plan the run, and report everything that is wrong before any work.
    suite_path = find_suite(suite)
    run_path = Path(folder)
    engine = engine or Engine()
    parsed_suite, suite_problems = read_suite_file(suite_path)
    plan, plan_problems = planner.plan_run(parsed_suite, request or RunRequest())
    if suite_problems or plan_problems:
        raise InvalidSuite(parsed_suite.name, [*suite_problems, *plan_problems])
    check_folder_unused(run_path, plan)
    # Lock the folder: a second runner would write the same parts.
    with folder_errors_reported(run_path), locked_folder(run_path, engine.num_workers):
        run_folder = RunFolder.create_or_resume(run_path, suite_path, parsed_suite, plan)
        remove_partial_files(run_path)
        _remove_invalid_parts(run_folder, on_message, retry_failed=retry_failed)
        summary = _run_missing_parts(run_folder, engine, on_message, progress)
        # The files of the run may have been deleted meanwhile, so they are written again.
        RunFolder.create_or_resume(run_path, suite_path, parsed_suite, plan)
        tables.write_tables(run_folder)
    return summary


def _remove_invalid_parts(
    run_folder: RunFolder, on_message: Callable[[str], None] | None, *, retry_failed: bool
) -> None:
    """Delete parts that are damaged and, with ``retry_failed``, parts with failed examples."""
    for part in run_folder.parts:
        if not run_folder.is_done(part):
            continue
        error = run_folder.find_error(part)
        if error and on_message is not None:
            on_message(error)
        if error or (retry_failed and run_folder.read_manifest(part)["failed"]):
            run_folder.part_path(part).unlink()


def _run_missing_parts(
    run_folder: RunFolder,
    engine: Engine,
    on_message: Callable[[str], None] | None,
    progress: bool | None,
) -> RunSummary:
    """Let the engine make the missing parts, and check afterwards which parts are there."""
    missing_parts = [part for part in run_folder.parts if not run_folder.is_done(part)]
    failures: list[PartFailure] = []
    num_waiting_by_cell = Counter(part.cell for part in missing_parts)
    part_runner = PartRunner(str(run_folder.folder.resolve()))
    outcomes = iter_outcomes(
        engine, part_runner, missing_parts, device=run_folder.plan.device, folder=run_folder.folder
    )
    with progress_bar("parts", len(missing_parts), progress) as advance, closing(outcomes):
        for outcome in outcomes:
            part = missing_parts[outcome.task_index]
            if outcome.error:
                failures.append((part, outcome.error))
                # `bench status` reads the error from this file, also in another process.
                write_text(run_folder.part_path(part, "failed.txt"), outcome.error)
            num_waiting_by_cell[part.cell] -= 1
            if num_waiting_by_cell[part.cell] == 0 and on_message is not None:
                on_message(_describe_finished_cell(run_folder, part.cell))
            advance(1)
    # The summary describes the folder as it is, not what the workers reported.
    failures += _find_deleted_parts(run_folder, failures)
    failed_parts = {part for part, _ in failures}
    num_parts_made = len(set(missing_parts) - failed_parts)
    num_existing = len(run_folder.parts) - len(failures) - num_parts_made
    return RunSummary(
        run_folder=run_folder,
        num_parts_made=num_parts_made,
        num_existing=num_existing,
        failed_parts=tuple(failures),
    )


def _describe_finished_cell(run_folder: RunFolder, cell_number: int) -> str:
    cell = run_folder.cells[cell_number]
    seconds = sum(manifest["seconds"] for manifest in run_folder.read_manifests(cell_number))
    return f"{cell.model} · {cell.data} · {cell.method_label}: {seconds:.1f} s"


def _find_deleted_parts(
    run_folder: RunFolder, failures: Sequence[PartFailure]
) -> list[PartFailure]:
    """Find parts that are not in the folder although they did not fail."""
    failed_parts = {part for part, _ in failures}
    deleted: list[PartFailure] = []
    for part in run_folder.parts:
        if part not in failed_parts and not run_folder.is_done(part):
            path = run_folder.part_path(part)
            deleted.append((part, f"{path} was deleted while the run was in progress."))
    return deleted
