"""Write the report of a run as Markdown, LaTeX, CSV or HTML. The same report gives the same bytes."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tokenlight.bench.report import sentences
from tokenlight.bench.report.claims import judge_claims
from tokenlight.bench.report.comparison import SuiteReport
from tokenlight.bench.report.figures import FigureDrawer, RenderedFigure
from tokenlight.bench.report.values import MISSING, format_number
from tokenlight.bench.suite import REQUIRED_LIBRARIES
from tokenlight.errors import MissingExtra, UnknownName
from tokenlight.files.write import dump_csv, write_bytes, write_text
from tokenlight.plots.characters import to_single_line
from tokenlight.plots.html import make_environment, seal_page

REPORT_FORMATS = ("md", "latex", "csv", "html")
CSV_COLUMNS = (
    "model", "data", "method", "metric", "better", "mean", "low", "high", "sd", "draws", "count",
    "left_out", "published", "published_sd", "difference", "status",
)  # fmt: skip
LATEX_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "×": r"$\times$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "…": r"\ldots{}",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", "τ": r"$\tau$", "ξ": r"$\xi$", "·": r"$\cdot$", "≥": r"$\geq$",
    "\u0303": "",  # a combining tilde, which text mode cannot set
}  # fmt: skip
# Verdict → CSS class of its tag; other verdicts are neither good nor bad.
VERDICT_TONES = {"holds": "good", "holds weakly": "good", "does not hold": "bad", "not run": "none"}
LATEX_DELIMITERS = {
    "variable_start_string": "<<", "variable_end_string": ">>", "block_start_string": "<%",
    "block_end_string": "%>", "comment_start_string": "<#", "comment_end_string": "#>",
}  # fmt: skip


class RunReport(SuiteReport):
    """A report that can be written in several formats; tables and figures are made once."""

    @cached_property
    def rendered_figures(self) -> list[RenderedFigure]:
        return list(FigureDrawer(self).draw_all())

    def write(
        self, report_format: str, *, output: Path | None = None, figures: Path | None = None
    ) -> str:
        """Write the report.

        Args:
            report_format: One of ``REPORT_FORMATS``.
            output: File to write. HTML is always written to a file, by default into the folder of the run.
            figures: Folder for the pictures that a Markdown report links to; without it, it has none.

        Returns:
            The text, or the path of the file if one was written.
        """
        if report_format == "html":
            output = output or self.run_folder.folder / "report.html"
            text = render_html(self, self.rendered_figures)
        elif report_format == "md":
            figure_links = [] if figures is None else self._write_figures(figures, output)
            text = render_markdown(self, figure_links)
        elif report_format == "latex":
            text = render_latex(self)
        else:
            text = render_csv(self)
        if output is None:
            return text
        write_text(output, text)
        return str(output)

    def _write_figures(self, folder: Path, output: Path | None) -> list[tuple[str, str]]:
        """Write the figures into ``folder``; return titles and paths relative to the report."""
        report_folder = output.parent if output else None
        links = []
        for number, figure in enumerate(self.rendered_figures, 1):
            if not figure.content:
                continue
            path = folder / f"figure_{number:02d}.png"
            write_bytes(path, figure.content)
            relative_path = os.path.relpath(path, report_folder)
            links.append((figure.title, Path(relative_path).as_posix()))
        return links


def write_report(
    folder: str | Path,
    report_format: str = "md",
    *,
    include_timings: bool = True,
    **write_options: Any,
) -> str:
    """Write the report of the run in ``folder``.

    Args:
        folder: Folder of a run, finished or not.
        report_format: One of ``REPORT_FORMATS``.
        include_timings: Whether to include seconds and passes, which differ from run to run.
        **write_options: ``output`` and ``figures`` of :meth:`RunReport.write`.

    Returns:
        The text, or the path of the file if one was written, as HTML always is.

    Raises:
        UnknownName: There is no such format.
        DamagedFile: The folder holds no run that can be read.
        BadInput: No part of the run is finished.

    Example:
        >>> from tokenlight.bench.report.writers import write_report
        >>> page = write_report("results", "html")  # doctest: +SKIP
    """
    MissingExtra.check_installed(REQUIRED_LIBRARIES, "bench", "tokenlight bench report")
    if report_format not in REPORT_FORMATS:
        raise UnknownName.from_choices("report format", report_format, REPORT_FORMATS)
    report = RunReport.from_folder(folder, include_timings=include_timings)
    return report.write(report_format, **write_options)


def render_markdown(report: SuiteReport, figure_links: Sequence[tuple[str, str]] = ()) -> str:
    """Render the report as Markdown; ``figure_links`` are the titles and paths of its pictures."""
    text = _render_template(
        report,
        "report.md.j2",
        escape_markdown,
        table=render_markdown_table,
        figure_links=figure_links,
    )
    return f"{text}\n"


def render_latex(report: SuiteReport) -> str:
    r"""Render one booktabs table per panel, then the claims; needs \usepackage{booktabs}."""

    def math(value: str) -> Markup:
        """Put a value into math mode, so that its minus is a minus and not a hyphen."""
        if value == MISSING:
            return escape_latex(value)
        return Markup(f"${value.replace('±', chr(92) + 'pm')}$")

    def plain(text: str) -> Markup:
        """Keep the text of a LaTeX comment on one line; it needs no escapes."""
        return Markup(to_single_line(text))

    return _render_template(report, "report.tex.j2", escape_latex, math=math, plain=plain)


def render_html(report: SuiteReport, rendered_figures: Sequence[RenderedFigure]) -> str:
    """Render one self-contained HTML page with its figures: no script, no outside resource, all escaped."""
    style = _render_template(report, "report.css.j2", str)
    return _render_template(
        report,
        "report.html.j2",
        to_single_line,
        rendered_figures=rendered_figures,
        tones=VERDICT_TONES,
        **seal_page(style, has_images=True),
    )


def render_csv(report: SuiteReport) -> str:
    """Render one line per number, including published numbers without one of ours."""
    rows = []
    for panel in report.panels:
        for method, scores in panel.rows.items():
            for metric, score in scores.items():
                identifiers = {
                    "model": panel.model,
                    "data": panel.data,
                    "method": method,
                    "metric": metric,
                    "better": report.directions.get(metric, ""),
                    "difference": score.difference,
                    "status": score.reason or "measured",
                }
                rows.append(identifiers | asdict(score))
    return dump_csv(CSV_COLUMNS, rows)


def _render_template(
    report: SuiteReport, template_name: str, escape: Callable[[str], str], **variables: Any
) -> str:
    """Render a template; every value goes through ``escape`` unless it is Markup."""

    def finalize(value: Any) -> str:
        return value if isinstance(value, Markup) else escape(str(value))

    # LaTeX uses braces itself, so its templates have other delimiters.
    delimiters = LATEX_DELIMITERS if template_name.endswith(".tex.j2") else {}
    environment = make_environment("tokenlight.bench.report", finalize=finalize, **delimiters)
    common_variables = {
        "report": report,
        "sentences": sentences,
        "judge_claims": judge_claims,
        "format_number": format_number,
        "title": report.suite.title or report.suite.name,
    }
    return environment.get_template(template_name).render(common_variables, **variables)


def escape_markdown(text: str) -> Markup:
    """Return one line of Markdown that shows ``text`` as it is."""
    return Markup(re.sub(r"[\\|`*_\[\]<>]", r"\\\g<0>", to_single_line(text)))


def render_markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """Render a header and rows as a Markdown table."""
    lines = []
    for row in (header, *rows):
        cells = [escape_markdown(str(cell)) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "---|" * len(header))
    return Markup("\n".join([*lines, ""]))


def escape_latex(text: str) -> Markup:
    """Return ``text`` with the special characters of LaTeX escaped."""
    characters = [LATEX_ESCAPES.get(character, character) for character in to_single_line(text)]
    return Markup("".join(characters))
