"""From a run's folder to a report in one of the formats. The same report gives the same bytes."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tokenlight.bench.report import words
from tokenlight.bench.report.claims import claims
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.figures import Artist, Drawing
from tokenlight.bench.report.values import digits
from tokenlight.bench.suite import LIBRARIES
from tokenlight.errors import MissingExtra, UnknownName
from tokenlight.files.write import csv_text, write_bytes, write_text
from tokenlight.plots.characters import in_line
from tokenlight.plots.html import environment, sealed

FORMATS = ("md", "latex", "csv", "html")
COLUMNS = (
    "model", "data", "method", "metric", "better", "mean", "low", "high", "sd", "draws", "count",
    "left_out", "published", "published_sd", "difference", "status",
)  # fmt: skip
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "×": r"$\times$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "…": r"\ldots{}",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", "τ": r"$\tau$", "ξ": r"$\xi$", "·": r"$\cdot$", "≥": r"$\geq$",
    "\u0303": "",  # a tilde over the letter before it
}  # fmt: skip
TONES = {"holds": "good", "holds weakly": "good", "does not hold": "bad", "not run": "none"}
TEX_MARKS = {
    "variable_start_string": "<<", "variable_end_string": ">>", "block_start_string": "<%",
    "block_end_string": "%>", "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip


class RunReport(SuiteReport):
    """A run with its tables, merged once, for as many formats as are wanted."""

    @cached_property
    def drawings(self) -> list[Drawing]:
        return list(Artist(self).drawings())

    def write(self, form: str, *, output: Path | None = None, figures: Path | None = None) -> str:
        """The text, or where ``output`` is given (HTML: in any case) the path of the file written.

        ``figures``: a folder that Markdown's pictures are written to and linked from.
        """
        if form == "html":
            output = output or self.run.folder / "report.html"
            text = page(self, self.drawings)
        elif form == "md":
            text = markdown(self, self._linked(figures, output))
        else:
            text = latex(self) if form == "latex" else comma_separated(self)
        if output is None:
            return text
        write_text(output, text)
        return str(output)

    def _linked(self, folder: Path | None, output: Path | None) -> list[tuple[str, str]]:
        """Title and path of each figure, written into ``folder``; paths as ``output`` needs them."""
        found = []
        for number, one in enumerate(self.drawings if folder else (), 1):
            place = Path(folder or "", f"figure_{number:02d}.png")
            if one.content:
                write_bytes(place, one.content)
                path = os.path.relpath(place, output.parent if output else None)
                found.append((one.title, Path(path).as_posix()))
        return found


def report(folder: str | Path, form: str = "md", *, timings: bool = True, **where: Any) -> str:
    """The report of the run in ``folder``: its text, or for HTML the path of the file written."""
    MissingExtra.check(LIBRARIES, "bench", "tokenlight bench report")
    if form not in FORMATS:
        raise UnknownName.among("report format", form, FORMATS)
    return RunReport.of(folder, timings=timings).write(form, **where)


def markdown(report: SuiteReport, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The report as Markdown; ``pictures``: (title, path) of figures to link."""
    return _rendered(report, "report.md.j2", md, table=md_table, pictures=pictures) + "\n"


def latex(report: SuiteReport) -> str:
    """One booktabs table a panel, then the claims; needs \\usepackage{booktabs}."""

    def math(number: str) -> Markup:  # so that its minus is one
        return tex(number) if number == "–" else Markup(f"${number.replace('±', chr(92) + 'pm')}$")

    def plain(text: str) -> Markup:  # of a comment
        return Markup(in_line(text))

    return _rendered(report, "report.tex.j2", tex, math=math, plain=plain)


def page(report: SuiteReport, drawings: Sequence[Drawing]) -> str:
    """One self-contained HTML page, figures inside: no script, no outside resource, all escaped."""
    more: dict[str, Any] = {"drawings": drawings, "tones": TONES}
    more |= sealed(_rendered(report, "report.css.j2", str), pictures=True)
    return _rendered(report, "report.html.j2", in_line, **more)


def comma_separated(report: SuiteReport) -> str:
    """One line a number, published numbers without one of ours too."""
    return csv_text(
        COLUMNS,
        [
            {"model": panel.model, "data": panel.data, "method": method, "metric": metric}
            | {"better": report.better.get(metric, ""), "difference": score.difference}
            | {**asdict(score), "status": score.reason or "measured"}
            for panel in report.panels
            for method, row in panel.rows.items()
            for metric, score in row.items()
        ],
    )


def _rendered(report: SuiteReport, name: str, escape: Callable[[str], str], **more: Any) -> str:
    """A template whose every value goes through ``escape``."""

    def finalize(value: Any) -> str:
        return value if isinstance(value, Markup) else escape(str(value))

    marks = TEX_MARKS if name.endswith(".tex.j2") else {}
    made = environment("tokenlight.bench.report", finalize=finalize, **marks)
    title = report.suite.title or report.suite.name
    known = {"report": report, "words": words, "judged": claims, "digits": digits, "title": title}
    return made.get_template(name).render(known, **more)


def md(text: str) -> Markup:
    """One line of Markdown that shows ``text`` as it is."""
    return Markup(re.sub(r"[\\|`*_\[\]<>]", r"\\\g<0>", in_line(text)))


def md_table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Heads and rows as a table of Markdown."""
    lines = [f"| {' | '.join(md(str(cell)) for cell in row)} |" for row in (heads, *rows)]
    return Markup("\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""]))


def tex(text: str) -> Markup:
    """``text`` with LaTeX's own characters escaped."""
    return Markup("".join(LATEX.get(character, character) for character in in_line(text)))
