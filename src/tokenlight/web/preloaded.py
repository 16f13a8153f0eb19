"""What ``--open`` puts on the shelf: saved attributions and benchmark runs, read once at start."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenlight.data.attribution import Attribution
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.documents import json_of, text_of
from tokenlight.web.limits import Limits
from tokenlight.web.refusals import Refusal, keep_secret, without_paths
from tokenlight.web.uploads import opened, parsed

MOST_FILES = 200
MOST_ROWS = 20_000
TABLES = ("scores", "cells", "curves", "failures")
RUN, SUMMARY, REPORT = "run.json", "summary.json", "report.html"


@dataclass(frozen=True, eq=False)
class Run:
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
    runs: dict[str, Run] = field(default_factory=dict)


def shelf(places: Sequence[str], limits: Limits) -> Shelf:
    """Read every file and folder named; what cannot be read stops the start."""
    found = Shelf()
    for given in places:
        place = Path(given)
        keep_secret({given, str(place.resolve()), str(place.resolve().parent)})
        if place.is_dir() and any((place / name).is_file() for name in (RUN, SUMMARY)):
            _put(_run(place), found)
        elif place.is_dir():
            _folder(place, found, limits)
        else:
            found.files[_free(place.name, found.files)] = _attributions(place, limits)
    return found


def _put(run: Run, found: Shelf) -> None:
    name = _free(run.name, found.runs)
    found.runs[name] = replace(run, name=name)


def _folder(place: Path, found: Shelf, limits: Limits) -> None:
    """Attribution files and runs in a folder; other JSON files are passed over."""
    runs = [p for p in sorted(place.iterdir()) if p.is_dir() and (p / RUN).is_file()]
    files = sorted(place.glob("*.json"))[:MOST_FILES]
    for one in runs:
        _put(_run(one), found)
    opened_any = bool(runs)
    for one in files:
        try:
            found.files[_free(one.name, found.files)] = _attributions(one, limits)
            opened_any = True
        except DamagedFile:
            continue
    if not opened_any:
        raise DamagedFile(
            f"{place} holds no saved attribution (.json) and no benchmark run (run.json)."
        )


def _attributions(place: Path, limits: Limits) -> list[Attribution]:
    try:
        return opened(parsed(_bytes(place)), limits)
    except OSError as broken:
        raise DamagedFile(f"{place} cannot be read: {broken.strerror}.") from broken
    except Refusal as refused:
        raise DamagedFile(f"{place} cannot be opened: {refused.message}") from refused


def _run(place: Path) -> Run:
    manifest = {
        Path(name).stem: _bare(_json(place / name))
        for name in (RUN, SUMMARY)
        if (place / name).is_file()
    }
    tables = {
        name: _bare(_table(place / f"{name}.csv"))
        for name in TABLES
        if (place / f"{name}.csv").is_file()
    }
    return Run(place.resolve().name, manifest, tables, _report(place))


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


def _bytes(file: Path) -> bytes:
    try:
        return text_of(file).encode("utf-8")
    except ValueError as broken:
        raise DamagedFile(f"{file} cannot be read: {broken}.") from broken


def _json(file: Path) -> Any:
    try:
        return parsed(_bytes(file))
    except Refusal as broken:
        raise DamagedFile(f"{file} is damaged: {broken.message}") from broken


def _table(file: Path) -> list[dict[str, Any]]:
    """A CSV table; what reads as a finite number is one."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = []
        for number, row in enumerate(csv.DictReader(stream)):
            if number >= MOST_ROWS:
                break
            rows.append({str(key): _value(value) for key, value in row.items()})
    return rows


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
