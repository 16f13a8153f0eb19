"""Writing files: whole or not at all, and only where a file is or none is yet."""

import csv
import glob
import io
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, MissingExtra, NotFinite

ABANDONED = 600  # seconds after which nobody is still writing what was left half written


def write_bytes(place: Path, content: bytes, *, durable: bool = False) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never half of it.

    A link is followed: what it leads to is replaced, and it stays. ``durable``: the content is on
    the disk before the name is, so that a power cut leaves no empty file under it.
    """
    given, place = place, Path(os.path.realpath(place))
    if place.is_symlink() or (place.exists() and not place.is_file()):
        kind = "a folder" if place.is_dir() else "a device, a pipe or a link in a circle"
        raise BadInput(f"cannot write {given}: it is {kind}, and no file; give the name of a file.")
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in place.parent.glob(f".{glob.escape(place.name)}.*.part"):
        if time.time() - left.stat().st_mtime > ABANDONED:  # its writer was killed
            left.unlink(missing_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def write_text(place: Path, text: str, *, durable: bool = False) -> None:
    """Text as UTF-8, written beside and renamed."""
    write_bytes(place, text.encode("utf-8"), durable=durable)


def json_text(content: Any, **how: Any) -> str:
    """``content`` as JSON, which has no word for NaN and infinity: they are refused."""
    try:
        return json.dumps(content, allow_nan=False, **{"ensure_ascii": False, **how})
    except ValueError as wrong:
        raise NotFinite(
            "the numbers include NaN or infinity, which JSON cannot hold; take them out, or "
            "compute in a wider dtype."
        ) from wrong


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]], end: str = "\n") -> str:
    """A table with exactly these columns; floats by repr, so that they read back the same.

    A text that a spreadsheet would take for a formula has an apostrophe before it; numbers have none.
    """
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, names, lineterminator=end)
    writer.writeheader()
    writer.writerows({name: _cell(row.get(name)) for name in names} for row in rows)
    return stream.getvalue()


def _cell(value: Any) -> Any:
    formula = isinstance(value, str) and re.match(r"[=+\-@\t\r]", value)
    number = formula and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", value, re.IGNORECASE)
    return f"'{value}" if formula and not number else value


def arrow_type(kind: str) -> Any:
    """``list<float>`` and its like as Arrow has them."""
    import pyarrow

    if kind.startswith("list<"):
        return pyarrow.list_(arrow_type(kind[5:-1]))
    return pyarrow.type_for_alias(kind)


def parquet_bytes(table: Any, **how: Any) -> bytes:
    """An Arrow table as the bytes of a Parquet file; the same table, the same bytes."""
    import pyarrow.parquet

    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, **how)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def write_parquet(
    place: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    kinds: Mapping[str, str] | None = None,
    durable: bool = False,
) -> bytes:
    """Rows as a Parquet file, written beside and renamed; its bytes are handed back.

    The columns are those that any row has. ``kinds``: column to its :func:`arrow_type`, so that the file
    is the same whichever values are missing.
    """
    arrow = MissingExtra.importing("pyarrow", "bench", "Parquet output")
    columns = kinds or dict.fromkeys((name for row in rows for name in row), "")
    table = {
        name: arrow.array([row.get(name) for row in rows], arrow_type(kind) if kind else None)
        for name, kind in columns.items()
    }
    content = parquet_bytes(arrow.table(table))
    write_bytes(place, content, durable=durable)
    return content
