"""``tokenlight models``: the models inside the package."""

from __future__ import annotations

import sys

from tokenlight.cli.failures import clean


@clean
def models() -> None:
    """List the embedded models: they work offline, by these names."""
    from rich.table import Table
    from rich.text import Text

    from tokenlight.models import catalogue
    from tokenlight.plots.terminal import console_on

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("model", "task", "size", "measured"):
        table.add_column(head, overflow="fold", no_wrap=head == "model")
    for entry in catalogue():
        size = f"{entry.size / 1e6:.1f} MB"
        cells = (entry.name, entry.task, size, f"{entry.figure} on {entry.split}")
        table.add_row(*(Text(cell) for cell in cells))
    console_on(sys.stdout).print(table)
