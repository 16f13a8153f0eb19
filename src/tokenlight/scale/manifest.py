"""The manifest of a job: ``manifest.jsonl``, one line per finished part with the checksums of its files."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tokenlight.files.parsing import parse_json
from tokenlight.files.stores import Folder
from tokenlight.progress import progress_bar
from tokenlight.scale.text_files import FilePart

MANIFEST = "manifest.jsonl"
READER_THREADS = 8  # object stores answer slowly, and hashing releases the interpreter lock
FILES_PER_BATCH = 64  # files checked between two looks at the clock
FIRST_MESSAGE_SECONDS = 2.0  # a shorter check needs no message
MESSAGE_INTERVAL_SECONDS = 30.0

Entry = dict[str, Any]  # what a line of the manifest says about a part


@dataclass(frozen=True)
class PartFile:
    """A file that a finished part must have; manifests of older versions know less about it."""

    part: int
    name: str
    size: int | None  # in bytes
    sha256: str | None


def describe_files(rows: bytes, refused: bytes | None) -> Entry:
    """Return size and checksum of the files of a part, as its line in the manifest has them."""
    entry: Entry = {"bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()}
    if refused is not None:
        entry["refused_bytes"] = len(refused)
        entry["refused_sha256"] = hashlib.sha256(refused).hexdigest()
    return entry


class Manifest:
    """The finished parts among ``parts``, each with its entry: rows, refused texts, sizes, checksums."""

    def __init__(self, folder: Folder, parts: Sequence[FilePart]) -> None:
        self.folder = folder
        self.parts = {part.index: part for part in parts}
        self.entries: dict[int, Entry] = {}

    def read(self) -> list[str]:
        """Read the entries from the folder; return what is wrong with the lines that cannot be used."""
        problems: list[str] = []
        lines = (self.folder.read(MANIFEST) or b"").split(b"\n")
        for line_number, line in enumerate(lines, 1):
            if not line.strip():  # the last line ends in a line break
                continue
            try:
                self._read_line(line)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                problems.append(f"line {line_number} cannot be read: {error!r}")
        return problems

    def _read_line(self, line: bytes) -> None:
        """Add the entry of one line; any error of these kinds means that the line is damaged."""
        entry = parse_json(line.decode("utf-8"))
        part = self.parts[entry.pop("block")]  # the number of the part
        if entry["rows"] + entry["refused"] != part.num_texts:
            raise ValueError(f"its numbers do not add up to the {part.num_texts} texts of its part")
        if not isinstance(entry["bytes"], int):
            raise TypeError("its bytes are not a number")
        self.entries[part.index] = entry

    def write(self) -> None:
        """Write the entries into the folder, replacing the manifest in one step."""
        lines: list[str] = []
        for index in sorted(self.entries):
            lines.append(json.dumps({"block": index, **self.entries[index]}) + "\n")
        self.folder.write(MANIFEST, "".join(lines).encode())

    def list_files(self) -> list[PartFile]:
        """Return every file that the entries name."""
        files: list[PartFile] = []
        for index, entry in sorted(self.entries.items()):
            name = self.parts[index].file_name
            files.append(
                PartFile(
                    part=index,
                    name=f"rows/{name}",
                    size=entry["bytes"],
                    sha256=entry.get("sha256"),
                )
            )
            if entry["refused"]:
                size = entry.get("refused_bytes")
                sha256 = entry.get("refused_sha256")
                files.append(PartFile(part=index, name=f"refused/{name}", size=size, sha256=sha256))
        return files

    def find_missing(self) -> dict[int, str]:
        """Return parts that lack a file, or with a file of another size; each with the reason."""
        sizes = {**self.folder.list_sizes("rows"), **self.folder.list_sizes("refused")}
        missing: dict[int, str] = {}
        for file in self.list_files():
            size = sizes.get(file.name)
            if size is None:
                missing.setdefault(file.part, f"{file.name} is missing")
            elif file.size not in (None, size):  # old manifests have no size of the refused texts
                reason = f"{file.name} has {size:,} bytes instead of {file.size:,}"
                missing.setdefault(file.part, reason)
        return missing

    def find_damaged(
        self, on_message: Callable[[str], None], progress: bool | None = None
    ) -> dict[int, str]:
        """Return parts with missing files, or files of another size or checksum; each with the reason.

        Every file is read once.

        Args:
            on_message: Called with a sentence on the progress if the check takes long.
            progress: Whether to show a progress bar; by default if standard error is a terminal.
        """
        damaged = self.find_missing()
        # Files without a checksum come from an older version; files of missing parts are not read.
        files = [file for file in self.list_files() if file.sha256 and file.part not in damaged]
        total_bytes = _sum_sizes(files)
        checked_bytes = 0
        next_message = time.monotonic() + FIRST_MESSAGE_SECONDS
        with progress_bar("checking", total_bytes, progress) as advance:
            for batch, problems in self._check_batches(files):
                for file, problem in zip(batch, problems, strict=True):
                    if problem:
                        damaged.setdefault(file.part, problem)
                checked_bytes += _sum_sizes(batch)
                advance(_sum_sizes(batch))
                if time.monotonic() > next_message:
                    next_message = time.monotonic() + MESSAGE_INTERVAL_SECONDS
                    on_message(
                        f"checking finished parts: {checked_bytes / 1e6:,.0f} of "
                        f"{total_bytes / 1e6:,.0f} MB"
                    )
        return damaged

    def _check_batches(
        self, files: Sequence[PartFile]
    ) -> Iterator[tuple[Sequence[PartFile], list[str]]]:
        """Yield the files in batches, each with the problems of its files."""
        with ThreadPoolExecutor(READER_THREADS) as readers:
            for start in range(0, len(files), FILES_PER_BATCH):
                batch = files[start : start + FILES_PER_BATCH]
                yield batch, list(readers.map(self._check_content, batch))

    def _check_content(self, file: PartFile) -> str:
        """Return why the content of a file is wrong, or "" if it is right."""
        try:
            sha256 = self.folder.sha256(file.name)
        except OSError as error:
            return f"{file.name} cannot be read ({error.strerror or error})"
        if sha256 != file.sha256:
            return f"{file.name} has a different checksum"
        return ""

    def count_parts_without_checksum(self) -> int:
        """Return the number of parts that were written before checksums were kept."""
        return len({file.part for file in self.list_files() if not file.sha256})

    def remove_parts(self, part_indices: Mapping[int, str]) -> None:
        """Remove parts from the manifest, so that they are made again."""
        for index in part_indices:
            del self.entries[index]


def _sum_sizes(files: Sequence[PartFile]) -> int:
    """Return the bytes of some files; unknown sizes count as 0."""
    return sum(file.size or 0 for file in files)
