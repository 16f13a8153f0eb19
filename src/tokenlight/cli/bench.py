"""``tokenlight bench``: run a suite of measurements, follow its progress, and report on it."""

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from tokenlight.cli import options as option
from tokenlight.cli.command import Command
from tokenlight.cli.console import (
    EXIT_UNFINISHED,
    handle_errors,
    print_error,
    print_message,
    print_table,
    resumable_command,
    write_errors_reported,
)
from tokenlight.cli.options import declare_option
from tokenlight.errors import TokenlightError
from tokenlight.progress import progress_bar

bench = typer.Typer(
    name="bench",
    help="Run a suite of measurements, check its progress and report the results.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NAMED_PATH = "[NAME=]PATH"
SUITE_DEFAULT = "as in the suite"


@bench.command(cls=Command)
@handle_errors
def run(
    suite: str = option.declare_argument(
        "SUITE", "A shipped suite, such as quick, or a .yaml file."
    ),
    *,
    output: Path = declare_option(
        "Folder to write the run into.", "--output -o", ..., group=option.FOLDER
    ),
    model: list[str] | None = declare_option(
        "Model to use for NAME (a data set, a model of the suite, or MODEL/DATA), or without NAME for all; "
        "repeatable.",
        "--model -m",
        metavar=NAMED_PATH,
        group=option.COMPUTE,
    ),
    data: Path | None = declare_option(
        "Folder with one subfolder per data set.", envvar="TOKENLIGHT_DATA", group=option.INPUT
    ),
    limit: int | None = declare_option(
        "Use at most N examples per data set.", min=1, metavar="N", group=option.INPUT
    ),
    offline: bool = declare_option(
        "Download nothing; use embedded models instead.", "--offline", False, group=option.INPUT
    ),
    engine: option.EngineKind | None = option.ENGINE,
    workers: int | None = option.WORKERS,
    address: str | None = option.ADDRESS,
    device: str = declare_option(
        "Device for each worker: cpu, cuda …", default="cpu", group=option.COMPUTE
    ),
    batch_tokens: int | None = declare_option(
        "Maximum tokens per batch.",
        min=1,
        metavar="N",
        show_default=SUITE_DEFAULT,
        group=option.COMPUTE,
    ),
    part_size: int | None = declare_option(
        "Examples per part; more on a GPU.",
        min=1,
        metavar="N",
        show_default=SUITE_DEFAULT,
        group=option.FOLDER,
    ),
    lm: list[str] | None = declare_option(
        "Language model for methods that decode hidden states, with NAME as for --model.",
        metavar=NAMED_PATH,
        group=option.COMPUTE,
    ),
    heads: list[str] | None = declare_option(
        "Heads file for mask_lrp, with NAME as for --model.",
        metavar=NAMED_PATH,
        group=option.COMPUTE,
    ),
    retry_failed: bool = declare_option(
        "Rerun parts with failed examples.", "--retry-failed", False, group=option.FOLDER
    ),
    verbose: bool = option.VERBOSE,  # noqa: ARG001 - read by handle_errors
) -> None:
    """Run SUITE into a folder.

    If the command is stopped, running it again continues where it stopped.
    """
    with progress_bar("loading libraries", None):
        from tokenlight.bench.plan import RunRequest
        from tokenlight.bench.run import run_suite
        from tokenlight.bench.run_folder import RunFolder
        from tokenlight.scale.engine import Engine

    request = RunRequest(
        models=option.parse_pairs("--model", model),
        language_models=option.parse_pairs("--lm", lm),
        heads=option.parse_pairs("--heads", heads),
        data=data,
        limit=limit,
        offline=offline,
        device=device,
        batch_tokens=batch_tokens,
        part_size=part_size,
    )

    def describe_progress() -> str:
        with suppress(TokenlightError):
            num_done, num_parts = RunFolder.open(output).count_parts()
            return f"{num_done} of {num_parts} parts are saved in {output}"
        return "no part was started"

    # However the run ends, its finished parts are kept.
    with resumable_command(describe_progress), write_errors_reported(output):
        summary = run_suite(
            suite,
            output,
            request,
            engine=Engine(engine or "local", workers, address),
            retry_failed=retry_failed,
            on_message=print_message,
        )
    for line in summary.describe():
        print(line)
    for part, error in summary.failed_parts:
        cell = summary.run_folder.cells[part.cell]
        print_error(f"{cell.model} · {cell.data} · {cell.method_label}, part {part.first}: {error}")
    if summary.has_only_failures:
        print_error("Every example failed, so there are no numbers; see failures.csv.")
    if summary.failed_parts or summary.has_only_failures:
        raise typer.Exit(EXIT_UNFINISHED)


@bench.command(cls=Command)
@handle_errors
def status(
    folder: Path = option.declare_argument("FOLDER", "Folder of a run."),
    verbose: bool = option.VERBOSE,  # noqa: ARG001 - read by handle_errors
) -> None:
    """Show which parts of a run are done, failed or missing.

    It also estimates how long the rest will take.
    """
    from tokenlight.bench.run_folder import read_status

    rows = []
    totals = Counter[Any]()
    for cell, counts, error in read_status(folder):
        rows.append(_format_status_row(cell, counts, error))
        totals.update(counts)
    print_table(rows, ("model", "data", "method", "parts", "time", ""))
    _print_totals(folder, totals)


def _format_status_row(cell: Any, counts: Mapping[str, Any], error: str) -> tuple[str, ...]:
    """Format one cell: its names, finished parts, time spent, and what went wrong."""
    from tokenlight.bench.run_folder import format_duration

    # The most serious remark only: the table has one column for it.
    remark = ""
    if cell.reason:
        remark = f"not run: {cell.reason}"
    elif counts["failed"]:
        remark = f"{counts['failed']} failed: {error}"
    elif counts["failed examples"]:
        remark = f"{counts['failed examples']} examples failed"
    parts = f"{counts['done']}/{counts['total']}" if cell.is_run else "–"
    duration = format_duration(counts["seconds"]) if counts["done"] else ""
    return (*cell.identifiers.values(), parts, duration, remark)


def _print_totals(folder: Path, totals: Mapping[str, Any]) -> None:
    from tokenlight.bench.run_folder import format_duration
    from tokenlight.files.folder_lock import find_lock_owner
    from tokenlight.plots.characters import make_visible

    num_done = totals["done"]
    num_failed = totals["failed"]
    num_parts = totals["total"]
    lock_owner = find_lock_owner(folder)
    worker = f"; in progress: {make_visible(lock_owner)}" if lock_owner else ""
    num_missing = num_parts - num_done - num_failed
    print(
        f"{num_done} of {num_parts} parts done, {num_failed} failed, {num_missing} missing{worker}"
    )
    if 0 < num_done < num_parts:
        # The estimate assumes that the other parts take as long as the mean of the finished ones.
        seconds_left = totals["seconds"] / num_done * (num_parts - num_done)
        print(f"about {format_duration(seconds_left)} of work left for one worker")
    elif num_done == num_parts:
        print(f"complete; see: tokenlight bench report {make_visible(str(folder))}")


@bench.command(cls=Command)
@handle_errors
def report(
    folder: Path = option.declare_argument("FOLDER", "Folder of a run, finished or not."),
    form: str = declare_option(
        "Format of the report: md, latex, csv or html.", "--format -f", "md", metavar="FORMAT"
    ),
    output: Path | None = declare_option(
        "Write to this file instead of the terminal.", "--output -o"
    ),
    figures: Path | None = declare_option("Folder for the images that the md report links to."),
    timings: bool = declare_option(
        "Include seconds and passes, which differ from run to run.", default=True
    ),
) -> None:
    """Report on a run: our numbers next to the published ones.

    It says which claims of the papers hold, and what can be compared.
    """
    from tokenlight.bench.report.writers import write_report

    with write_errors_reported(output or folder):
        text = write_report(folder, form, include_timings=timings, figures=figures, output=output)
    if form == "md" and output is None and sys.stdout.isatty():
        from rich.markdown import Markdown

        from tokenlight.plots.terminal import make_console

        make_console(sys.stdout).print(Markdown(text))
        return
    # With a file, the text is the path of that file, which needs a line of its own.
    is_path = output is not None or form == "html"
    typer.echo(text, nl=is_path)
