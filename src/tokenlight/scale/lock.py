"""One runner in a folder."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenlight.errors import BadInput


@contextmanager
def locked(folder: Path, workers: int) -> Iterator[None]:
    """One runner in a folder. The lock is the system's: it ends with its process, however that ends,
    so what a killed run leaves behind is only the note of who held it."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    place = folder / ".lock"
    with place.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise BadInput(
                f"{folder} is being worked in by another run ({stream.read() or 'unknown'}); wait "
                "for it, stop it, or give another folder."
            ) from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}, {workers} workers")
        stream.flush()
        yield


def worked_in(folder: Path) -> str:
    """Who works in a folder now, empty where nobody does."""
    import fcntl

    place = folder / ".lock"
    if not place.exists():
        return ""
    with place.open("r", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return stream.read() or "unknown"
    return ""
