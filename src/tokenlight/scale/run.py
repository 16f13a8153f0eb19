"""Files explained into a folder: the job, what a worker does with a block of it, and its run to the end
by an engine. Stopped anywhere, it goes on."""

import ctypes
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, TokenlightError, in_words
from tokenlight.explaining.batch import versions
from tokenlight.explaining.default import sample
from tokenlight.files.columns import QUESTION
from tokenlight.files.parts import claim, locked, tidy
from tokenlight.files.rows import FORMAT, PLACE, REASON, parquet_of, table_of
from tokenlight.files.write import Folder, json_text
from tokenlight.models.embedded import folder_digest
from tokenlight.progress import progress as progress_bar
from tokenlight.scale.engine import Engine, Hopeless, Outcome, outcomes, writing
from tokenlight.scale.mapper import Mapper
from tokenlight.scale.source import Block, Reader, TextFiles

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
class ExplainJob:
    """Files of texts to rows in a folder; ``loading``, ``how``: of from_pretrained(), of explain()."""

    folder: Folder
    texts: TextFiles
    loading: Mapping[str, Any]
    how: Mapping[str, Any]
    fingerprint: str
    block: int = 1024

    @property
    def settings(self) -> dict[str, Any]:
        """What the numbers depend on: another one is another folder's."""
        texts, model = self.texts, dict(self.loading)
        return {
            "format": FORMAT,
            "model": model.pop("name"),
            "fingerprint": self.fingerprint,
            "device": model.pop("device").partition(":")[0],
            **{name: _plain(value) for name, value in (model | dict(self.how)).items()},
            "block": self.block,
            "text": "+".join(texts.columns),
            "keep": ",".join(texts.kept.names),
            "limit": texts.limit,
            "files": {one.file.path: f"{one.rows} rows, {one.digest}" for one in texts.sources},
            "versions": versions(),
        }

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(json_text(self.settings, sort_keys=True).encode()).hexdigest()

    def begin(self, device: str) -> Callable[[Block], dict[str, Any]]:
        """Load the model, and try it on a short text: what is wrong for that is wrong for all."""
        mapper = Mapper(self.texts.text, self.how, {**self.loading, "device": device})
        try:
            explainer = mapper.explainer
            if mapper.fingerprint != self.fingerprint:
                name = self.loading["name"]
                raise BadInput(f"{name} is not what it was when this job was begun; put it back.")
            text, usual = sample(explainer)
            asked = {**self.how, "long": "truncate", "progress": False}
            if explainer.live.head.reads != "text" or explainer.live.head.kind == "span":
                asked["target"] = usual  # what is asked of such a model depends on the text
            explainer.explain([text], **asked)
        except Exception as refused:
            raise Hopeless(in_words(refused)) from refused
        return partial(self._made, Reader(self.texts), mapper)

    def _made(self, reader: Reader, mapper: Mapper, task: Block) -> dict[str, Any]:
        """Explain a block and write it: what was refused first, then the rows, which make it count."""
        rows, kept = reader.read(task)
        source = self.texts.sources[task.source].file
        kind = "line" if source.name.endswith((".jsonl", ".txt")) else "row"
        places = [f"{kind} {number} of {source.name}" for number, _ in rows]
        columns = mapper.columns(list(zip(places, (row for _, row in rows), strict=True)))
        where = {"source": [source.path] * len(rows), "row": [number for number, _ in rows]}
        table = table_of({**where, **columns}, kept)
        said = {"job": self.digest, "block": task.number}
        refused = table.filter(table["refused"].is_valid())
        refused = refused.select([*kept.column_names, *PLACE, *REASON])
        if len(refused):
            self.folder.write(f"refused/{task.name}", parquet_of(refused, said))
        good = table.filter(table["refused"].is_null()).drop_columns(list(REASON))
        content = parquet_of(good, {**said, "texts": task.count, "refused": len(refused)})
        self.folder.write(f"rows/{task.name}", content)
        with suppress(OSError, AttributeError):  # only glibc keeps what was freed, and has this
            ctypes.CDLL(None).malloc_trim(0)
        return {"rows": len(good), "refused": len(refused), "bytes": len(content)}


def _plain(value: Any) -> Any:
    """A value as JSON has it; of what JSON does not have, its own words."""
    if isinstance(value, tuple) and value[1:] == ({},):  # a method without options
        return value[0]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


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
) -> "JobSummary":
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
    asked, weights = {"method": method, **USUAL, **how}, folder_digest(named["name"])
    job = ExplainJob(Folder(str(folder)), texts, named, asked, weights, block)
    here = job.folder.here
    with writing(job.folder.place), locked(here, crew.crew) if here else nullcontext():
        if not (job.folder.sizes("rows") or job.folder.sizes("refused")):
            settings = json.dumps(job.settings, ensure_ascii=False, indent=1)
            job.folder.write(JOB, settings.encode())
        elif job.folder.read(JOB) is None:
            raise BadInput(f"{folder} holds rows, but no {JOB}; give another folder with -o.")
        claim("a job", job.folder, JOB, job.settings)
        if here:
            tidy(here)
        done = JobSummary(job, tell or (lambda _: None))
        done.run(crew, progress)
        return done


class JobSummary:
    """What a job came to: its blocks, those that are done and those that were not made."""

    def __init__(self, job: ExplainJob, tell: Callable[[str], None]) -> None:
        self.job, self.tell, self.folder = job, tell, job.folder.place
        self.blocks = job.texts.blocks(job.block)
        self.done = self._finished()
        self.texts = sum(one.count for one in self.blocks)
        self.there = self.rows + self.refused  # texts of the blocks that were there
        self.made = 0  # blocks made now
        self.failed: tuple[tuple[int, str], ...] = ()  # blocks that were not made, and why
        self.written = (0.0, 0.0)  # when the manifest was, and how long it took

    @property
    def rows(self) -> int:
        return sum(one["rows"] for one in self.done.values())

    @property
    def refused(self) -> int:
        return sum(one["refused"] for one in self.done.values())

    def run(self, engine: Engine, progress: bool | None) -> None:
        """Make the blocks that are missing."""
        begun = time.monotonic()
        waiting = [one for one in self.blocks if one.number not in self.done]
        if self.there and waiting:
            self.tell(f"{self.there:,} of {self.texts:,} texts are there; the rest follows.")
        where = (self.job.loading["device"], self.job.folder.place)
        results = outcomes(engine, self.job, waiting, where)
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
        self._write_manifest()
        self.seconds = time.monotonic() - begun

    def _take(self, block: Block, outcome: Outcome) -> None:
        if not outcome.trouble:
            self.done[block.number] = {"seconds": round(outcome.seconds, 3), **outcome.said}
            self.made += 1
            when, took = self.written
            if time.monotonic() - when > SHARE * took:
                self._write_manifest()
            return
        self.failed += ((block.number, outcome.trouble),)
        if len(self.failed) >= GIVEN_UP and not self.done:
            raise TokenlightError(
                f"the first {GIVEN_UP} blocks all failed, so the job was stopped: {outcome.trouble}"
            )

    def _finished(self) -> dict[int, dict[str, Any]]:
        """Blocks that the manifest names and whose rows stand whole in the folder."""
        sizes = self.job.folder.sizes("rows")
        lines = (self.job.folder.read(MANIFEST) or b"").splitlines()
        known = {one.pop("block"): one for one in map(json.loads, lines)}
        there = {block.number: sizes.get(f"rows/{block.name}") for block in self.blocks}
        return {n: known[n] for n in there if n in known and known[n]["bytes"] == there[n]}

    def _write_manifest(self) -> None:
        begun = time.monotonic()
        lines = (json.dumps({"block": n, **self.done[n]}) for n in sorted(self.done))
        self.job.folder.write(MANIFEST, "".join(f"{line}\n" for line in lines).encode())
        self.written = (time.monotonic(), time.monotonic() - begun)
