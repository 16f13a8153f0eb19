"""Explain files into a folder, on several workers, and resume after any interruption.

The run checks what the folder holds, lets an engine make the missing parts, records them in the
manifest, and checks the folder again at the end.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Unpack

from tokenlight.errors import BadInput, TokenlightError, join_first
from tokenlight.errors.arguments import Count, Range, checked
from tokenlight.explaining.explain_options import FileKeywords
from tokenlight.files.attribution_parquet import read_job_digest
from tokenlight.files.columns import QUESTION_COLUMNS
from tokenlight.files.folder_lock import locked_folder
from tokenlight.files.parts import claim_folder, remove_partial_files
from tokenlight.files.stores import Folder
from tokenlight.files.write import check_name
from tokenlight.models.embedded import digest_folder
from tokenlight.progress import progress_bar
from tokenlight.scale.engine import (
    Engine,
    Outcome,
    TaskRunner,
    folder_errors_reported,
    iter_outcomes,
)
from tokenlight.scale.explain_job import ExplainJob
from tokenlight.scale.manifest import MANIFEST, Manifest
from tokenlight.scale.text_files import FilePart, TextFiles

DEFAULT_OPTIONS: dict[str, Any] = {
    "target": "predicted",
    "explain_mask": "none",
    "token_types": "tokenizer",
    "long": "error",
    "seed": 0,
}
JOB_FILE = "job.json"
# Between two writes of the manifest pass at least this many times the seconds that one write takes.
MANIFEST_INTERVAL_FACTOR = 20
PROGRESS_INTERVAL_SECONDS = 30.0
# If the first parts all fail, the others will hardly do better.
MAX_INITIAL_FAILURES = 5


@checked
def explain_files(  # noqa: PLR0913 - a public function with one keyword per option
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    model: str | None = None,
    method: Any = "auto",
    text_column: str | None = None,
    keep_columns: Sequence[str] = (),
    limit: Annotated[int, Range(0, sys.maxsize)] | None = None,
    engine: TaskRunner | None = None,
    device: str = "cpu",
    load_arguments: Mapping[str, Any] | None = None,
    part_size: Count = 1024,
    on_message: Callable[[str], None] | None = None,
    progress: bool | None = None,
    **options: Unpack[FileKeywords],
) -> "JobSummary":
    """Explain every text of a file, folder, glob or URL; write Parquet with one row per text.

    Finished parts are kept: the same call resumes, however the last one was stopped. It checks finished
    parts against their checksums and makes damaged ones again. The files are byte-identical whatever the
    engine and the number of workers. docs/format.md describes the columns.

    Args:
        source: Path, folder, glob or URL of CSV, TSV, JSON lines, text or Parquet files.
        folder: Output folder, a path or a URL.
        model: Name or folder of the model; by default an embedded one that fits the columns.
        method: Method, as ``explain()`` takes it.
        text_column: Column that holds the texts; by default it is recognized by its name.
        keep_columns: Input columns to copy into the output.
        limit: Number of rows to explain at most.
        engine: Where to run; by default one process per core of this machine.
        device: Device of the workers.
        load_arguments: Further keywords of ``Explainer.from_pretrained()``, such as ``dtype``.
        part_size: Rows per part, the unit that is kept or made again.
        on_message: Called with a sentence when something was repaired, and on the progress.
        progress: Whether to show a progress bar; by default if standard error is a terminal.
        **options: Further keywords of ``explain()``, such as ``target`` and ``long``.

    Returns:
        What became of the job: numbers of texts, rows and refused texts, and failed parts.

    Raises:
        BadInput: The input or the folder cannot be used.
        DamagedFile: A file is missing or cannot be read.
        DiskFull: The disk is full; finished parts are kept.
        TokenlightError: The model, the method or an option does not work for any text.

    Example:
        >>> from tokenlight.scale import explain_files
        >>> summary = explain_files("reviews.parquet", "explained")  # doctest: +SKIP
        >>> summary.num_explained  # doctest: +SKIP
        2000
    """
    task_runner = engine or Engine()
    check_name(folder)
    _check_separate_folders(source, folder)
    # A limit or part size may be a NumPy integer, which JSON cannot hold.
    if limit is not None:
        limit = int(limit)
    text_files = TextFiles.scan(str(source), text_column, keep_columns, limit)
    model = model or _choose_model(text_files)
    all_load_arguments = {"name": model, "device": device, **(load_arguments or {})}
    job = ExplainJob(
        folder=Folder(str(folder)),
        text_files=text_files,
        load_arguments=all_load_arguments,
        options={"method": method, **DEFAULT_OPTIONS, **options},
        fingerprint=digest_folder(all_load_arguments["name"]),
        part_size=int(part_size),
    )
    with folder_errors_reported(job.folder.location), _lock_if_local(job.folder, task_runner):
        job_run = _JobRun(job, on_message or _ignore_message)
        job_run.claim_folder()
        if job.folder.local_path:
            remove_partial_files(job.folder.local_path)
        job_run.run(task_runner, progress)
        return job_run.summary


def _check_separate_folders(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> None:
    """Refuse an output folder inside the input folder: its files would become input."""
    if not os.path.isdir(source):
        return
    if Path(folder).resolve().is_relative_to(Path(source).resolve()):
        raise BadInput(
            f"The output folder {folder} is inside the input folder {source}. Give another output "
            "folder.",
            code="output-inside-input",
        )


def _choose_model(text_files: TextFiles) -> str:
    """Return the embedded model that reads the columns of the files."""
    if text_files.text_columns == QUESTION_COLUMNS:
        return "tokenlight/qa"
    return "tokenlight/sentiment"


def _lock_if_local(folder: Folder, task_runner: TaskRunner) -> AbstractContextManager[None]:
    """Lock a folder of this machine; object stores have no locks."""
    if folder.local_path is None:
        return nullcontext()
    return locked_folder(folder.local_path, task_runner.num_workers)


def _ignore_message(_message: str) -> None:
    pass


@dataclass(eq=False)
class JobSummary:
    """Summary of a finished job.

    Attributes:
        folder: Output folder.
        num_texts: Number of texts of the job.
        manifest: The parts that are made.
        num_existing: Number of texts in the parts that the folder held at the start.
        num_parts_made: Number of parts made by this run.
        failed_parts: Index and reason of each part that could not be made.
        seconds: Duration of the run.
    """

    folder: str
    num_texts: int
    manifest: Manifest = field(repr=False)
    num_existing: int = 0
    num_parts_made: int = 0
    failed_parts: tuple[tuple[int, str], ...] = ()
    seconds: float = 0.0

    @property
    def num_explained(self) -> int:
        """Texts that were explained."""
        return sum(entry["rows"] for entry in self.manifest.entries.values())

    @property
    def num_refused(self) -> int:
        """Texts that could not be explained."""
        return sum(entry["refused"] for entry in self.manifest.entries.values())


class _JobRun:
    """One run of a job: claims its folder, makes the parts that are missing, and sums them up.

    Attributes:
        summary: Summary of the job so far.
    """

    def __init__(self, job: ExplainJob, on_message: Callable[[str], None]) -> None:
        self.job = job
        self.on_message = on_message
        self.parts = job.text_files.split_into_parts(job.part_size)
        self.manifest = Manifest(job.folder, self.parts)
        num_texts = sum(part.num_texts for part in self.parts)
        self.summary = JobSummary(job.folder.location, num_texts, self.manifest)
        self._manifest_time = 0.0  # when the manifest was written last
        self._manifest_seconds = 0.0  # how long that took

    def claim_folder(self) -> None:
        """Write the settings of the job into its folder.

        Raises:
            BadInput: The folder holds another job.
        """
        folder = self.job.folder
        file_names = [*folder.list_sizes("rows"), *folder.list_sizes("refused")]
        if not file_names:
            # Settings without results may be of a job that was stopped right after its start: replace them.
            self._write_settings()
        elif folder.read(JOB_FILE) is None:
            # Somebody removed the settings; the files themselves say which job they belong to.
            foreign_file = self._find_foreign_file(file_names)
            if foreign_file:
                raise BadInput(
                    f"{folder.location} holds rows but no {JOB_FILE}, and {foreign_file} does not "
                    "belong to this job. Give another output folder.",
                    code="folder-of-another-job",
                )
            self.on_message(
                f"{JOB_FILE} was missing in {folder.location}, but its rows belong to this job. It "
                "was written again."
            )
            self._write_settings()
        claim_folder("a job", folder, JOB_FILE, self.job.settings)

    def run(self, task_runner: TaskRunner, progress: bool | None) -> None:
        """Make the parts that are missing or damaged, then check the folder."""
        start = time.monotonic()
        # Everything that the manifest names counts as existing, once damaged parts are dropped.
        self._load_manifest(progress)
        summary = self.summary
        summary.num_existing = summary.num_explained + summary.num_refused
        missing_parts = [part for part in self.parts if part.index not in self.manifest.entries]
        if summary.num_existing and missing_parts:
            self.on_message(
                f"{summary.num_existing:,} of {summary.num_texts:,} texts are done; continuing with the rest."
            )
        self._make_parts(missing_parts, task_runner, progress)
        lost_parts = self._drop_missing_parts()
        if lost_parts:
            self._make_lost_parts(lost_parts, task_runner, progress)
        summary.seconds = time.monotonic() - start

    def _make_lost_parts(
        self, lost_parts: Mapping[int, str], task_runner: TaskRunner, progress: bool | None
    ) -> None:
        """Make parts again that something removed while the job ran; those lost again have failed."""
        reasons = join_first(list(lost_parts.values()), 3)
        self.on_message(
            f"{len(lost_parts)} parts were lost while the job ran ({reasons}). Recomputing them."
        )
        parts = [self.manifest.parts[index] for index in lost_parts]
        self._make_parts(parts, task_runner, progress)
        for index, reason in self._drop_missing_parts().items():
            error = f"{reason}. Something removes or changes the files of this folder."
            self.summary.failed_parts += ((index, error),)

    def _make_parts(
        self, parts: Sequence[FilePart], task_runner: TaskRunner, progress: bool | None
    ) -> None:
        """Make parts, record their outcomes, and report the progress now and then."""
        outcomes = iter_outcomes(
            task_runner,
            self.job,
            parts,
            device=self.job.load_arguments["device"],
            folder=self.job.folder.location,
        )
        total = sum(part.num_texts for part in parts)
        report = _ProgressReport(total, self.on_message)
        with closing(outcomes), progress_bar("explaining", total, progress) as advance:
            for outcome in outcomes:
                part = parts[outcome.task_index]
                self._record_outcome(part, outcome)
                advance(part.num_texts)
                report.advance(part.num_texts)
        self._write_manifest()

    def _record_outcome(self, part: FilePart, outcome: Outcome) -> None:
        """Enter a part into the manifest, or among the failed ones."""
        if outcome.error:
            self.summary.failed_parts += ((part.index, outcome.error),)
            num_failed = len(self.summary.failed_parts)
            if num_failed >= MAX_INITIAL_FAILURES and not self.manifest.entries:
                raise TokenlightError(
                    f"The job was stopped because its first {MAX_INITIAL_FAILURES} parts all "
                    f"failed. The last error: {outcome.error}",
                    code="first-blocks-failed",  # parts were called blocks; programs match on this code
                )
            return
        seconds = round(outcome.seconds, 3)
        self.manifest.entries[part.index] = {"seconds": seconds, **outcome.result}
        self.summary.num_parts_made += 1
        # Writing a long manifest after every part would take longer than the parts.
        seconds_since_write = time.monotonic() - self._manifest_time
        if seconds_since_write > MANIFEST_INTERVAL_FACTOR * self._manifest_seconds:
            self._write_manifest()

    def _load_manifest(self, progress: bool | None) -> None:
        """Read the manifest and check its parts; damaged ones are dropped, so that they are made again."""
        manifest = self.manifest
        problems = manifest.read()
        if problems:
            self.on_message(
                f"{self.summary.folder}/{MANIFEST} is damaged ({join_first(problems, 3)}). The parts "
                "that it does not list are recomputed."
            )
        damaged_parts = manifest.find_damaged(self.on_message, progress)
        if damaged_parts:
            reasons = join_first(list(damaged_parts.values()), 3)
            self.on_message(
                f"{len(damaged_parts)} parts are damaged ({reasons}). Recomputing them."
            )
            manifest.remove_parts(damaged_parts)
        num_unchecked = manifest.count_parts_without_checksum()
        if num_unchecked:
            self.on_message(
                f"{num_unchecked} parts are from a version without checksums. Only their sizes were "
                "checked."
            )

    def _drop_missing_parts(self) -> dict[int, str]:
        """Drop finished parts that are no longer in the folder; return them with the reason."""
        if self.job.folder.read(JOB_FILE) is None:  # removed while the job ran
            self._write_settings()
        missing = self.manifest.find_missing()
        if missing:
            self.manifest.remove_parts(missing)
            self._write_manifest()
        return missing

    def _find_foreign_file(self, file_names: Sequence[str]) -> str:
        """Return a file of another job, or "". Each file names its job in its metadata."""
        unreadable_files = []
        for name in sorted(file_names):
            job_digest = read_job_digest(self.job.folder, name)
            if job_digest is None:
                unreadable_files.append(name)
            elif job_digest != self.job.digest:
                return name
        # Damaged files are made again, but at least one must show that the folder is this job's.
        if len(unreadable_files) == len(file_names):
            return unreadable_files[0]
        return ""

    def _write_settings(self) -> None:
        settings = json.dumps(self.job.settings, ensure_ascii=False, indent=1)
        self.job.folder.write(JOB_FILE, settings.encode())

    def _write_manifest(self) -> None:
        start = time.monotonic()
        self.manifest.write()
        self._manifest_time = time.monotonic()
        self._manifest_seconds = self._manifest_time - start


class _ProgressReport:
    """Reports the speed and the remaining time every ``PROGRESS_INTERVAL_SECONDS``."""

    def __init__(self, total: int, on_message: Callable[[str], None]) -> None:
        self.total = total
        self.on_message = on_message
        self.num_done = 0
        self.start: float | None = None
        self.last_message = 0.0

    def advance(self, num_texts: int) -> None:
        now = time.monotonic()
        if self.start is None:
            # The clock starts with the first part: the workers start only once.
            self.start = self.last_message = now
            return
        self.num_done += num_texts
        if now - self.last_message <= PROGRESS_INTERVAL_SECONDS:
            return
        self.last_message = now
        rate = self.num_done / (now - self.start)
        remaining = timedelta(seconds=round((self.total - self.num_done) / rate))
        self.on_message(
            f"{self.num_done:,} of {self.total:,} texts, {rate:.1f} texts/s, {remaining} left"
        )
