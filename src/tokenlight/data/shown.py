"""What an explanation, or a list of them, does with itself: files, tables and pictures."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


class Shown:
    """Each call is handed on to :mod:`tokenlight.files` and :mod:`tokenlight.plots`."""

    __slots__ = ()

    def _all(self) -> list[Any]:
        """The Attributions that are meant."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``.json``, ``.html``, ``.csv``, ``.parquet``, ``.png``, ``.svg`` or ``.pdf``, by the file's
        ending; only JSON can be loaded again."""
        from tokenlight.files.saved import save

        return save(self._all(), path)

    def to_pandas(self) -> Any:
        """A data frame, one row per token."""
        from tokenlight.files.saved import to_pandas

        return to_pandas(self._all())

    def to_html(self) -> str:
        """One self-contained HTML page."""
        from tokenlight.plots.html import page

        return page(self._all())

    def _repr_html_(self) -> str:
        from tokenlight.plots.html import fragment

        return fragment(self._all())

    def show(self) -> None:
        """Print the highlighted text to the terminal; in a notebook, draw it."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            cell = import_module("IPython.display")
            cell.display(cell.HTML(self._repr_html_()))
            return
        from tokenlight.plots.terminal import show

        show(self._all())

    def plot(self) -> Any:
        """The highlighted text, or heat maps over pictures, as a figure of matplotlib."""
        from tokenlight.plots.figures import drawn

        return drawn(self._all())
