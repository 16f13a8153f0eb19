"""Files that users open: saved explanations, and benchmark runs that ``--open`` shows at start."""

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

from tokenlight.data.attribution import FORMAT_VERSION, Attribution
from tokenlight.data.image import count_stored_pixels
from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.parsing import parse_json, read_text
from tokenlight.web.api_errors import hide_paths, strip_paths
from tokenlight.web.limits import ServerLimits

# What the page can show without becoming slow.
MAX_TOKENS = 20_000
MAX_LAYERS = 1_000
MAX_FILES = 200  # of a folder
MAX_ROWS = 20_000  # of a table of a benchmark run
MAX_ERROR_LENGTH = 120  # characters of a parser's message
TABLE_NAMES = ("scores", "cells", "curves", "failures")
RUN_FILE = "run.json"
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"


def load_attributions(content: Any, limits: ServerLimits) -> list[Attribution]:
    """Build attributions from parsed JSON.

    Args:
        content: One saved attribution, or a list of them.
        limits: How many entries and pixels are allowed.

    Raises:
        DamagedFile: An entry is not a saved attribution, or a limit is exceeded.
    """
    entries = content if isinstance(content, list) else [content]
    if not 0 < len(entries) <= limits.open_entries:
        raise DamagedFile(
            f"This file holds {len(entries)} explanations. Open a file with 1 to {limits.open_entries}.",
            code="opened-entries",
        )
    # Images are counted before any is decompressed.
    if sum(map(_count_pixels, entries)) > limits.open_pixels:
        raise DamagedFile(
            f"The images of this file have more than {limits.open_pixels:,} pixels together. Open fewer "
            "or smaller ones.",
            code="opened-pixels",
        )
    return [_load_attribution(entry) for entry in entries]


def parse_json_bytes(body: bytes) -> Any:
    """Parse JSON without NaN and infinity.

    Raises:
        DamagedFile: It is not JSON.
    """

    def refuse_constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return parse_json(body.decode("utf-8"), parse_constant=refuse_constant)
    except ValueError as error:
        raise DamagedFile(
            f"This is not a JSON file: {str(error)[:MAX_ERROR_LENGTH]}.", code="opened-not-json"
        ) from error


def _count_pixels(entry: Any) -> int:
    """Return the size of an entry's image before it is decompressed; 0 if it has none."""
    row = entry.get("row") if isinstance(entry, Mapping) else None
    image = row.get("image") if isinstance(row, Mapping) else None
    if image is None:
        return 0
    try:
        return count_stored_pixels(image)
    except (TokenlightError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"row.image cannot be read: {error}", code="opened-image") from error


def _load_attribution(entry: Any) -> Attribution:
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT_VERSION:
        raise DamagedFile(
            f"This is not a saved attribution of format {FORMAT_VERSION}. Open a file that "
            "Attribution.save() wrote.",
            code="opened-format",
        )
    try:
        attribution = Attribution.from_dict(entry)
    except TokenlightError as error:
        raise DamagedFile(str(error), code=error.code) from error
    num_layers = 0
    if attribution.layers is not None:
        num_layers = len(attribution.layers)
    if len(attribution) > MAX_TOKENS or num_layers > MAX_LAYERS:
        raise DamagedFile(
            f"This explanation has {len(attribution):,} tokens and {num_layers:,} layers. The page shows "
            f"at most {MAX_TOKENS:,} tokens or {MAX_LAYERS:,} layers.",
            code="opened-size",
        )
    return replace(attribution, model=strip_paths(attribution.model))


@dataclass(frozen=True, eq=False)
class OpenedFiles:
    """Files and benchmark runs that the server was started with.

    Args:
        files: File name → its attributions.
        runs: Name of a benchmark run → what the page reads of it.
        reports: Name of a benchmark run → its report, as HTML.
    """

    files: dict[str, list[Attribution]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: dict[str, bytes] = field(default_factory=dict)

    def add(self, path: Path, limits: ServerLimits) -> None:
        """Add the folder of a benchmark run, or a file of attributions.

        Args:
            path: The file or folder.
            limits: How large a file may be.

        Raises:
            DamagedFile: It cannot be read; the message names the path.
        """
        try:
            if path.is_dir():
                self._add_run(path, _make_unique_name(path.resolve().name, self.runs))
            else:
                attributions = load_attributions(_read_json(path), limits)
                self.files[_make_unique_name(path.name, self.files)] = attributions
        except (OSError, ValueError) as error:
            # An error of the system has a short reason; ours are whole sentences.
            system_reason = getattr(error, "strerror", None)
            reason = f"{system_reason}." if system_reason else str(error)
            raise DamagedFile(f"{path} cannot be opened: {reason}", code="open-failed") from error

    def _add_run(self, folder: Path, name: str) -> None:
        manifest: dict[str, Any] = {}
        for file in (folder / RUN_FILE, folder / SUMMARY_FILE):
            if file.is_file():
                manifest[file.stem] = _strip_value_paths(_read_json(file))
        report = _load_report(folder)
        report_link: str | None = None
        if report is not None:
            self.reports[name] = report
        if report:
            report_link = f"/api/opened/{quote(name, safe='')}/report"
        run: dict[str, Any] = {"name": name, "report": report_link, "manifest": manifest}
        for table_name in TABLE_NAMES:
            file = folder / f"{table_name}.csv"
            if file.is_file():
                run[table_name] = _read_table(file)
        self.runs[name] = run


def open_paths(paths: Sequence[str], limits: ServerLimits) -> OpenedFiles:
    """Open files, benchmark runs, and folders of them.

    Args:
        paths: Paths; in a folder, JSON files of other kinds are skipped.
        limits: How large a file may be.

    Raises:
        DamagedFile: A path cannot be opened, or a folder has nothing to open.
    """
    opened_files = OpenedFiles()
    for given_path in paths:
        path = Path(given_path)
        absolute_path = path.resolve()
        hide_paths({given_path, str(absolute_path), str(absolute_path.parent)})
        is_run = (path / RUN_FILE).is_file() or (path / SUMMARY_FILE).is_file()
        if is_run or not path.is_dir():
            opened_files.add(path, limits)
        else:
            _add_folder(opened_files, path, limits)
    return opened_files


def _add_folder(opened_files: OpenedFiles, folder: Path, limits: ServerLimits) -> None:
    """Add all benchmark runs and attributions of a folder."""
    num_before = len(opened_files.runs) + len(opened_files.files)
    for run_file in sorted(folder.glob(f"*/{RUN_FILE}")):
        opened_files.add(run_file.parent, limits)
    for file in sorted(folder.glob("*.json"))[:MAX_FILES]:
        with suppress(DamagedFile):  # other JSON files may lie next to them
            opened_files.add(file, limits)
    if len(opened_files.runs) + len(opened_files.files) == num_before:
        raise DamagedFile(
            f"{folder} contains no saved attribution (.json) and no benchmark run (run.json). Give another "
            "folder.",
            code="open-nothing",
        )


def _read_json(path: Path) -> Any:
    return parse_json_bytes(read_text(path).encode("utf-8"))


def _read_table(file: Path) -> list[dict[str, Any]]:
    """Read the first rows of a CSV table, with numbers as numbers."""
    rows: list[dict[str, Any]] = []
    with file.open(encoding="utf-8", newline="") as stream:
        for row in islice(csv.DictReader(stream), MAX_ROWS):
            rows.append({str(column): _parse_cell(text) for column, text in row.items()})
    return rows


def _load_report(run_folder: Path) -> bytes | None:
    """Return the report of a run; if there is none, it is made in a temporary folder where possible."""
    report_file = run_folder / REPORT_FILE
    if report_file.is_file():
        return report_file.read_bytes()
    if not (run_folder / RUN_FILE).is_file():
        return None
    with tempfile.TemporaryDirectory() as folder, suppress(TokenlightError):
        from tokenlight.bench.report.writers import write_report

        output = Path(folder) / REPORT_FILE
        write_report(run_folder, "html", output=output)
        return output.read_bytes()
    return None


def _strip_value_paths(value: Any) -> Any:
    """Return JSON values with every path in their strings shortened to its last name."""
    if isinstance(value, str):
        return strip_paths(value)
    if isinstance(value, dict):
        return {name: _strip_value_paths(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_strip_value_paths(inner) for inner in value]
    return value


def _parse_cell(text: Any) -> Any:
    """Return a cell of a table as a number if it is a finite one, else as text without paths."""
    try:
        parsed = float(text)
    except (TypeError, ValueError):  # words, or a list where a row is too long
        if isinstance(text, str) and text:
            return strip_paths(text)
        return None
    return parsed if isfinite(parsed) else text


def _make_unique_name(name: str, existing: Mapping[str, Any]) -> str:
    """Return the name, with a number appended if it is taken."""
    unique_name = name
    copy_number = 2
    while unique_name in existing:
        unique_name = f"{name} ({copy_number})"
        copy_number += 1
    return unique_name
