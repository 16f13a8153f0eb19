"""``tokenlight bench``: a suite of measurements in one command, stopped and gone on with at will."""

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from tokenlight.cli import options as option
from tokenlight.cli.console import UNFINISHED, clean, complain, resumable, table, tell, writing
from tokenlight.cli.options import flag
from tokenlight.errors import TokenlightError
from tokenlight.progress import progress

bench = typer.Typer(
    name="bench",
    help="Run a suite of measurements, check its progress and report the results.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NAMED, OWN = "[NAME=]PATH", "the suite's"


@bench.command()
@clean
def run(
    suite: str = option.argument("SUITE", "A shipped suite, such as quick, or a .yaml file."),
    *,
    output: Path = flag("Folder to write the run into.", "--output -o", ...),
    models: list[str] | None = flag(
        "Model to use for NAME: a data set, a model of the suite, or MODEL/DATA; without NAME for "
        "all. Repeatable.",
        metavar=NAMED,
    ),
    data: Path | None = flag("Folder with one subfolder per data set.", envvar="TOKENLIGHT_DATA"),
    limit: int | None = flag("At most N examples of each data set.", min=1, metavar="N"),
    offline: bool = flag("Download nothing; use embedded models instead.", "--offline", False),
    engine: option.Engines | None = option.ENGINE,
    workers: int | None = option.WORKERS,
    address: str | None = option.ADDRESS,
    device: str = flag("Device for each worker: cpu, cuda …", default="cpu"),
    batch_tokens: int | None = flag("Tokens per batch.", min=1, metavar="N", show_default=OWN),
    slice_: int | None = flag(
        "Examples per part; more on a GPU.", "--slice", min=1, metavar="N", show_default=OWN
    ),
    lm: list[str] | None = flag("Language model of decoded methods, NAME as above.", metavar=NAMED),
    heads: list[str] | None = flag("Heads file for mask_lrp, NAME as above.", metavar=NAMED),
    retry_failed: bool = flag("Rerun parts with failed examples.", "--retry-failed", False),
    verbose: bool = option.VERBOSE,  # noqa: ARG001 - read by clean
) -> None:
    """Run SUITE into a folder.

    However it is stopped, the same command continues where it left off.
    """
    with progress("loading libraries", None):
        from tokenlight.bench.plan import Request
        from tokenlight.bench.run import run_suite
        from tokenlight.bench.store import RunFolder
        from tokenlight.scale.engine import Engine

    request = Request(
        models=option.pairs("--models", models),
        lms=option.pairs("--lm", lm),
        heads=option.pairs("--heads", heads),
        data=data,
        limit=limit,
        offline=offline,
        device=device,
        batch_tokens=batch_tokens,
        slice=slice_,
    )

    def kept() -> str:
        with suppress(TokenlightError):
            done, total = RunFolder.open(output).progress()
            return f"{done} of {total} parts are kept in {output}"
        return "nothing was begun"

    made_by = Engine(engine or "local", workers, address)
    with resumable(kept), writing(output):
        finished = run_suite(suite, output, request, engine=made_by, again=retry_failed, tell=tell)
    for line in finished.in_words():
        print(line)
    for part, trouble in finished.failed_parts:
        cell = finished.run.cells[part.cell]
        complain(f"{cell.model} · {cell.data} · {cell.method}, part {part.first}: {trouble}")
    if finished.fruitless:
        complain("every example failed, so no number was made; failures.csv says why.")
    if finished.failed_parts or finished.fruitless:
        raise typer.Exit(UNFINISHED)


@bench.command()
@clean
def status(
    folder: Path = option.argument("FOLDER", "Folder of a run."),
    verbose: bool = option.VERBOSE,  # noqa: ARG001 - read by clean
) -> None:
    """Show which parts of a run are done, failed or missing.

    It also says how long the rest may take.
    """
    from tokenlight.bench.store import in_time
    from tokenlight.bench.store import status as status_of
    from tokenlight.files.parts import worked_in
    from tokenlight.plots.characters import visible

    found, rows = status_of(folder), []
    for cell, own, trouble in found:
        lost = own["failed examples"]
        told = f"{lost} examples failed" if lost else ""
        told = f"{own['failed']} failed: {trouble}" if own["failed"] else told
        told = f"not run: {cell.reason}" if cell.reason else told
        parts = f"{own['done']}/{own['total']}" if cell.runs else "–"
        taken = in_time(own["seconds"]) if own["done"] else ""
        rows.append((*cell.names.values(), parts, taken, told))
    table(rows, ("model", "data", "method", "parts", "time", ""))
    counts = sum((own for _, own, _ in found), Counter[Any]())
    done, failed, total = (counts[key] for key in ("done", "failed", "total"))
    worker = f"; now worked on by {who}" if (who := worked_in(folder)) else ""
    missing = total - done - failed
    print(f"{done} of {total} parts done, {failed} failed, {missing} missing{visible(worker)}")
    if 0 < done < total:
        left = counts["seconds"] / done * (total - done)  # as long as those done took in the mean
        print(f"about {in_time(left)} of work left for one worker")
    elif done == total:
        print(f"complete; see: tokenlight bench report {visible(str(folder))}")


@bench.command()
@clean
def report(
    folder: Path = option.argument("FOLDER", "Folder of a run, finished or not."),
    form: str = flag("md, latex, csv or html.", "--format -f", "md", metavar="FORMAT"),
    output: Path | None = flag("Write to this file, not the terminal.", "--output -o"),
    figures: Path | None = flag("Folder for the images that the md report links to."),
    timings: bool = flag("Include seconds and passes, which differ run by run.", default=True),
) -> None:
    """Report on a run: our numbers beside the published ones.

    It says which claims of the papers hold, and what can be compared.
    """
    from tokenlight.bench.report.write import report as report_on

    with writing(output or folder):
        text = report_on(folder, form, timings=timings, figures=figures, output=output)
    if form == "md" and output is None and sys.stdout.isatty():
        from rich.markdown import Markdown

        from tokenlight.plots.terminal import console_on

        console_on(sys.stdout).print(Markdown(text))
    else:
        typer.echo(text, nl=output is not None or form == "html")
