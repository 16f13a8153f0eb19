"""``tokenlight verify``: check that the files of a results folder are complete and unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import EXIT_UNFINISHED, handle_errors, print_error, print_message
from tokenlight.errors import BadInput

if TYPE_CHECKING:
    from tokenlight.files.parts import FolderCheck

MAX_LISTED_PROBLEMS = 20


@handle_errors
def verify(
    folder: str = option.declare_argument(
        "FOLDER",
        "Folder that explain -o, evaluate -o or bench run -o wrote; for explain -o, also a URL.",
    ),
    verbose: bool = option.VERBOSE,  # noqa: ARG001 - read by handle_errors
) -> None:
    """Check a folder of results against its checksums.

    The exit status is 1 if something is damaged or missing; the command that wrote the folder restores it.
    """
    # Problems go to standard error; the summary is the output of the command.
    check = _check_folder(folder)
    for problem in check.problems[:MAX_LISTED_PROBLEMS]:
        print_error(problem)
    num_unlisted = len(check.problems) - MAX_LISTED_PROBLEMS
    if num_unlisted > 0:
        print_error(f"{num_unlisted} more problems are not listed")
    if check.num_missing:
        print_message(f"{check.num_missing} parts are missing: not made yet, or lost", "yellow")
    for note in check.notes:
        print_message(note, "yellow")
    print(f"{check.num_whole:,} of {check.num_parts:,} parts are intact in {folder}")
    if not check.is_whole:
        print_message("Run the command that wrote the folder again to restore these parts.")
        raise typer.Exit(EXIT_UNFINISHED)


def _check_folder(folder: str) -> FolderCheck:
    """Check a folder of any kind; its settings file tells which command wrote it."""
    from tokenlight.files.stores import Folder

    path = Path(folder)
    if (path / "run.json").exists():
        from tokenlight.bench.run_folder import check_run

        return check_run(path)
    if (path / "settings.json").exists():
        from tokenlight.evaluation.run import check_evaluation

        return check_evaluation(path)
    is_url = "://" in folder
    if not is_url and not path.is_dir():
        raise BadInput(
            f"{folder} is not a folder. Give one that explain -o, evaluate -o or bench run wrote.",
            code="verify-not-a-folder",
        )
    if Folder(folder).read("job.json") is None:
        raise BadInput(
            f"{folder} has no job.json, settings.json or run.json, so it cannot be checked. Give a folder "
            "that explain -o, evaluate -o or bench run wrote; if the file was lost, run the same "
            "command again to restore it.",
            code="verify-no-settings",
        )
    from tokenlight.scale.verify import check_explained_folder

    return check_explained_folder(folder, print_message)
