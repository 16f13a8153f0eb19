"""Where files stand, here or behind s3://, gs://, hf:// and whatever else fsspec knows, and how they are
written: whole or not at all, and only where a file is or none is yet."""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, MissingExtra, NotFinite, TokenlightError


def write_bytes(place: Path, content: bytes) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never half of it. The content is on
    the disk before the name is: a power cut leaves no empty file. A link is followed, and stays."""
    given, place = place, Path(os.path.realpath(place))
    if place.is_symlink() or (place.exists() and not place.is_file()):
        kind = "a folder" if place.is_dir() else "a device, a pipe or a link in a circle"
        raise BadInput(f"cannot write {given}: it is {kind}, and no file; give the name of a file.")
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def write_text(place: Path, text: str) -> None:
    """Text as UTF-8, written beside and renamed."""
    write_bytes(place, text.encode("utf-8"))


def json_text(content: Any, **how: Any) -> str:
    """``content`` as JSON, which has no word for NaN and infinity: they are refused."""
    try:
        return json.dumps(content, allow_nan=False, **{"ensure_ascii": False, **how})
    except ValueError as odd:
        raise NotFinite("NaN or infinity, which JSON cannot hold; use a wider dtype.") from odd


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]], end: str = "\n") -> str:
    """A table with exactly these columns; floats by repr, so that they read back the same. A text that a
    spreadsheet would take for a formula has an apostrophe before it; numbers have none."""
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
    return bytes(sink.getvalue())


def write_parquet(place: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a Parquet file with the columns that any row has."""
    arrow = MissingExtra.importing("pyarrow", "bench", "Parquet output")
    columns = dict.fromkeys(name for row in rows for name in row)
    table = {name: arrow.array([row.get(name) for row in rows]) for name in columns}
    write_bytes(place, parquet_bytes(arrow.table(table)))


def filesystem(place: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    import fsspec.core

    with BadInput.telling(f"{place} cannot be reached: ", ImportError, ValueError, OSError):
        found: tuple[Any, str] = fsspec.core.url_to_fs(place)
    return found


@contextmanager
def as_of_a_disk() -> Iterator[None]:
    """Every store has errors of its own (no credentials, no network): here they are a disk's."""
    try:
        yield
    except (OSError, TokenlightError):
        raise
    except Exception as broken:
        raise OSError(f"{type(broken).__name__}: {broken}") from broken


@dataclass(frozen=True)
class StoredFile:
    """A file, here or behind a URL, with as much of a ``Path`` as the readers of tables ask for."""

    root: str  # path or URL that its file system is known by
    path: str
    st_size: int = 0
    changed: str = ""  # another one, when its content may be

    @classmethod
    def at(cls, root: str, path: str) -> "StoredFile":
        """The file as it is now."""
        system, _ = filesystem(root)
        with DamagedFile.telling(f"{path} cannot be read: ", OSError), as_of_a_disk():
            system.invalidate_cache()
            try:
                return cls(root, path, system.size(path), system.ukey(path))
            except FileNotFoundError as missing:
                gone = f"{path} does not exist (any more); put it back."
                raise DamagedFile(gone) from missing

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def stat(self) -> "StoredFile":
        return self

    @as_of_a_disk()
    def open(self, _mode: str = "rb") -> Any:
        return filesystem(self.root)[0].open(self.path, "rb")


def files_at(source: str, endings: tuple[str, ...]) -> list[StoredFile]:
    """The files that a path, folder, glob or URL names, in order; of a folder those with these endings."""
    system, path = filesystem(source)
    with BadInput.telling(f"{source} cannot be read: ", OSError), as_of_a_disk():
        is_folder = system.isdir(path)
        if is_folder:
            found = [one for one in system.find(path) if one.lower().endswith(endings)]
            found = [one for one in found if not re.search("/[._]", one[len(path) :])]
        else:
            found = [path] if system.exists(path) else system.glob(path)
            found = [one for one in found if not system.isdir(one)]
    if not found:
        what = f"no file in it ends in {', '.join(endings)}" if is_folder else "no such file"
        raise DamagedFile(f"{source}: {what}.")
    return [StoredFile.at(source, one) for one in sorted(found)]


@dataclass(frozen=True)
class Folder:
    """A folder to write in, here or behind a URL: a file is there whole or not at all."""

    place: str

    @property
    def here(self) -> Path | None:
        """As a path, where it is on this machine."""
        return None if "://" in self.place else Path(self.place)

    @as_of_a_disk()
    def write(self, name: str, content: bytes) -> None:
        """Write a file: beside and renamed on a disk, in one upload elsewhere."""
        if self.here is not None:
            write_bytes(self.here / name, content)
        else:
            system, base = filesystem(self.place)
            system.pipe_file(f"{base}/{name}", content)

    @as_of_a_disk()
    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none."""
        system, base = filesystem(self.place)
        try:
            return bytes(system.cat_file(f"{base}/{name}"))
        except FileNotFoundError:
            return None

    @as_of_a_disk()
    def sizes(self, below: str) -> dict[str, int]:
        """The files below a folder of it, by their names from here, with their bytes; no half written one."""
        system, base = filesystem(self.place)
        system.invalidate_cache()
        found = system.find(f"{base}/{below}", detail=True).items()
        sizes = {path[len(base) + 1 :]: one["size"] for path, one in found}
        return {name: size for name, size in sizes.items() if "/." not in name}
