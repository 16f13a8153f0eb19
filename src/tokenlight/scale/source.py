"""The texts of a job: files, folders, globs and URLs, cut into blocks that depend on the data alone.

A block is some rows of one file. Which texts share a batch follows from the block, never from the
number of workers, so a text has the same numbers whoever explains it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

from tokenlight.errors import BadInput, DamagedFile, MissingExtra, meant
from tokenlight.files.columns import Columns
from tokenlight.files.rows import OWN, PLACE
from tokenlight.files.tables import ENDINGS, ending_of, numbered_rows
from tokenlight.files.write import StoredFile, files_at

CHUNK = 1024  # rows that a file is read by


@dataclass(frozen=True)
class Source:
    """One file of the job."""

    file: StoredFile
    rows: int = 0
    digest: str = ""  # SHA-256 of a file of this machine; of another, what its store says of it

    @property
    def is_parquet(self) -> bool:
        return self.file.name.lower().endswith(".parquet")

    def parquet(self) -> Any:
        """Opened so that it is streamed: ``pyarrow.dataset`` would hold a row group whole."""
        import pyarrow
        import pyarrow.parquet

        how: dict[str, Any] = {"buffer_size": 1 << 20, "pre_buffer": False}
        said = f"{self.file.path} is not a readable Parquet file: "
        with DamagedFile.telling(said, pyarrow.ArrowException, OSError):
            return pyarrow.parquet.ParquetFile(self.file.open(), **how)

    def chunks(self, names: Sequence[str] = ()) -> Iterator[Any]:
        """Its rows as Arrow batches of the columns ``names``; of a text file, as lists of (number, row)."""
        if self.is_parquet:
            with self.parquet() as opened:
                own = [name for name in names if name in opened.schema_arrow.names]
                yield from opened.iter_batches(CHUNK, columns=own, use_threads=False)
            return
        rows = numbered_rows(cast("Path", self.file))
        while chunk := list(islice(rows, CHUNK)):
            yield chunk


@dataclass(frozen=True)
class Block:
    """``count`` rows of a source behind its first ``first``; ``number`` among all blocks."""

    number: int
    source: int
    first: int
    count: int

    @property
    def name(self) -> str:
        """Of its files, a thousand in a folder."""
        return f"{self.number // 1000:05d}/{self.number:08d}.parquet"


@dataclass(frozen=True)
class TextFiles:
    """All that a job reads: its files, the columns of the texts, and those that are kept."""

    sources: tuple[Source, ...]
    text: str | None  # as a person named it
    columns: tuple[str, ...]
    kept: Any  # the Arrow schema of what is kept
    limit: int | None

    @classmethod
    def found(cls, source: str, text: str | None, keep: Sequence[str], limit: int | None) -> Self:
        """Gone through once, before any worker begins: what is wrong with the files is told then."""
        MissingExtra.check(["pyarrow"], "bench", "explaining into a folder")
        import pyarrow

        for name in set(keep) & {*PLACE, *OWN}:
            raise BadInput(f"--keep {name}: the output has a column of this name; rename yours.")
        files = files_at(source, (*ENDINGS, *(f"{e}.gz" for e in ENDINGS)))
        said, end = "a kept column has several types (", "); give it one."
        with BadInput.telling(said, pyarrow.ArrowException, end=end):
            seen = [_inspected(file, text, keep) for file in files]
            full = [one for one in seen if one[0].rows]
            if not full:
                raise BadInput(f"{source} holds no text; give files with at least one row.")
            kept = pyarrow.unify_schemas([one[2] for one in full], promote_options="permissive")
        return cls(tuple(one[0] for one in seen), text, full[0][1], kept, limit)

    def blocks(self, size: int) -> list[Block]:
        made: list[Block] = []
        left = sum(one.rows for one in self.sources) if self.limit is None else self.limit
        for number, one in enumerate(self.sources):
            rows = min(one.rows, left)
            left -= rows
            for first in range(0, rows, size):
                made.append(Block(len(made), number, first, min(size, rows - first)))
        return made


def _inspected(
    file: StoredFile, text: str | None, keep: Sequence[str]
) -> tuple[Source, tuple[str, ...], Any]:
    """A file with its rows counted, the columns of its texts, and the schema of what is kept."""
    import pyarrow

    if ending_of(Path(file.name)) not in ENDINGS:
        raise BadInput(f"cannot read {file.name}: it ends in none of {', '.join(ENDINGS)}.")
    bare, digest = Source(file), file.changed
    if "://" not in file.root:
        with file.open() as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if bare.is_parquet:
        with bare.parquet() as opened:
            rows, schema = opened.metadata.num_rows, opened.schema_arrow
            names = list(schema.names)
    else:
        rows, names, schemas = 0, list[str](), []
        for chunk in bare.chunks():
            names = names or list(chunk[0][1])
            rows += len(chunk)
            schemas.append(_kept(chunk, keep).schema)
        schema = pyarrow.unify_schemas(schemas, promote_options="permissive")
    if not rows:
        return Source(file, rows, digest), (), pyarrow.schema([])
    for name in keep:
        if name not in names:
            hint = meant(name, names, likeness=0.6)
            raise BadInput(f"{file.name} has no column {name!r} to keep: {', '.join(names)}.{hint}")
    columns = Columns.of(dict.fromkeys(names, ""), text, None, file.name, marks=False).text
    kept = pyarrow.schema([(name, schema.field(name).type) for name in keep])
    return Source(file, rows, digest), columns, kept


def _kept(chunk: Sequence[tuple[int, Mapping[str, Any]]], keep: Sequence[str]) -> Any:
    """What is kept of the rows of a text file, as Arrow takes it."""
    import pyarrow

    return pyarrow.table({one: [row.get(one) for _, row in chunk] for one in keep})


class Reader:
    """Reads blocks of a job. Blocks come mostly in order, so a file stays open where it was left."""

    def __init__(self, texts: TextFiles) -> None:
        self.texts = texts
        self.source, self.at = -1, 0
        self.chunks: Iterator[Any] = iter(())
        self.left: Any = None  # of the chunk that was begun

    def read(self, block: Block) -> tuple[list[tuple[int, Mapping[str, Any]]], Any]:
        """The rows of a block, each with its number in the file, and an Arrow table of what is kept."""
        source = self.texts.sources[block.source]
        StoredFile.at(source.file.root, source.file.path)  # says so, where it is gone
        with DamagedFile.telling(f"{source.file.path} cannot be read: ", OSError):
            parts = list(self._parts(block, source))
        if StoredFile.at(source.file.root, source.file.path) != source.file:
            raise BadInput(
                f"{source.file.path} was changed while the job ran; put it back as it was, or begin anew."
            )
        import pyarrow

        names = self.texts.kept.names
        if source.is_parquet:
            table = pyarrow.Table.from_batches(parts)
            texts = [name for name in self.texts.columns if name in table.column_names]
            rows = list(enumerate(table.select(texts).to_pylist(), block.first + 1))
        else:
            rows = [row for part in parts for row in part]
            table = _kept(rows, names)
        return rows, table.select(names).cast(self.texts.kept)

    def _parts(self, block: Block, source: Source) -> Iterator[Any]:
        if block.source != self.source or block.first < self.at:
            names = list(dict.fromkeys((*self.texts.columns, *self.texts.kept.names)))
            self.source, self.at, self.left = block.source, 0, ()
            self.chunks = source.chunks(names)
        end = block.first + block.count
        while self.at < end:
            if not len(self.left):
                self.left = next(self.chunks, None)
                if self.left is None:
                    self.source = -1
                    raise DamagedFile(f"{source.file.path} ends before row {end}.")
            skipped = min(max(0, block.first - self.at), len(self.left))
            taken = min(end - self.at, len(self.left))
            if taken > skipped:
                yield self.left[skipped:taken]
            self.at, self.left = self.at + taken, self.left[taken:]
