"""``tokenlight bench``: a suite of measurements in one command, stopped and gone on with at will."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tokenlight.cli.failures import INTERRUPTED, clean, complain, tell, writing
from tokenlight.cli.options import Address, EngineName, Verbose, Workers
from tokenlight.errors import BadInput, TokenlightError
from tokenlight.progress import progress

UNFINISHED = 1  # some part is missing; the same command continues

bench = typer.Typer(
    name="bench",
    help="Run a suite of measurements, check its progress and report the results.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NAMED = "[NAME=]PATH"


@bench.command()
@clean
def run(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="A shipped suite's name, such as quick or attcat_table1, or a .yaml file.",
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the run into.")],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--models",
            metavar=NAMED,
            help="Model to use; NAME is a data set, a model of the suite, or MODEL/DATA; without "
            "NAME it is used for all. Repeat for several.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(envvar="TOKENLIGHT_DATA", help="Folder with one subfolder per data set."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="At most N examples of each data set."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Download nothing; use embedded models instead.")
    ] = False,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    device: Annotated[str, typer.Option(help="Device for each worker: cpu, cuda …")] = "cpu",
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Maximum tokens per batch.", show_default="the suite's"
        ),
    ] = None,
    slice_: Annotated[
        int | None,
        typer.Option(
            "--slice",
            min=1,
            metavar="N",
            help="Examples per part; use more on a GPU, which small parts leave idle.",
            show_default="the suite's",
        ),
    ] = None,
    lm: Annotated[
        list[str] | None,
        typer.Option(
            "--lm", metavar=NAMED, help="Language model for the decoded methods; NAME as above."
        ),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            "--heads",
            metavar=NAMED,
            help="Heads file for mask_lrp, from tokenlight heads; NAME as above.",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Rerun parts with failed examples.")
    ] = False,
    verbose: Verbose = False,  # noqa: ARG001 - read by clean
) -> None:
    """Run SUITE into a folder.

    However it is stopped, the same command continues where it left off.
    """
    with progress("loading libraries", None):
        from tokenlight.bench.plan import Request
        from tokenlight.bench.run import run_suite
        from tokenlight.bench.store import RunFolder
        from tokenlight.scale.engine import Engine
        from tokenlight.scale.worker import DiskFull

    request = Request(
        models=_pairs("--models", models),
        lms=_pairs("--lm", lm),
        heads=_pairs("--heads", heads),
        data=data,
        limit=limit,
        offline=offline,
        device=device,
        batch_tokens=batch_tokens,
        slice=slice_,
    )
    try:
        with writing(output):
            finished = run_suite(
                suite,
                output,
                request,
                engine=Engine(engine or "local", workers, address),
                again=retry_failed,
                tell=tell,
            )
    except KeyboardInterrupt:
        kept = "nothing was begun"
        with suppress(TokenlightError):
            done, total = RunFolder.open(output).progress()
            kept = f"{done} of {total} parts are kept in {output}"
        tell(f"stopped: {kept}; the same command continues from there.")
        raise typer.Exit(INTERRUPTED) from None
    except DiskFull as full:
        complain(str(full))
        raise typer.Exit(UNFINISHED) from None
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
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run.")],
    verbose: Verbose = False,  # noqa: ARG001 - read by clean
) -> None:
    """Show which parts of a run are done, failed or missing.

    It also says how long the rest may take.
    """
    from rich.table import Table
    from rich.text import Text

    from tokenlight.bench.status import in_time
    from tokenlight.bench.status import status as status_of
    from tokenlight.plots.characters import in_line
    from tokenlight.plots.terminal import console_on

    found = status_of(folder)
    console = console_on(sys.stdout)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("model", "data", "method", "parts", "time", ""):
        table.add_column(name, justify="right" if name in ("parts", "time") else "left")
    for one in found.cells:
        told = one.cell.reason and f"not run: {one.cell.reason}"
        kinds = ((one.damaged, "damaged"), (one.failed, "failed"))
        counts = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
        told = told or (f"{counts}: {one.trouble}" if counts else "")
        told = told or (f"{one.failed_examples} examples failed" if one.failed_examples else "")
        names = (one.cell.model, one.cell.data, one.cell.method)
        parts = f"{one.done}/{one.total}" if one.cell.runs else "–"
        taken = in_time(one.seconds) if one.done else ""
        table.add_row(*map(Text, map(in_line, (*names, parts, taken, told))))
    console.print(table)
    missing = found.total - found.done - found.damaged - found.failed
    damaged = f", {found.damaged} damaged" if found.damaged else ""
    console.print(
        f"{found.done} of {found.total} parts done{damaged}, {found.failed} failed, {missing} missing"
        + (f"; now worked on by {found.worker}" if found.worker else ""),
        soft_wrap=True,
        highlight=False,
    )
    if found.left:
        console.print(f"about {in_time(found.left)} of work left for one worker", highlight=False)
    elif found.done == found.total:
        console.print(f"complete; see: tokenlight bench report {in_line(str(folder))}")


@bench.command()
@clean
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, finished or not.")
    ],
    form: Annotated[
        str, typer.Option("--format", "-f", help="md, latex, csv or html.", metavar="FORMAT")
    ] = "md",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to this file instead of the terminal (html: of FOLDER/report.html).",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Folder for the images that the md report links to."),
    ] = None,
    timings: Annotated[
        bool,
        typer.Option(
            help="Include seconds and passes; without them, equal results give equal files."
        ),
    ] = True,
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


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """``NAME=PATH`` entries; a bare PATH is for everything."""
    found: dict[str, str] = {}
    for entry in given or ():
        name, equals, path = entry.rpartition("=")
        if not path or (equals and not name):
            raise BadInput(f"cannot read {option} {entry!r}: give NAME=PATH, or a PATH for all.")
        if name in found:
            raise BadInput(f"{option} names {name or 'everything'} twice.")
        found[name] = path
    return found
