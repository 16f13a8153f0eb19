"""What is opened: saved attributions from outside, within what a page can show, and the shelf of files and
benchmark runs that ``--open`` fills at start."""

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
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
        raise DamagedFile(
            f"this file holds {len(entries)} explanations; 1 to {limits.open_entries} can be opened."
        )
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

    def put(self, place: Path, limits: ServerLimits) -> None:
        """A run, or a file of attributions."""
        with _naming(place):
            if place.is_dir():
                run = _run(place, _free(place.resolve().name, self.runs))
                self.runs[run.name] = run
            else:
                made = opened(parsed(text_of(place).encode("utf-8")), limits)
                self.files[_free(place.name, self.files)] = made


def shelf(places: Sequence[str], limits: ServerLimits) -> Shelf:
    """Read every file, run and folder of them; what cannot be read stops the start, but other JSON files
    in a folder are passed over."""
    found = Shelf()
    for given in places:
        place = Path(given)
        keep_secret({given, str(place.resolve()), str(place.resolve().parent)})
        if not place.is_dir() or any((place / name).is_file() for name in (RUN, SUMMARY)):
            found.put(place, limits)
            continue
        before = len(found.runs) + len(found.files)
        for one in sorted(place.iterdir()):
            if (one / RUN).is_file():
                found.put(one, limits)
        for one in sorted(place.glob("*.json"))[:MOST_FILES]:
            with suppress(DamagedFile):
                found.put(one, limits)
        if len(found.runs) + len(found.files) == before:
            raise DamagedFile(
                f"{place} holds no saved attribution (.json) and no benchmark run (run.json)."
            )
    return found


@contextmanager
def _naming(place: Path) -> Iterator[None]:
    """What is wrong with a file is said with its name."""
    try:
        yield
    except (OSError, ValueError) as broken:
        why = getattr(broken, "strerror", None)
        raise DamagedFile(f"{place} cannot be opened: {f'{why}.' if why else broken}") from broken


def _run(place: Path, name: str) -> OpenedRun:
    manifest, tables = {}, {}
    for file in filter(Path.is_file, (place / RUN, place / SUMMARY)):
        manifest[file.stem] = _bare(parsed(text_of(file).encode("utf-8")))
    for file in filter(Path.is_file, (place / f"{name}.csv" for name in TABLES)):
        with file.open(encoding="utf-8", newline="") as stream:
            rows = islice(csv.DictReader(stream), MOST_ROWS)
            tables[file.stem] = [{str(k): _value(v) for k, v in row.items()} for row in rows]
    return OpenedRun(name, manifest, tables, _report(place))


def _report(place: Path) -> bytes | None:
    """The report beside the run; one is made where there is none, and the run can be read."""
    if (place / REPORT).is_file():
        return (place / REPORT).read_bytes()
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


def _value(text: Any) -> Any:
    """A cell of a table: a number where it reads as a finite one, else its text without paths."""
    if not isinstance(text, str) or text == "":
        return None
    with suppress(ValueError):
        value = json_of(text, parse_constant=str)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return without_paths(text)


def _free(name: str, taken: dict[str, Any]) -> str:
    """The name, with a number behind it where it is taken."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free
