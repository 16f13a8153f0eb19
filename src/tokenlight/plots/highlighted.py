"""The highlighted text as a figure, for papers and slides."""

from collections.abc import Iterable
from typing import Any
from unicodedata import east_asian_width

from tokenlight.data.attribution import Attribution
from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import sheet
from tokenlight.plots.colours import hexadecimal, ink, shade
from tokenlight.plots.scene import WORDS, Mark, Scenery

COLUMNS = 84  # letters in a line
SIZE, LETTER, LINE = 11, 0.092, 0.27  # points; inches of a letter and of a line


def highlighted(attributions: Attribution | Iterable[Attribution]) -> Any:
    """Each explanation below its name, the words on the colours of the page; special tokens left out."""
    lines: list[list[tuple[int, Mark | str]]] = []
    for text in Scenery((WORDS,)).of(attributions):
        for method in text.methods:
            lines.append([(0, f"{method.label} → {method.attribution.target.name}")])
            for part in method.views[0].lines:
                lines += _wrapped([mark for mark in part.marks if not mark.special])
            lines.append([])
    figure = sheet(LETTER * COLUMNS + 0.3, LINE * len(lines) + 0.1, layout=None)
    axes = figure.add_axes((0.02, 0.0, 0.96, 1.0))
    axes.set_axis_off()
    axes.set(xlim=(0, COLUMNS), ylim=(len(lines), 0))
    for row, line in enumerate(lines):
        for column, one in line:
            how: dict[str, Any] = {"family": "monospace", "fontsize": SIZE, "va": "center"}
            if isinstance(one, str):
                how = {"fontsize": 0.9 * SIZE, "va": "center", "color": "#5b6470"}
            elif one.strength:
                paper = shade(one.strength)
                how["color"] = hexadecimal(ink(paper))
                how["bbox"] = {"facecolor": hexadecimal(paper), "linewidth": 0, "pad": 1.2}
            said = in_line(one if isinstance(one, str) else one.text)
            axes.text(column, row + 0.5, said, parse_math=False, **how)
    return figure


def _wrapped(marks: list[Mark]) -> list[list[tuple[int, Mark | str]]]:
    """The marks line by line, each with the column it begins at."""
    lines: list[list[tuple[int, Mark | str]]] = [[]]
    column = 0
    for mark in marks:
        width = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in mark.text)
        if (column and column + width > COLUMNS) or "\n" in mark.text:
            lines.append([])
            column = 0
        if mark.text.strip():
            lines[-1].append((column, mark))
        if column or mark.text.strip():  # a line begins with no blank
            column += width
    return lines
