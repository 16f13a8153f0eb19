"""A folder of finished parts, and the settings it was begun with.

A part is a file of JSON lines. Its last line is a manifest: what the part belongs to, how it was made, and
the hash of the lines before. Files are written atomically, so an interrupted run leaves only complete parts.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenlight.errors import BadInput, DamagedFile, TokenlightError, truncate_text
from tokenlight.files.parsing import parse_json
from tokenlight.files.stores import Folder
from tokenlight.files.write import write_text

MAX_SETTING_LENGTH = 48  # characters of a setting that a message shows
OPTION_NAMES = {"block": "part_size"}  # options of settings that are saved under a former name


def write_part(path: Path, rows: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any]) -> None:
    """Write a part with its manifest, to which size and hash are added.

    Args:
        path: The file; it is written whole or not at all.
        rows: One JSON object per line.
        manifest: The last line: what the rows are of, by which a later run recognizes them.
    """
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    checks = {"bytes": len(lines.encode()), "sha256": _sha256(lines)}
    write_text(path, f"{lines}{json.dumps({**manifest, **checks})}\n")


def read_part(path: Path, expected: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a part.

    Args:
        path: The file.
        expected: Manifest entries that a part of this run must have.

    Raises:
        DamagedFile: The file was changed, or belongs to something else.
    """
    lines, manifest = _split_part(path, expected)
    try:
        if manifest["sha256"] != _sha256(lines):
            raise ValueError("its lines do not match the hash in its manifest")
        # splitlines() would also split at characters such as U+2028, which JSON strings may hold.
        return [parse_json(line) for line in lines.split("\n")[:-1]]
    except (ValueError, KeyError) as error:
        raise DamagedFile(
            f"{path} is damaged: {error}. Run the same command again to recreate it.",
            code="part-damaged",
        ) from error


def read_manifest(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a part; ``expected`` as in :func:`read_part`."""
    return _split_part(path, expected)[1]


def _split_part(path: Path, expected: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the lines of a part and its manifest."""
    try:
        content = path.read_text("utf-8").removesuffix("\n")
        lines, line_end, last_line = content.rpartition("\n")
        manifest = {**parse_json(last_line)}
    except (OSError, ValueError, TypeError) as error:
        raise DamagedFile(
            f"{path} is damaged: {error}. Run the same command again to recreate it.",
            code="part-unreadable",
        ) from error
    different = [key for key, value in expected.items() if manifest.get(key) != value]
    if different:
        raise DamagedFile(
            f"{path} belongs to another part or run ({', '.join(different)} differ). Run the same "
            "command again to recreate it.",
            code="part-of-other-run",
        )
    return lines + line_end, manifest


def _sha256(lines: str) -> str:
    return hashlib.sha256(lines.encode()).hexdigest()


@dataclass
class FolderCheck:
    """The result of checking a folder.

    Args:
        num_parts: How many parts there should be.
        num_whole: How many are complete.
        num_missing: How many are not made yet, or gone.
        problems: The damaged files.
        notes: Remarks for the reader.
    """

    num_parts: int
    num_whole: int = 0
    num_missing: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_part(self, path: Path, expected: Mapping[str, Any]) -> None:
        """Count a part if it is unchanged and belongs here."""
        if not path.exists():
            self.num_missing += 1
            return
        try:
            read_part(path, expected)
            self.num_whole += 1
        except DamagedFile as error:
            self.problems.append(str(error))

    def add_products(self, folder: Path, names: Sequence[str]) -> None:
        """Report files that are made from the parts and missing, once all parts are there."""
        if self.num_whole < self.num_parts:
            return
        for name in names:
            if not (folder / name).exists():
                self.problems.append(f"{folder / name} is missing")

    @property
    def is_whole(self) -> bool:
        return self.num_whole == self.num_parts and not self.problems


def remove_partial_files(folder: Path) -> None:
    """Delete temporary files that a killed run left; earlier versions named them ``.part``."""
    for suffix in ("tmp", "part"):
        for path in list(folder.rglob(f".*.[0-9]*.{suffix}")):
            path.unlink(missing_ok=True)


def describe_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> Sequence[str]:
    """Describe each setting that differs.

    Args:
        before: The old settings.
        after: The new settings.
        prefix: Names of the settings that hold these, for nested ones.
    """
    changes: list[str] = []
    # Keys of both, in order.
    for key in dict.fromkeys((*before, *after)):
        old = before.get(key)
        new = after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += describe_changes(old, new, f"{prefix}{key} ")
        elif old != new:
            name = OPTION_NAMES.get(key, key)
            changes.append(
                f"{prefix}{name} (was {_format_setting(old)}, now {_format_setting(new)})"
            )
    return changes


def _format_setting(value: Any) -> str:
    return "nothing" if value is None else truncate_text(str(value), MAX_SETTING_LENGTH)


def claim_folder(description: str, folder: Folder, name: str, settings: Mapping[str, Any]) -> None:
    """Write the settings of a run into a folder, or check that they are those it was begun with.

    Args:
        description: Content of the folder, for messages.
        folder: The folder.
        name: Name of the file for the settings.
        settings: JSON values.

    Raises:
        BadInput: The folder was begun with other settings.
        DamagedFile: The file of settings cannot be read.
    """
    content = json.dumps(settings, ensure_ascii=False, indent=1)
    old_content = folder.read(name)
    if old_content is None:
        folder.write(name, content.encode())
        return
    try:
        before = {**parse_json(old_content.decode())}
    except TokenlightError:
        raise
    except (ValueError, TypeError) as error:
        raise DamagedFile(
            f"{folder.location}/{name} is damaged ({error}). Delete this file and run the command again; it "
            "continues with what is finished.",
            code="settings-damaged",
        ) from error
    check_same_settings(f"{folder.location} holds {description}", before, json.loads(content))


def check_same_settings(
    description: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Refuse to continue in a folder that was begun with other settings.

    Args:
        description: What the folder holds, as the beginning of the message.
        before: The settings that the folder was begun with.
        after: The settings of this call.
    """
    changes = describe_changes(before, after)
    if changes:
        more = " …" if len(changes) > 4 else ""
        raise BadInput(
            f"{description} with other settings: {'; '.join(changes[:4])}{more}. Give another folder with "
            "-o.",
            code="settings-differ",
        )
