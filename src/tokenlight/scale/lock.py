"""A folder of finished pieces: one runner in it, and the settings it was begun with."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, short


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


def tidy(folder: Path) -> None:
    """Take away what a killed run left half written."""
    for left in list(folder.rglob(".*.[0-9]*.part")):
        left.unlink(missing_ok=True)


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


def changed(before: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Sequence[str]:
    """In words, each setting that differs."""
    found: list[str] = []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        where = f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(old, new, f"{where} ")
        elif old != new:
            was, now_is = (short("nothing" if one is None else str(one), 48) for one in (old, new))
            found.append(f"{where} (was {was}, now {now_is})")
    return found


def refuse_other(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on in a folder that was begun with other settings; ``what`` is in it."""
    different = changed(before, now)
    if different:
        told = f"{'; '.join(different[:4])}{' …' * (len(different) > 4)}"
        raise BadInput(
            f"{what} with other settings: {told}. Their numbers must not be mixed: give another folder "
            "with -o, or delete this one."
        )
