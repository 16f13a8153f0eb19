"""A lock that lets one process at a time write into a folder of results."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tokenlight.errors import BadInput

LOCK_FILE = ".lock"
# The owner stands in a file of its own: some versions of filelock truncate the lock file when they open it.
OWNER_FILE = ".lock.owner"
UNKNOWN_OWNER = "unknown"


@contextmanager
def locked_folder(folder: Path, num_workers: int) -> Iterator[None]:
    """Hold the lock of ``folder``. The system releases it when the process ends, even if it is killed.

    Args:
        folder: Folder of results; created if it does not exist.
        num_workers: Number of workers of this run, which other runs show to their user.

    Raises:
        BadInput: Another run holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owner_file = folder / OWNER_FILE
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BadInput(
            f"Another run is working in {folder} ({_read_owner(folder)}). Wait for it, or stop it.",
            code="folder-locked",
        ) from None
    try:
        owner = f"process {os.getpid()} on {socket.gethostname()}, {num_workers} workers"
        owner_file.write_text(owner, encoding="utf-8")
        yield
    finally:
        owner_file.unlink(missing_ok=True)
        lock.release()


def find_lock_owner(folder: Path) -> str:
    """Return a description of the run that holds the lock of ``folder``, or "" if none does."""
    lock_file = folder / LOCK_FILE
    if not lock_file.exists():
        return ""
    try:
        with FileLock(lock_file).acquire(timeout=0):
            return ""
    except Timeout:
        return _read_owner(folder)
    except OSError:  # a lock file that cannot be opened for writing cannot be asked
        return ""


def _read_owner(folder: Path) -> str:
    """Return what the run that holds the lock wrote about itself."""
    try:
        return (folder / OWNER_FILE).read_text(encoding="utf-8") or UNKNOWN_OWNER
    except OSError:  # it holds the lock, but has not written the file yet
        return UNKNOWN_OWNER
