"""A job run to its end: the blocks that are missing, by an engine. Stopped anywhere, it goes on."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.columns import QUESTION
from tokenlight.files.write import Folder
from tokenlight.progress import progress as progress_bar
from tokenlight.scale.engine import Engine
from tokenlight.scale.job import ExplainJob, job_of
from tokenlight.scale.lock import locked, refuse_other, tidy
from tokenlight.scale.source import Block, TextFiles
from tokenlight.scale.worker import FULL, DiskFull, Outcome

USUAL: dict[str, Any] = {
    "target": "predicted",
    "explain_mask": "none",
    "token_types": "tokenizer",
    "long": "error",
    "seed": 0,
}
JOB, MANIFEST = "job.json", "manifest.jsonl"
SHARE = 20  # the manifest is written again after so many times what the last writing took
TOLD = 30.0  # seconds between two words on how far it is
GIVEN_UP = 5  # blocks in trouble before the first is done: the others will fare no better


@dataclass(frozen=True)
class JobSummary:
    """What a job came to."""

    folder: str
    texts: int
    rows: int
    refused: int
    there: int  # texts of the blocks that were there
    made: int  # blocks made now
    failed: tuple[tuple[int, str], ...] = ()  # blocks that were not made, and why
    seconds: float = 0.0


def explain_files(  # noqa: PLR0913 - the wishes a person has, each by name
    source: str | Path,
    folder: str | Path,
    *,
    model: str | None = None,
    method: Any = "auto",
    text: str | None = None,
    keep: Sequence[str] = (),
    limit: int | None = None,
    engine: Engine | None = None,
    device: str = "cpu",
    loading: Mapping[str, Any] | None = None,
    block: int = 1024,
    tell: Callable[[str], None] | None = None,
    progress: bool | None = None,
    **how: Any,
) -> JobSummary:
    """Explain every text of a file, folder, glob or URL; write Parquet, one row per text, to ``folder``.

    Finished blocks are kept: the same call resumes, however it was stopped, and the files are
    byte-identical whatever the engine and the number of workers. ``keep``: columns that are passed
    through; ``loading``: further keywords of ``from_pretrained()``, such as ``dtype``; ``how``: of
    ``explain()``. docs/format.md has the columns.
    """
    crew = engine or Engine()
    if os.path.isdir(source) and Path(folder).resolve().is_relative_to(Path(source).resolve()):
        raise BadInput(f"{folder} lies inside the folder that is read; give another one with -o.")
    texts = TextFiles.found(str(source), text, keep, limit)
    usual = "tokenlight/qa" if texts.columns == QUESTION else "tokenlight/sentiment"
    named = {"name": model or usual, "device": device, **(loading or {})}
    job = job_of(str(folder), texts, named, {"method": method, **USUAL, **how}, block)
    here = job.folder.here
    with _told_when_full(job.folder), locked(here, crew.crew) if here else nullcontext():
        _begin(job)
        if here:
            tidy(here)
        return _Run(job, crew, tell or (lambda _: None)).all(progress)


def _begin(job: ExplainJob) -> None:
    """Write what the job is into its folder; one that holds rows of another job is refused."""
    folder = job.folder
    if not (folder.sizes("rows") or folder.sizes("refused")):
        text = json.dumps(job.settings, ensure_ascii=False, indent=1)
        folder.write(JOB, text.encode())
        return
    found = folder.read(JOB)
    if found is None:
        raise BadInput(f"{folder.place} holds rows, but no {JOB}; give another folder with -o.")
    try:
        before = json.loads(found)
    except ValueError as broken:
        raise DamagedFile(f"{folder.place}/{JOB} is damaged ({broken}); delete it.") from broken
    refuse_other(f"{folder.place} holds a job", before, json.loads(json.dumps(job.settings)))


@contextmanager
def _told_when_full(folder: Folder) -> Iterator[None]:
    try:
        yield
    except TokenlightError:
        raise
    except OSError as broken:
        if broken.errno in FULL:
            raise DiskFull(_full(folder)) from broken
        why = broken.strerror or broken
        raise BadInput(f"cannot write in {folder.place}: {why}. Give a folder with -o.") from broken


def _full(folder: Folder) -> str:
    return (
        f"the disk of {folder.place} is full. What is finished is kept: free some room, then give the "
        "same command; it goes on from there."
    )


@dataclass
class _Run:
    """The blocks of a job that are still to be made."""

    job: ExplainJob
    engine: Engine
    tell: Callable[[str], None]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    failed: list[tuple[int, str]] = field(default_factory=list)
    written: tuple[float, float] = (0.0, 0.0)  # when the manifest was, and how long it took

    def all(self, progress: bool | None) -> JobSummary:
        begun = time.monotonic()
        blocks = self.job.texts.blocks(self.job.block)
        self.done = self._finished(blocks)
        before, there = len(self.done), sum(self._counts())
        waiting = [one for one in blocks if one.number not in self.done]
        texts = sum(one.count for one in blocks)
        if there and waiting:
            self.tell(f"{there:,} of {texts:,} texts are there; the rest follows.")
        if waiting:
            self._make(waiting, progress)
        self._write_manifest()
        rows, refused = self._counts()
        made, seconds = len(self.done) - before, time.monotonic() - begun
        return JobSummary(
            self.job.folder.place, texts, rows, refused, there, made, tuple(self.failed), seconds
        )

    def _counts(self) -> tuple[int, int]:
        """Texts that have rows, and those that were refused."""
        known = self.done.values()
        return sum(one["rows"] for one in known), sum(one["refused"] for one in known)

    def _make(self, waiting: list[Block], progress: bool | None) -> None:
        results = self.engine.results(self.job, waiting, self.job.loading["device"])
        total, done, first, said = sum(one.count for one in waiting), 0, 0.0, 0.0
        with closing(results), progress_bar("explaining", total, progress) as advance:
            for outcome in results:
                block, now = waiting[outcome.task], time.monotonic()
                self._take(block, outcome)
                advance(block.count)
                if not first:  # the start of the workers is paid once, and not counted
                    first = said = now
                    continue
                done += block.count
                if now - said > TOLD:
                    rate, said = done / (now - first), now
                    left = timedelta(seconds=round((total - done) / rate))
                    self.tell(f"{done:,} of {total:,} texts, {rate:.1f} texts/s, {left} left")

    def _take(self, block: Block, outcome: Outcome) -> None:
        if outcome.full:
            raise DiskFull(_full(self.job.folder))
        if outcome.hopeless:
            raise TokenlightError(outcome.trouble)
        if outcome.trouble:
            self.failed.append((block.number, outcome.trouble))
            if len(self.failed) >= GIVEN_UP and not self.done:
                raise TokenlightError(
                    f"the first {GIVEN_UP} blocks all failed, so the job was stopped: {outcome.trouble}"
                )
            return
        self.done[block.number] = {"seconds": round(outcome.seconds, 3), **outcome.said}
        when, took = self.written
        if time.monotonic() - when > SHARE * took:
            self._write_manifest()

    def _finished(self, blocks: list[Block]) -> dict[int, dict[str, Any]]:
        """Blocks that the manifest names and whose rows stand whole in the folder."""
        sizes = self.job.folder.sizes("rows")
        lines = (self.job.folder.read(MANIFEST) or b"").splitlines()
        known = {one.pop("block"): one for one in map(json.loads, lines)}
        return {
            block.number: known[block.number]
            for block in blocks
            if block.number in known
            and known[block.number]["bytes"] == sizes.get(f"rows/{block.name}")
        }

    def _write_manifest(self) -> None:
        begun = time.monotonic()
        lines = (json.dumps({"block": n, **self.done[n]}) for n in sorted(self.done))
        self.job.folder.write(MANIFEST, "".join(f"{line}\n" for line in lines).encode())
        self.written = (time.monotonic(), time.monotonic() - begun)
