"""Our own reports in Markdown, as a person reads them on a terminal: no escapes, columns in line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_ESCAPED = re.compile(r"\\([\\|`*_\[\]<>])")
_BAR = re.compile(r"(?<!\\)((?:\\\\)*) \| ")  # between two cells, and no escaped one


def print_report(markdown: str, console: Console) -> None:
    """Print headings, tables and lines; a table's cells are wrapped where the terminal is narrow."""
    for block in _blocks(markdown):
        console.print(block)


def _blocks(markdown: str) -> Iterator[RenderableType]:
    for is_table, lines in groupby(markdown.splitlines(), key=lambda line: line.startswith("|")):
        if is_table:
            yield _table(list(lines))
        else:
            yield from map(_line, lines)


def _line(line: str) -> Text:
    marks, _, title = line.partition(" ")
    if marks and not marks.strip("#"):
        return Text(_plain(title), style="bold")
    return Text(_plain(line))


def _table(lines: list[str]) -> Table:
    heads, _, *rows = lines
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in _cells(heads):
        table.add_column(Text(head), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    return table


def _cells(line: str) -> list[str]:
    inside = line.removeprefix("| ").removesuffix(" |")
    return [_plain(cell) for cell in _BAR.sub("\\1\n", inside).split("\n")]


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)
