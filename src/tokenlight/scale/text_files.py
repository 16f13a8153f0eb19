"""The texts of a job: files, folders, globs and URLs, split into parts of rows.

A part is some consecutive rows of one file. Parts depend only on the data, never on the number of
workers. Which texts share a batch follows from the part, so a text gets the same scores whoever
explains it.
"""

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

from tokenlight.errors import (
    BadInput,
    DamagedFile,
    MissingExtra,
    TokenlightError,
    format_suggestion,
)
from tokenlight.files.attribution_parquet import ATTRIBUTION_COLUMNS, LOCATION_COLUMNS
from tokenlight.files.columns import Columns
from tokenlight.files.stores import StoredFile, find_files
from tokenlight.files.tables import EXTENSIONS, get_extension, iter_numbered_rows

CHUNK_ROWS = 1024  # rows read from a file at a time
PARQUET_BUFFER_BYTES = 1 << 20

NumberedRow = tuple[int, Mapping[str, Any]]  # the number of a row in its file, and the row


@dataclass(frozen=True)
class SourceFile:
    """One input file of the job."""

    file: StoredFile
    num_rows: int = 0
    # SHA-256 of a local file; for a remote one, the version that its store reports.
    digest: str = ""

    @property
    def is_parquet(self) -> bool:
        return self.file.name.lower().endswith(".parquet")

    @contextmanager
    def open_parquet(self) -> Iterator[Any]:
        """Open the file for streaming; ``pyarrow.dataset`` would hold a whole row group in memory."""
        import pyarrow
        import pyarrow.parquet

        with ExitStack() as stack:
            try:
                stream = stack.enter_context(self.file.open())
                parquet_file = stack.enter_context(
                    pyarrow.parquet.ParquetFile(
                        stream, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False
                    )
                )
            except TokenlightError:
                raise
            except (pyarrow.ArrowException, OSError) as error:
                raise DamagedFile(
                    f"{self.file.path} is not a readable Parquet file: {error}. Restore it, or "
                    "leave it out.",
                    code="parquet-unreadable",
                ) from error
            yield parquet_file

    def read_chunks(self, columns: Sequence[str] = ()) -> Generator[Any, None, None]:
        """Yield the rows in chunks. Close the generator to close the file.

        Args:
            columns: Columns to read from a Parquet file; text files are always read whole.

        Yields:
            Arrow record batches for a Parquet file, lists of numbered rows for a text file.
        """
        if self.is_parquet:
            with self.open_parquet() as parquet_file:
                column_names = parquet_file.schema_arrow.names
                present_columns = [name for name in columns if name in column_names]
                yield from parquet_file.iter_batches(
                    CHUNK_ROWS, columns=present_columns, use_threads=False
                )
            return
        with closing(iter_numbered_rows(cast("Path", self.file))) as rows:
            while chunk := list(islice(rows, CHUNK_ROWS)):
                yield chunk


@dataclass(frozen=True)
class FilePart:
    """``num_texts`` texts of a source, refused ones too, one per row, from the row ``first_row`` on."""

    index: int  # among all parts of the job
    source_index: int
    first_row: int  # counted from 0
    num_texts: int

    @property
    def file_name(self) -> str:
        """Path of the part's files below ``rows/`` and ``refused/``, a thousand per folder."""
        return f"{self.index // 1000:05d}/{self.index:08d}.parquet"


@dataclass(frozen=True)
class TextFiles:
    """All input of a job: its files, the columns of the texts, and the columns to keep."""

    sources: tuple[SourceFile, ...]
    text_column: str | None  # as the user named it
    text_columns: tuple[str, ...]
    kept_schema: Any  # Arrow schema of the kept columns
    limit: int | None

    @classmethod
    def scan(
        cls, source: str, text_column: str | None, kept_columns: Sequence[str], limit: int | None
    ) -> Self:
        """Read through all files once, so that problems are reported before any worker starts.

        Args:
            source: Path, folder, glob or URL.
            text_column: Column that holds the texts; by default it is recognized by its name.
            kept_columns: Input columns to copy into the output.
            limit: Number of rows to explain at most.

        Raises:
            BadInput: No file has a row, or a kept column cannot be kept.
            DamagedFile: There is no such file, or one cannot be read.
        """
        MissingExtra.check_installed(["pyarrow"], "bench", "explaining into a folder")
        import pyarrow

        _check_kept_names(kept_columns)
        compressed = [f"{extension}.gz" for extension in EXTENSIONS]
        try:
            scans: list[_FileScan] = []
            for file in find_files(source, (*EXTENSIONS, *compressed)):
                scans.append(_scan_file(file, text_column, kept_columns))
            non_empty = [scan for scan in scans if scan.source.num_rows]
            if not non_empty:
                raise BadInput(
                    f"{source} has no rows. Give files with at least one row.", code="no-rows"
                )
            kept_schema = pyarrow.unify_schemas(
                [scan.kept_schema for scan in non_empty], promote_options="permissive"
            )
        except pyarrow.ArrowException as error:
            raise BadInput(
                f"A column to keep has different types in different rows or files ({error}). Give it "
                "one type.",
                code="kept-column-types",
            ) from error
        sources = tuple(scan.source for scan in scans)
        return cls(sources, text_column, non_empty[0].text_columns, kept_schema, limit)

    def split_into_parts(self, part_size: int) -> list[FilePart]:
        """Return the parts of all files; see :func:`split_rows`."""
        row_counts = [source.num_rows for source in self.sources]
        return split_rows(row_counts, part_size, self.limit)


def split_rows(row_counts: Sequence[int], part_size: int, limit: int | None) -> list[FilePart]:
    """Split sources into parts of at most ``part_size`` rows.

    Args:
        row_counts: Number of rows of each source.
        part_size: Largest number of rows of a part.
        limit: Number of rows to use in all; None uses every row.
    """
    remaining = sum(row_counts)
    if limit is not None:
        remaining = limit
    parts: list[FilePart] = []
    for source_index, row_count in enumerate(row_counts):
        num_used = min(row_count, remaining)
        remaining -= num_used
        for first_row in range(0, num_used, part_size):
            num_texts = min(part_size, num_used - first_row)
            parts.append(
                FilePart(
                    index=len(parts),
                    source_index=source_index,
                    first_row=first_row,
                    num_texts=num_texts,
                )
            )
    return parts


@dataclass(frozen=True)
class _FileScan:
    """Findings of one scan of a file."""

    source: SourceFile
    text_columns: tuple[str, ...]
    kept_schema: Any


def _check_kept_names(kept_columns: Sequence[str]) -> None:
    """Refuse to keep a column under a name that the output uses itself."""
    output_columns = {*LOCATION_COLUMNS, *ATTRIBUTION_COLUMNS}
    for name in kept_columns:
        if name in output_columns:
            raise BadInput(
                f"The column {name!r} cannot be kept, because the output has a column with this name. "
                "Rename the column.",
                code="kept-column-reserved",
            )


def _scan_file(file: StoredFile, text_column: str | None, kept_columns: Sequence[str]) -> _FileScan:
    """Count the rows of a file; find the columns of its texts and the types of the kept columns."""
    import pyarrow

    if get_extension(Path(file.name)) not in EXTENSIONS:
        raise BadInput(
            f"{file.name} has an unknown file type. Give a file that ends in one of "
            f"{', '.join(EXTENSIONS)}.",
            code="file-type-unknown",
        )
    digest = _compute_digest(file)
    num_rows, column_names, schema = _read_shape(SourceFile(file), kept_columns)
    source = SourceFile(file, num_rows, digest)
    if not num_rows:
        return _FileScan(source, (), pyarrow.schema([]))
    for name in kept_columns:
        if name not in column_names:
            suggestion = format_suggestion(name, column_names, cutoff=0.6)
            raise BadInput(
                f"{file.name} has no column {name!r} to keep. It has "
                f"{', '.join(column_names)}.{suggestion}",
                code="kept-column-missing",
            )
    columns = Columns.from_row(
        dict.fromkeys(column_names, ""), text_column, None, file.name, with_annotations=False
    )
    kept_schema = pyarrow.schema([(name, schema.field(name).type) for name in kept_columns])
    return _FileScan(source, columns.text, kept_schema)


def _compute_digest(file: StoredFile) -> str:
    """Return the SHA-256 of a local file; for a remote one, the version that its store reports."""
    if "://" in file.root:
        return file.version_key
    with file.open() as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_shape(source: SourceFile, kept_columns: Sequence[str]) -> tuple[int, list[str], Any]:
    """Return the number of rows, the column names, and an Arrow schema with the kept columns."""
    import pyarrow

    if source.is_parquet:
        with source.open_parquet() as parquet_file:
            schema = parquet_file.schema_arrow
            return parquet_file.metadata.num_rows, list(schema.names), schema
    # A text file has no schema: types are derived from the values, chunk by chunk.
    num_rows = 0
    column_names: list[str] = []
    schemas = []
    with closing(source.read_chunks()) as chunks:
        for chunk in chunks:
            if not column_names:
                _, first_row = chunk[0]
                column_names = list(first_row)
            num_rows += len(chunk)
            schemas.append(_build_kept_table(chunk, kept_columns).schema)
    if not schemas:
        return 0, [], pyarrow.schema([])
    return num_rows, column_names, pyarrow.unify_schemas(schemas, promote_options="permissive")


def _build_kept_table(numbered_rows: Sequence[NumberedRow], kept_columns: Sequence[str]) -> Any:
    """Return an Arrow table of the kept columns of some rows of a text file."""
    import pyarrow

    columns: dict[str, list[Any]] = {}
    for name in kept_columns:
        columns[name] = [row.get(name) for _, row in numbered_rows]
    return pyarrow.table(columns)


class PartReader:
    """Reads parts of a job.

    Parts mostly arrive in order, so the file of the last one stays open at its position until it ends,
    an error occurs, or :meth:`close` is called.
    """

    def __init__(self, text_files: TextFiles) -> None:
        self.text_files = text_files
        self.source_index = -1  # of the open file
        self.row_position = 0  # rows of the open file that were read or skipped
        self.chunks: Generator[Any, None, None] | None = None
        self.pending_rows: Any = ()  # rest of the chunk that was read last

    def close(self) -> None:
        """Close the open file; the next part opens its own."""
        if self.chunks is not None:
            self.chunks.close()
        self.source_index = -1
        self.row_position = 0
        self.chunks = None
        self.pending_rows = ()

    def read(self, part: FilePart) -> tuple[list[NumberedRow], Any]:
        """Return the numbered rows of a part, and an Arrow table of its kept columns."""
        try:
            return self._read(part)
        except BaseException:
            self.close()
            raise

    def _read(self, part: FilePart) -> tuple[list[NumberedRow], Any]:
        import pyarrow

        source = self.text_files.sources[part.source_index]
        StoredFile.from_path(source.file.root, source.file.path)  # raises if the file is gone
        try:
            pieces = list(self._read_pieces(part, source))
        except TokenlightError:
            raise
        except (OSError, pyarrow.ArrowException) as error:
            raise DamagedFile(
                f"{source.file.path} cannot be read: {error}. Restore it.",
                code="block-source-unreadable",
            ) from error
        if StoredFile.from_path(source.file.root, source.file.path) != source.file:
            raise BadInput(
                f"{source.file.path} was changed while the job ran. Restore it, or start a new job in "
                "another folder.",
                code="source-changed",
            )
        kept_schema = self.text_files.kept_schema
        if source.is_parquet:
            table = pyarrow.Table.from_batches(pieces)
            rows = self._number_parquet_rows(table, part.first_row)
        else:
            rows = []
            for piece in pieces:
                rows += piece
            table = _build_kept_table(rows, kept_schema.names)
        return rows, table.select(kept_schema.names).cast(kept_schema)

    def _number_parquet_rows(self, table: Any, first_row: int) -> list[NumberedRow]:
        """Return the text columns of a Parquet table as rows, numbered from 1."""
        names = [name for name in self.text_files.text_columns if name in table.column_names]
        return list(enumerate(table.select(names).to_pylist(), first_row + 1))

    def _read_pieces(self, part: FilePart, source: SourceFile) -> Iterator[Any]:
        """Yield slices of chunks that together are the rows of the part."""
        if part.source_index != self.source_index or part.first_row < self.row_position:
            self._open(part.source_index, source)
        part_end = part.first_row + part.num_texts
        while self.row_position < part_end:
            if not len(self.pending_rows):
                self._read_chunk(source, part_end)
            num_pending = len(self.pending_rows)
            start = min(max(0, part.first_row - self.row_position), num_pending)
            stop = min(part_end - self.row_position, num_pending)
            if stop > start:
                yield self.pending_rows[start:stop]
            self.row_position += stop
            self.pending_rows = self.pending_rows[stop:]

    def _open(self, source_index: int, source: SourceFile) -> None:
        """Start to read a source from its first row."""
        self.close()
        # A column may hold the text and be kept as well; it is read once.
        names = dict.fromkeys((*self.text_files.text_columns, *self.text_files.kept_schema.names))
        self.source_index = source_index
        self.chunks = source.read_chunks(list(names))

    def _read_chunk(self, source: SourceFile, part_end: int) -> None:
        assert self.chunks is not None
        chunk = next(self.chunks, None)
        if chunk is None:
            raise DamagedFile(
                f"{source.file.path} ends before row {part_end}. Restore it.", code="source-short"
            )
        self.pending_rows = chunk
