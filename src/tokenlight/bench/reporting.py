"""From a run's folder to a report in one of the formats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenlight.bench.report import Report, build
from tokenlight.bench.report_figures import Picture, pictures
from tokenlight.bench.report_text import comma_separated, latex, markdown
from tokenlight.bench.store import Run
from tokenlight.errors import BadInput, MissingExtra, UnknownName
from tokenlight.files.write import write_bytes, write_text

FORMATS = ("md", "latex", "csv", "html")


@dataclass(frozen=True)
class Reported:
    """A run with its tables, merged once, for as many formats as are wanted."""

    run: Run
    tables: Any
    report: Report

    @classmethod
    def of(cls, folder: str | Path, *, timings: bool = True) -> Reported:
        """Open a run's folder, merge its parts, compare with what is published."""
        MissingExtra.check(["yaml", "pyarrow", "scipy"], "bench", "tokenlight bench report")
        run = Run.open(folder)
        done, total = run.progress()
        if not done:
            raise BadInput(
                f"none of the {total} parts of {folder} is finished, so there is nothing to report. "
                f"tokenlight bench status {folder} says why; the same bench run command goes on."
            )
        tables = run.tables()
        return cls(run, tables, build(run, tables, timings=timings))

    @cached_property
    def pictures(self) -> list[Picture]:
        """Every figure, drawn once."""
        return list(pictures(self.run, self.report, self.tables.curves))

    def written(self, form: str, *, output: Path | None = None, figures: Path | None = None) -> str:
        """The text, or where ``output`` is given (HTML: in any case) the path of the file written.

        ``figures``: a folder that Markdown's pictures are written to and linked from.
        """
        if form not in FORMATS:
            raise UnknownName.among("report format", form, FORMATS)
        if form == "html":
            output = output or self.run.folder / "report.html"
            from tokenlight.bench.report_html import page

            text = page(self.report, self.pictures)
        elif form == "latex":
            text = latex(self.report)
        elif form == "csv":
            text = comma_separated(self.report)
        else:
            text = markdown(self.report, self._linked(figures, output))
        if output is None:
            return str(text)
        write_text(output, text)
        return str(output)

    def _linked(self, folder: Path | None, output: Path | None) -> list[tuple[str, str]]:
        """Title and path of each picture, written into ``folder``; paths as ``output`` needs them."""
        if folder is None:
            return []
        base = (output.parent if output is not None else Path.cwd()).resolve()
        found = []
        for number, one in enumerate(self.pictures, 1):
            if one.content:
                place = folder.resolve() / f"figure_{number:02d}.png"
                write_bytes(place, one.content)
                inside = place.is_relative_to(base)
                path = place.relative_to(base).as_posix() if inside else place.as_uri()
                found.append((one.title, path))
        return found


def report(
    folder: str | Path,
    form: str = "md",
    *,
    timings: bool = True,
    figures: Path | None = None,
    output: Path | None = None,
) -> str:
    """The report of the run in ``folder``: its text, or for HTML the path of the file written."""
    if form not in FORMATS:
        raise UnknownName.among("report format", form, FORMATS)
    return Reported.of(folder, timings=timings).written(form, output=output, figures=figures)
