"""A folder of finished parts: one runner in it, and the settings it was begun with.

A part is one file of JSON lines, the last of which is its manifest: what it belongs to, how it was made,
and the hash of the lines before. It is written beside and renamed: a stop leaves whole parts only.
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, short
from tokenlight.files.documents import json_of
from tokenlight.files.write import Folder, write_text

AGAIN = "; the same command makes it again."


def write_part(place: Path, rows: Iterable[Mapping[str, Any]], said: Mapping[str, Any]) -> None:
    """Write a part with what its manifest says."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    own = {"bytes": len(lines.encode()), "sha256": _hash(lines)}
    write_text(place, f"{lines}{json.dumps({**said, **own})}\n")


def read_part(place: Path, belonging: Mapping[str, Any]) -> list[Any]:
    """The rows of a part; DamagedFile where they are not as they were written, or of another."""
    lines, said = _opened(place, belonging)
    with DamagedFile.telling(f"{place} is damaged: ", ValueError, KeyError, end=AGAIN):
        if said["sha256"] != _hash(lines):
            raise ValueError("its lines are not those that its manifest names")
        # splitlines() would also cut at characters such as U+2028, which JSON strings may hold.
        return [json_of(line) for line in lines.split("\n")[:-1]]


def manifest_of(place: Path, belonging: Mapping[str, Any]) -> dict[str, Any]:
    """A part's manifest; ``belonging``: what it must say to be this one's."""
    return _opened(place, belonging)[1]


def _opened(place: Path, belonging: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    with DamagedFile.telling(f"{place} is damaged: ", OSError, ValueError, TypeError, end=AGAIN):
        lines, end, last = place.read_text("utf-8").removesuffix("\n").rpartition("\n")
        said = {**json_of(last)}
    if odd := [key for key, value in belonging.items() if said.get(key) != value]:
        raise DamagedFile(f"{place} is of another part or run ({', '.join(odd)} differ){AGAIN}")
    return lines + end, said


def _hash(lines: str) -> str:
    return hashlib.sha256(lines.encode()).hexdigest()


@contextmanager
def locked(folder: Path, workers: int) -> Iterator[None]:
    """One runner in a folder. The lock is the system's: it ends with its process, however that ends."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    place = folder / ".lock"
    with place.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            told = f"{folder} is being worked in by another run ({stream.read()})"
            raise BadInput(f"{told}; wait for it, or stop it.") from None
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
        old, new, where = before.get(key), now.get(key), f"{place}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found += changed(old, new, f"{where} ")
        elif old != new:
            was, now_is = (short("nothing" if one is None else str(one), 48) for one in (old, new))
            found.append(f"{where} (was {was}, now {now_is})")
    return found


def claim(what: str, folder: Folder, name: str, settings: Mapping[str, Any]) -> None:
    """Write the settings into the file ``name`` of a folder; one that was begun with others is refused."""
    now = json.dumps(settings, ensure_ascii=False, indent=1)
    found = folder.read(name)
    if found is None:
        folder.write(name, now.encode())
        return
    end = "); delete the folder to begin anew."
    with DamagedFile.telling(f"{folder.place}/{name} is damaged (", ValueError, TypeError, end=end):
        before = {**json_of(found.decode())}
    refuse_other(f"{folder.place} holds {what}", before, json.loads(now))


def refuse_other(what: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on in a folder that was begun with other settings; ``what`` is in it."""
    if different := changed(before, now):
        why = f"{'; '.join(different[:4])}{' …' * (len(different) > 4)}"
        raise BadInput(f"{what} with other settings: {why}. So give another folder with -o.")
