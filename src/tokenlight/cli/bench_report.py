"""``tokenlight bench report``: our tables beside the published ones, with figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tokenlight.cli.failures import clean, writing


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
            help="Write to this file, not to the terminal; html: not to FOLDER/report.html.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Folder for the pictures that the md report links."),
    ] = None,
    timings: Annotated[
        bool,
        typer.Option(
            help="Report seconds and passes; without them, equal results give an equal file."
        ),
    ] = True,
) -> None:
    """Report on a run: our numbers beside the published ones.

    It says which claims of the papers hold, and what can be compared.
    """
    from tokenlight.bench.report.write import report as made

    with writing(output or folder):
        text = made(folder, form, timings=timings, figures=figures, output=output)
    if form == "md" and output is None and sys.stdout.isatty():
        from tokenlight.cli.markdown import print_report
        from tokenlight.plots.terminal import console_on

        print_report(text, console_on(sys.stdout))
    else:
        typer.echo(text, nl=output is not None or form == "html")
