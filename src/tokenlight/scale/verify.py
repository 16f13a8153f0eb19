"""Check a folder of explained files against its manifest; neither the data nor the model is needed."""

from collections.abc import Callable

from tokenlight.errors import DamagedFile, TokenlightError
from tokenlight.files.attribution_parquet import FORMAT_VERSION
from tokenlight.files.parsing import parse_json
from tokenlight.files.parts import FolderCheck
from tokenlight.files.stores import Folder
from tokenlight.scale.file_job import JOB_FILE
from tokenlight.scale.manifest import MANIFEST, Manifest
from tokenlight.scale.text_files import FilePart, split_rows


def check_explained_folder(
    folder: str, on_message: Callable[[str], None], progress: bool | None = None
) -> FolderCheck:
    """Check every part of a folder that ``explain_files()`` wrote against the manifest.

    Args:
        folder: Path or URL of the folder.
        on_message: Called with a sentence on the progress if the check takes long.
        progress: Whether to show a progress bar; by default if standard error is a terminal.

    Returns:
        How many parts are whole, and what is wrong with the others.

    Raises:
        DamagedFile: The settings in the folder cannot be read.
    """
    # The parts follow from the numbers of rows in the settings; the input files are not opened.
    store = Folder(folder)
    manifest = Manifest(store, read_parts(store))
    check = FolderCheck(len(manifest.parts))
    for problem in manifest.read():
        check.problems.append(f"{MANIFEST} is damaged: {problem}")
    damaged = manifest.find_damaged(on_message, progress)
    for index in sorted(damaged):
        check.problems.append(damaged[index])
    check.num_whole = len(manifest.entries) - len(damaged)
    check.num_missing = check.num_parts - len(manifest.entries)
    num_unchecked = manifest.count_parts_without_checksum()
    if num_unchecked:
        check.notes.append(
            f"{num_unchecked} parts are from a version without checksums. Only their sizes were checked."
        )
    return check


def read_parts(folder: Folder) -> list[FilePart]:
    """Return the parts of a job, from the settings in its folder."""
    try:
        settings = parse_json((folder.read(JOB_FILE) or b"").decode("utf-8"))
        if settings["format"] != FORMAT_VERSION:
            raise ValueError(f"its format is {settings['format']!r:.20}, not {FORMAT_VERSION}")
        row_counts = [int(source.partition(" ")[0]) for source in settings["files"].values()]
        return split_rows(row_counts, int(settings["block"]), settings["limit"])
    except TokenlightError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(
            f"{folder.location}/{JOB_FILE} is damaged ({error}). Delete this file, then run the command "
            "that wrote the folder again: it continues with the finished parts.",
            code="job-file-damaged",
        ) from error
