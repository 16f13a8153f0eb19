"""Files and folders on this machine or behind a URL: s3://, gs://, hf:// and all that fsspec supports."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, TokenlightError
from tokenlight.files.write import write_bytes


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a path or URL, and the path in it.

    Raises:
        BadInput: The URL is malformed, or its library is not installed.
    """
    import fsspec.core

    try:
        filesystem: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except TokenlightError:
        raise
    except (ImportError, ValueError, OSError) as error:
        raise BadInput(
            f"{url} cannot be reached: {error}. Check the address and the credentials.",
            code="url-unreachable",
        ) from error
    return filesystem


@contextmanager
def store_errors_as_oserror() -> Iterator[None]:
    """Turn the errors of a store's library (no credentials, no network) into OSErrors, as of a disk."""
    try:
        yield
    except (OSError, TokenlightError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class StoredFile:
    """A file, with the methods of a ``Path`` that readers of tables use.

    Args:
        root: Path or URL that determines the file system.
        path: Path in the file system.
        st_size: Size in bytes.
        version_key: Changes when the content may have changed.
    """

    root: str
    path: str
    st_size: int = 0
    version_key: str = ""

    @classmethod
    def from_path(cls, root: str, path: str) -> "StoredFile":
        """Return the file with its current size and version.

        Raises:
            DamagedFile: The file does not exist or cannot be read.
        """
        system, _ = open_filesystem(root)
        try:
            with store_errors_as_oserror():
                # fsspec caches listings, which other processes may have made stale.
                system.invalidate_cache()
                return cls(root, path, system.size(path), system.ukey(path))
        except FileNotFoundError as error:
            raise DamagedFile(
                f"{path} does not exist. Restore it.", code="stored-file-missing"
            ) from error
        except TokenlightError:
            raise
        except OSError as error:
            raise DamagedFile(
                f"{path} cannot be read: {error}. Check the permissions and the connection.",
                code="stored-file-unreadable",
            ) from error

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def stat(self) -> "StoredFile":
        return self

    @store_errors_as_oserror()
    def open(self, _mode: str = "rb") -> Any:
        return open_filesystem(self.root)[0].open(self.path, "rb")


def find_files(source: str, extensions: tuple[str, ...]) -> list[StoredFile]:
    """Return the files that a path, folder, glob or URL names, sorted.

    Args:
        source: The path, folder, glob or URL.
        extensions: Of a folder, only files with these extensions; hidden files are left out.

    Raises:
        BadInput: The source cannot be reached.
        DamagedFile: There is no such file.
    """
    system, path = open_filesystem(source)
    try:
        with store_errors_as_oserror():
            is_folder = system.isdir(path)
            paths = _list_paths(system, path, extensions)
    except TokenlightError:
        raise
    except OSError as error:
        raise BadInput(
            f"{source} cannot be read: {error}. Check the permissions and the connection.",
            code="source-unreadable",
        ) from error
    if not paths and is_folder:
        raise DamagedFile(
            f"{source}: no file in this folder ends in {', '.join(extensions)}. Give another folder.",
            code="folder-without-files",
        )
    if not paths:
        raise DamagedFile(f"{source} does not exist. Check its name.", code="no-such-file")
    return [StoredFile.from_path(source, found_path) for found_path in sorted(paths)]


def _list_paths(system: Any, path: str, extensions: tuple[str, ...]) -> list[str]:
    """Return the files that a path or glob matches, or those below a folder that are not hidden."""
    if not system.isdir(path):
        matches = [path] if system.exists(path) else system.glob(path)
        return [match for match in matches if not system.isdir(match)]
    paths = []
    for file_path in system.find(path):
        is_hidden = re.search("/[._]", file_path[len(path) :]) is not None
        if file_path.lower().endswith(extensions) and not is_hidden:
            paths.append(file_path)
    return paths


@dataclass(frozen=True)
class Folder:
    """A folder to write in. A file in it is complete or does not exist.

    Args:
        location: Path or URL.
    """

    location: str

    @property
    def local_path(self) -> Path | None:
        """The path, if the folder is on this machine."""
        return None if "://" in self.location else Path(self.location)

    @store_errors_as_oserror()
    def write(self, name: str, content: bytes) -> None:
        """Write a file: on a disk under a temporary name and renamed, elsewhere in one upload."""
        if self.local_path is not None:
            write_bytes(self.local_path / name, content)
        else:
            system, base = open_filesystem(self.location)
            system.pipe_file(f"{base}/{name}", content)

    @store_errors_as_oserror()
    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        system, base = open_filesystem(self.location)
        try:
            return bytes(system.cat_file(f"{base}/{name}"))
        except FileNotFoundError:
            return None

    @store_errors_as_oserror()
    def sha256(self, name: str) -> str:
        """Return the SHA-256 of a file, which is read piece by piece."""
        system, base = open_filesystem(self.location)
        with system.open(f"{base}/{name}", "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    @store_errors_as_oserror()
    def list_sizes(self, subfolder: str) -> dict[str, int]:
        """Return the sizes in bytes of all files in a subfolder, by their names relative to this folder."""
        system, base = open_filesystem(self.location)
        # Another process may have written files since the last listing.
        system.invalidate_cache()
        sizes = {}
        for path, info in system.find(f"{base}/{subfolder}", detail=True).items():
            name = path[len(base) + 1 :]
            if "/." not in name:  # hidden files are not finished yet
                sizes[name] = info["size"]
        return sizes
