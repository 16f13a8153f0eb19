"""Writing files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenlight.errors import MissingExtra


def write_bytes(place: Path, content: bytes, *, durable: bool = False) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never half of it.

    ``durable``: the content is on the disk before the name is, so that a power cut leaves no empty
    file under it.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
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


def write_parquet(
    place: Path,
    rows: Sequence[Mapping[str, Any]],
    *,
    kinds: Mapping[str, str] | None = None,
    durable: bool = False,
) -> bytes:
    """Rows as a Parquet file, written beside and renamed; its bytes are handed back.

    The columns are those that any row has. ``kinds``: column to int64, double, string or
    list<double>, so that the file is the same whichever values are missing.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise MissingExtra.naming("pyarrow", "bench", "Parquet output") from missing
    columns = kinds or dict.fromkeys(name for row in rows for name in row)
    types = {
        "int64": pyarrow.int64(),
        "double": pyarrow.float64(),
        "string": pyarrow.string(),
        "list<double>": pyarrow.list_(pyarrow.float64()),
    }
    table = pyarrow.table(
        {
            name: pyarrow.array(
                [row.get(name) for row in rows], types[kinds[name]] if kinds else None
            )
            for name in columns
        }
    )
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    write_bytes(place, content, durable=durable)
    return content
