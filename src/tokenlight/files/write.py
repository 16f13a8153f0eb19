"""Write files completely or not at all, and never over a folder or a device; dump JSON, CSV and Parquet."""

import csv
import errno
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenlight.errors import (
    BadInput,
    MissingExtra,
    NotFinite,
    TokenlightError,
    Unwritable,
    short_repr,
)

_FORMULA_START = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part of it.

    The content is on the disk before the name is, so that a power cut leaves no empty file. A link is
    followed, and stays.

    Raises:
        BadInput: ``path`` is a folder or a device.
    """
    real_path = Path(os.path.realpath(path))
    is_link = real_path.is_symlink()  # a circle of links has no real path
    if is_link or (real_path.exists() and not real_path.is_file()):
        kind = "a folder" if real_path.is_dir() else "a device, a pipe or a circular link"
        raise BadInput(
            f"Cannot write {path}: it is {kind}, not a file. Give the name of a file.",
            code="output-not-a-file",
        )
    real_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = real_path.with_name(f".{real_path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            # The content must be on the disk before the file gets its name.
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(real_path)
    finally:
        temporary.unlink(missing_ok=True)


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse a path with characters that no file system allows."""
    if "\0" in str(path) or re.search("[\ud800-\udfff]", str(path)):
        error = Unwritable(
            f"Cannot write {short_repr(str(path))}: the path contains an invalid character. Give "
            "another path.",
            code="path-characters",
        )
        error.errno = errno.EINVAL
        raise error


@contextmanager
def write_errors_as_unwritable(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an Unwritable that names ``path`` and keeps the errno."""
    check_name(path)
    try:
        yield
    except (BrokenPipeError, TokenlightError):
        raise
    except OSError as cause:
        error = Unwritable(
            f"Cannot write {path}: {cause.strerror or cause}. Give another path.",
            code="path-unwritable",
        )
        error.errno = cause.errno
        raise error from cause


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def dump_json(content: Any, **options: Any) -> str:
    """Return ``content`` as JSON.

    Raises:
        NotFinite: It holds NaN or infinity, which JSON cannot represent.
    """
    try:
        return json.dumps(content, allow_nan=False, **{"ensure_ascii": False, **options})
    except ValueError as error:
        raise NotFinite(
            "The result contains NaN or infinity, which JSON cannot represent. Use a wider dtype.",
            code="json-not-finite",
        ) from error


def dump_csv(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], line_end: str = "\n"
) -> str:
    """Return a CSV table with exactly these columns.

    Floats are written by repr, so that they read back the same. A text that a spreadsheet would take for a
    formula gets an apostrophe in front.

    Args:
        columns: The names of the columns, in order. Other keys of a row are left out.
        rows: One mapping per row; a missing cell is empty.
        line_end: What ends a line.
    """
    stream = io.StringIO(newline="")
    # csv writes floats by repr.
    writer = csv.DictWriter(stream, columns, lineterminator=line_end)
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _escape_formula(row.get(name)) for name in columns})
    return stream.getvalue()


def _escape_formula(value: Any) -> Any:
    if not isinstance(value, str) or not _FORMULA_START.match(value):
        return value
    is_number = _NUMBER.fullmatch(value) is not None
    return value if is_number else f"'{value}"


def to_arrow_type(name: str) -> Any:
    """Return the Arrow type of a name such as ``list<float>``."""
    import pyarrow

    if name.startswith("list<"):
        return pyarrow.list_(to_arrow_type(name[5:-1]))
    return pyarrow.type_for_alias(name)


def dump_parquet(table: Any, **options: Any) -> bytes:
    """Return an Arrow table as the bytes of a Parquet file; equal tables give equal bytes."""
    import pyarrow.parquet

    # Into memory, so that the file can be written atomically.
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a Parquet file with all columns that any row has.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    arrow = MissingExtra.import_or_raise("pyarrow", "bench", "Parquet output")
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    columns = {}
    for name in names:
        columns[name] = arrow.array([row.get(name) for row in rows])
    write_bytes(path, dump_parquet(arrow.table(columns)))
