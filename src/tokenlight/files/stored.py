"""Where files stand: a folder here, or behind s3://, gs://, hf:// and whatever else fsspec knows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.write import write_bytes


def filesystem(place: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    import fsspec.core

    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(place)
    except (ImportError, ValueError, OSError) as missing:
        raise BadInput(f"{place} cannot be reached: {missing}.") from missing
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
        try:
            with as_of_a_disk():
                system.invalidate_cache()
                return cls(root, path, system.size(path), system.ukey(path))
        except FileNotFoundError as missing:
            raise DamagedFile(f"{path} does not exist (any more); put it back.") from missing
        except OSError as broken:
            raise DamagedFile(f"{path} cannot be read: {broken}.") from broken

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    def stat(self) -> "StoredFile":
        """Itself, which knows its size."""
        return self

    @as_of_a_disk()
    def open(self, _mode: str = "rb") -> Any:
        """A stream of its bytes."""
        return filesystem(self.root)[0].open(self.path, "rb")


def files_at(source: str, endings: tuple[str, ...]) -> list[StoredFile]:
    """The files that a path, folder, glob (``*``, ``**``) or URL names, in order of their paths. Of a
    folder those with these endings, hidden ones left out."""
    system, path = filesystem(source)
    try:
        with as_of_a_disk():
            is_folder = system.isdir(path)
            if is_folder:
                found = [one for one in system.find(path) if one.lower().endswith(endings)]
                found = [one for one in found if not re.search("/[._]", one[len(path) :])]
            else:
                found = [path] if system.exists(path) else system.glob(path)
                found = [one for one in found if not system.isdir(one)]
    except OSError as refused:
        raise BadInput(f"{source} cannot be read: {refused}.") from refused
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
            write_bytes(self.here / name, content, durable=True)
            return
        system, base = filesystem(self.place)
        system.pipe_file(f"{base}/{name}", content)

    @as_of_a_disk()
    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is none."""
        system, base = filesystem(self.place)
        try:
            content: bytes = system.cat_file(f"{base}/{name}")
        except FileNotFoundError:
            return None
        return content

    @as_of_a_disk()
    def sizes(self, below: str) -> dict[str, int]:
        """The files below a folder of it, by their names from here, with their bytes; what is still being
        written, or was when its writer was killed, is none."""
        system, base = filesystem(self.place)
        system.invalidate_cache()
        found = system.find(f"{base}/{below}", detail=True).items()
        sizes = {path[len(base) + 1 :]: one["size"] for path, one in found}
        return {name: size for name, size in sizes.items() if "/." not in name}
