"""What ``--open`` puts on the shelf: saved attributions and benchmark runs, read once at start."""

import csv
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenlight.data.attribution import Attribution
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.documents import json_of, text_of
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import keep_secret, without_paths
from tokenlight.web.uploads import opened, parsed

MOST_FILES = 200
MOST_ROWS = 20_000
TABLES = ("scores", "cells", "curves", "failures")
RUN, SUMMARY, REPORT = "run.json", "summary.json", "report.html"


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A benchmark run or an evaluation: its tables, its summary, and its report where it has one."""

    name: str
    manifest: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    report: bytes | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the page reads it."""
        link = f"/api/opened/{quote(self.name, safe='')}/report" if self.report else None
        return {"name": self.name, "report": link, "manifest": self.manifest, **self.tables}


@dataclass(frozen=True, eq=False)
class Shelf:
    """Files of attributions by name, and runs by name."""

    files: dict[str, list[Attribution]] = field(default_factory=dict)
    runs: dict[str, OpenedRun] = field(default_factory=dict)


def shelf(places: Sequence[str], limits: ServerLimits) -> Shelf:
    """Read every file and folder named; what cannot be read stops the start."""
    found = Shelf()
    for given in places:
        place = Path(given)
        keep_secret({given, str(place.resolve()), str(place.resolve().parent)})
        if place.is_dir() and any((place / name).is_file() for name in (RUN, SUMMARY)):
            _put_run(place, found)
        elif place.is_dir():
            _put_folder(place, found, limits)
        else:
            _put_file(place, found, limits)
    return found


def _put_folder(place: Path, found: Shelf, limits: ServerLimits) -> None:
    """Attribution files and runs in a folder; other JSON files are passed over."""
    before = len(found.runs) + len(found.files)
    for one in sorted(place.iterdir()):
        if (one / RUN).is_file():
            _put_run(one, found)
    for one in sorted(place.glob("*.json"))[:MOST_FILES]:
        with suppress(DamagedFile):
            _put_file(one, found, limits)
    if len(found.runs) + len(found.files) == before:
        raise DamagedFile(
            f"{place} holds no saved attribution (.json) and no benchmark run (run.json)."
        )


def _put_file(place: Path, found: Shelf, limits: ServerLimits) -> None:
    with _naming(place):
        made = opened(parsed(text_of(place).encode("utf-8")), limits)
    found.files[_free(place.name, found.files)] = made


def _put_run(place: Path, found: Shelf) -> None:
    manifest, tables = {}, {}
    for file in filter(Path.is_file, (place / RUN, place / SUMMARY)):
        with _naming(file):
            manifest[file.stem] = _bare(parsed(text_of(file).encode("utf-8")))
    for file in filter(Path.is_file, (place / f"{name}.csv" for name in TABLES)):
        tables[file.stem] = _bare(_table(file))
    name = _free(place.resolve().name, found.runs)
    found.runs[name] = OpenedRun(name, manifest, tables, _report(place))


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """What is wrong with a file is said with its name."""
    try:
        yield
    except DamagedFile as broken:
        raise DamagedFile(f"{file} cannot be opened: {broken}") from broken
    except TokenlightError:
        raise
    except OSError as broken:
        raise DamagedFile(f"{file} cannot be read: {broken.strerror}.") from broken
    except ValueError as broken:
        raise DamagedFile(f"{file} cannot be read: {broken}.") from broken


def _report(place: Path) -> bytes | None:
    """The report beside the run; one is made where there is none, and the run can be read."""
    ready = place / REPORT
    if ready.is_file():
        return ready.read_bytes()
    if not (place / RUN).is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / REPORT
        try:
            from tokenlight.bench.report.write import report

            report(place, "html", output=made)
        except TokenlightError:
            return None  # its tables are shown all the same
        return made.read_bytes()


def _bare(value: Any) -> Any:
    """The same values; of a path only its last name."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items()}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def _table(file: Path) -> list[dict[str, Any]]:
    """A CSV table; what reads as a finite number is one."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [
            {str(key): _value(value) for key, value in row.items()}
            for row in islice(csv.DictReader(stream), MOST_ROWS)
        ]


def _value(text: Any) -> Any:
    if not isinstance(text, str) or text == "":
        return None
    try:
        value = json_of(text, parse_constant=str)
    except ValueError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


def _free(name: str, taken: dict[str, Any]) -> str:
    """The name, with a number behind it where it is taken."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free
