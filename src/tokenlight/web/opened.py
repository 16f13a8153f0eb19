"""What is opened: saved attributions from outside, within what a page can show, and the shelf of files and
benchmark runs that ``--open`` fills at start."""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenlight.data.attribution import FORMAT, Attribution
from tokenlight.data.image import stored_pixels
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.documents import json_of, text_of
from tokenlight.web.limits import ServerLimits
from tokenlight.web.refusals import keep_secret, without_paths

MOST_TOKENS = 20_000
MOST_LAYERS = 1_000
MOST_FILES = 200
MOST_ROWS = 20_000
TABLES = ("scores", "cells", "curves", "failures")
RUN, SUMMARY, REPORT = "run.json", "summary.json", "report.html"


def opened(content: Any, limits: ServerLimits) -> list[Attribution]:
    """Attributions out of parsed JSON: one, or a list of them."""
    entries = content if isinstance(content, list) else [content]
    if not 0 < len(entries) <= limits.open_entries:
        held = f"this file holds {len(entries)} explanations"
        raise DamagedFile(f"{held}; 1 to {limits.open_entries} can be opened.")
    if sum(map(_pixels, entries)) > limits.open_pixels:
        raise DamagedFile(f"its pictures have more than {limits.open_pixels:,} pixels together.")
    return [_checked(entry) for entry in entries]


def parsed(body: bytes) -> Any:
    """JSON without NaN; what is none is said."""

    def no_number(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return json_of(body.decode("utf-8"), parse_constant=no_number)
    except ValueError as broken:
        raise DamagedFile(f"this is not a JSON file: {str(broken)[:120]}.") from broken


def _pixels(entry: Any) -> int:
    """How large its picture is, before it is unpacked; what is wrong with an entry is said later."""
    row = entry.get("row") if isinstance(entry, Mapping) else None
    image = row.get("image") if isinstance(row, Mapping) else None
    try:
        return 0 if image is None else stored_pixels(image)
    except (TokenlightError, KeyError, TypeError, ValueError) as wrong:
        raise DamagedFile(f"row.image: {wrong}") from wrong


def _checked(entry: Any) -> Attribution:
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        raise DamagedFile(f"this is not a saved attribution of format {FORMAT}.")
    try:
        made = Attribution.from_dict(entry)
    except TokenlightError as wrong:
        raise DamagedFile(str(wrong)) from wrong
    if len(made) > MOST_TOKENS or (made.layers is not None and len(made.layers) > MOST_LAYERS):
        raise DamagedFile(f"more than {MOST_TOKENS:,} tokens or {MOST_LAYERS:,} layers.")
    return replace(made, model=without_paths(made.model))


@dataclass(frozen=True, eq=False)
class Shelf:
    """Attributions by the name of their file; runs by name, as the page reads them, and their reports."""

    files: dict[str, list[Attribution]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: dict[str, bytes] = field(default_factory=dict)

    def put(self, place: Path, limits: ServerLimits) -> None:
        """A run, or a file of attributions; what is wrong with it is said with its name."""
        try:
            if place.is_dir():
                self._put_run(place, _free(place.resolve().name, self.runs))
            else:
                made = opened(parsed(text_of(place).encode("utf-8")), limits)
                self.files[_free(place.name, self.files)] = made
        except (OSError, ValueError) as wrong:
            why = getattr(wrong, "strerror", None)
            raise DamagedFile(f"{place} cannot be opened: {f'{why}.' if why else wrong}") from wrong

    def _put_run(self, place: Path, name: str) -> None:
        manifest, tables = {}, {}
        for file in filter(Path.is_file, (place / RUN, place / SUMMARY)):
            manifest[file.stem] = _bare(parsed(text_of(file).encode("utf-8")))
        for file in filter(Path.is_file, (place / f"{table}.csv" for table in TABLES)):
            with file.open(encoding="utf-8", newline="") as stream:
                rows = islice(csv.DictReader(stream), MOST_ROWS)
                tables[file.stem] = [{str(k): _value(v) for k, v in row.items()} for row in rows]
        link, report = f"/api/opened/{quote(name, safe='')}/report", _report(place)
        if report is not None:
            self.reports[name] = report
        told = {"name": name, "report": link if report else None, "manifest": manifest}
        self.runs[name] = {**told, **tables}


def shelf(places: Sequence[str], limits: ServerLimits) -> Shelf:
    """Read files, runs and folders of them, where other JSON files are passed over."""
    found = Shelf()
    for given in places:
        place = Path(given)
        keep_secret({given, str(place.resolve()), str(place.resolve().parent)})
        if not place.is_dir() or any((place / name).is_file() for name in (RUN, SUMMARY)):
            found.put(place, limits)
            continue
        before = len(found.runs) + len(found.files)
        for one in sorted(place.glob(f"*/{RUN}")):
            found.put(one.parent, limits)
        for one in sorted(place.glob("*.json"))[:MOST_FILES]:
            with suppress(DamagedFile):
                found.put(one, limits)
        if len(found.runs) + len(found.files) == before:
            none = "holds no saved attribution (.json) and no benchmark run (run.json)"
            raise DamagedFile(f"{place} {none}.")
    return found


def _report(place: Path) -> bytes | None:
    """The report beside the run; one is made where there is none, and the run can be read."""
    if (place / REPORT).is_file():
        return (place / REPORT).read_bytes()
    with tempfile.TemporaryDirectory() as folder, suppress(TokenlightError):
        if (place / RUN).is_file():
            from tokenlight.bench.report.write import report

            report(place, "html", output=Path(folder) / REPORT)
            return (Path(folder) / REPORT).read_bytes()
    return None


def _bare(value: Any) -> Any:
    """The same values; of a path only its last name."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items()}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def _value(text: Any) -> Any:
    """A cell of a table: a number where it reads as a finite one, else its text without paths."""
    with suppress(TypeError, ValueError):  # a list, where a row is too long, or words
        return number if isfinite(number := float(text)) else text
    return without_paths(text) if isinstance(text, str) and text else None


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """The name, with a number behind it where it is taken."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free
