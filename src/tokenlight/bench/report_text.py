"""A report as Markdown, LaTeX (booktabs) and CSV. The same report gives the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from tokenlight.bench import report_words as words
from tokenlight.bench.report import Entry, Number, Panel, Ranking, Report, digits
from tokenlight.metrics._metric import ARROWS
from tokenlight.plots.characters import in_line

COLUMNS = (
    "model", "data", "method", "metric", "better", "mean", "low", "high", "sd", "draws", "count",
    "left_out", "published", "published_sd", "difference", "status",
)  # fmt: skip
LONGEST = 40  # characters of a reason in a cell
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "×": r"$\times$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--", "…": r"\ldots{}",
    "<": r"$<$", ">": r"$>$", "|": r"$|$", "τ": r"$\tau$", "ξ": r"$\xi$", "·": r"$\cdot$", "≥": r"$\geq$",
    "\u0303": "",  # a tilde over the letter before it
}  # fmt: skip


def markdown(report: Report, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The report as Markdown; ``pictures``: (title, path) of figures to link."""
    lines = [f"# {_md(report.suite.title or report.suite.name)}", ""]
    lines += [_md(sentence) + "\n" for sentence in words.what_was_run(report)]
    order, claimed = words.order(report), words.claims(report)
    if order or claimed:
        lines += ["## What holds", ""]
    if order:
        lines += [_md(order), ""]
    if claimed:
        lines += _md_table((words.claimed_by(report), "here", "detail"), claimed)
    for panel in report.ran:
        lines += [f"## {_md(panel.title)}", "", *_md_panel(panel, report.better)]
    if report.rankings:
        lines += ["## Order of the methods", ""]
        heads = ("panel", "metric", "methods", "Kendall", "Spearman", "paper's best", "its place")
        lines += _md_table(heads, [_ranking(one) for one in report.rankings])
    lines += _md_costs(report)
    for title, path in pictures:
        lines += [f"### {_md(title)}", "", f"![{_md(title)}]({path})", ""]
    lines += ["## What can be compared" if report.of_paper else "## What was measured", ""]
    lines += _md_table(*words.comparable(report))
    lines += [f"- {_md(note)}" for note in words.protocol(report)]
    lines.append("")
    renamed = words.renamed(report)
    if renamed:
        lines += ["## Rows", "", *_md_table(("row", "method"), renamed)]
    made = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    lines += [f"Made by `tokenlight bench`, suite `{report.suite.name}`: {_md(made)}.", ""]
    return "\n".join(lines)


def _md_panel(panel: Panel, better: Mapping[str, str]) -> list[str]:
    heads = ["method"]
    for metric in panel.metrics:
        heads.append(f"{metric} {ARROWS[better.get(metric, 'neither')]}".rstrip())
        if _compared(panel, metric):
            heads += ["published", "Δ"]
    rows = []
    for method, entries in panel.rows.items():
        cells = [method]
        for metric in panel.metrics:
            entry = entries[metric]
            cells.append(shown(entry))
            if _compared(panel, metric):
                cells += [printed(entry), change(entry)]
        rows.append(cells)
    return _md_table(heads, rows)


def _compared(panel: Panel, metric: str) -> bool:
    return any(row[metric].published is not None for row in panel.rows.values())


def _md_costs(report: Report) -> list[str]:
    if not report.costs:
        return []
    heads = ("method", "forward passes", "backward passes", "ms a text", report.faithful, "texts")
    rows = [
        (c.method, f"{c.forwards:.1f}", f"{c.backwards:.1f}", f"{1000 * c.seconds:.1f}",
         "–" if c.value is None else digits(c.value), f"{c.texts:,}")
        for c in report.costs
    ]  # fmt: skip
    title = f"## Cost of an explanation (mean a text), against {_md(report.faithful)}"
    return [title, "", *_md_table(heads, rows)]


def _md_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_md, heads)) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(map(_md, row)) + " |" for row in rows]
    return [*lines, ""]


def _md(text: str) -> str:
    """One line of Markdown that shows ``text`` as it is."""
    plain = in_line(text).replace("\\", "\\\\")
    for mark in "|`*_[]<>":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def shown(entry: Entry) -> str:
    """Our number with its interval, or in a few words why there is none."""
    return number(entry.ours) if entry.ours is not None else briefly(entry.reason)


def briefly(reason: str) -> str:
    """A reason as far as a cell holds it; the whole stands at the head of the report."""
    return "not run (see above)" if len(reason) > LONGEST else reason or "–"


def number(ours: Number) -> str:
    """Mean and interval, or mean and standard deviation of several draws."""
    if ours.sd is not None:
        return f"{digits(ours.mean)} ± {ours.sd:.3f} ({ours.draws} draws)"
    if ours.low is None or ours.high is None:
        return digits(ours.mean)
    return f"{digits(ours.mean)} [{digits(ours.low)}, {digits(ours.high)}]"


def printed(entry: Entry) -> str:
    """The published number."""
    if entry.published is None:
        return "–"
    spread = "" if entry.published_sd is None else f" ± {entry.published_sd:g}"
    return f"{digits(entry.published)}{spread}"


def change(entry: Entry) -> str:
    """Ours minus theirs."""
    return "–" if entry.difference is None else digits(entry.difference, sign=True)


def _ranking(one: Ranking) -> tuple[str, ...]:
    return tuple(
        f"{value:+.2f}" if isinstance(value, float) else str(value) for value in astuple(one)
    )


def latex(report: Report) -> str:
    """One booktabs table a panel, then the claims; needs \\usepackage{booktabs}."""
    order = words.order(report)
    lines = [
        r"% needs \usepackage{booktabs} and a Unicode engine or \usepackage[utf8]{inputenc}",
        *(f"% {in_line(sentence)}" for sentence in words.what_was_run(report)),
        *([f"% {in_line(order)}"] if order else []),
    ]
    for panel in report.ran:
        lines += ["", *_latex_panel(report, panel)]
    claimed = words.claims(report)
    if claimed:
        lines += ["", r"\begin{table}", r"\centering", r"\begin{tabular}{ll}", r"\toprule"]
        lines += [r"claim & here \\", r"\midrule"]
        lines += [rf"{tex(claim)} & {tex(verdict)} \\" for claim, verdict, _ in claimed]
        lines += [
            r"\bottomrule",
            r"\end{tabular}",
            r"\caption{Claims of the paper.}" if report.of_paper else r"\caption{Claims.}",
            r"\end{table}",
        ]
    return "\n".join(lines) + "\n"


def _latex_panel(report: Report, panel: Panel) -> list[str]:
    groups = [(metric, 3 if _compared(panel, metric) else 1) for metric in panel.metrics]
    top = ["", *(
        rf"\multicolumn{{{width}}}{{c}}{{{tex(metric)} {tex(ARROWS[report.better.get(metric, 'neither')])}}}"
        for metric, width in groups
    )]  # fmt: skip
    second, rules, column = ["method"], [], 2
    for _, width in groups:
        second += ["mean"] if width == 1 else ["ours", "paper", r"$\Delta$"]
        rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\small",
        rf"\begin{{tabular}}{{l{''.join('r' * width for _, width in groups)}}}",
        r"\toprule",
        " & ".join(top) + r" \\",
        " ".join(rules),
        " & ".join(second) + r" \\",
        r"\midrule",
    ]
    for method, entries in panel.rows.items():
        cells = [tex(method)]
        for metric, width in groups:
            entry = entries[metric]
            cells.append("--" if entry.ours is None else _tex_number(entry.ours))
            cells += [_tex_math(printed(entry)), _tex_math(change(entry))][: width - 1]
        lines.append(" & ".join(cells) + r" \\")
    caption = f"{report.suite.title or report.suite.name}: {panel.title}, means over texts."
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{tex(caption)}}}", r"\end{table}"]
    return lines


def _tex_number(ours: Number) -> str:
    if ours.sd is not None:
        return rf"${digits(ours.mean)} \pm {ours.sd:.3f}$"
    return f"${digits(ours.mean)}$"


def _tex_math(number: str) -> str:
    """A printed number in math mode, so that its minus is one."""
    return tex(number) if number == "–" else f"${number.replace('±', chr(92) + 'pm')}$"


def tex(text: str) -> str:
    """``text`` with LaTeX's own characters escaped."""
    return "".join(LATEX.get(character, character) for character in in_line(text))


def comma_separated(report: Report) -> str:
    """One line a number, published numbers without one of ours too."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for panel in report.panels:
        for method, entries in panel.rows.items():
            for metric, entry in entries.items():
                writer.writerow(_line(panel, method, metric, entry, report.better))
    return stream.getvalue()


def _line(
    panel: Panel, method: str, metric: str, entry: Entry, better: Mapping[str, str]
) -> list[object]:
    ours = entry.ours
    mine = ["", "", "", "", "", "", ""]
    if ours is not None:
        values = (ours.mean, ours.low, ours.high, ours.sd, ours.draws, ours.count, ours.left_out)
        mine = ["" if value is None else repr(value) for value in values]
    theirs = (entry.published, entry.published_sd, entry.difference)
    status = "measured" if ours is not None else entry.reason
    where = [panel.model, panel.data, method, metric, better.get(metric, "")]
    return [*where, *mine, *("" if v is None else repr(v) for v in theirs), status]
