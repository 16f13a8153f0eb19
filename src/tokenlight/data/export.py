"""Methods that explanations and lists of them share: save, show and plot.

The work is done by :mod:`tokenlight.files` and :mod:`tokenlight.plots`, which are imported when called.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenlight.errors.arguments import checked


class ExportMixin:
    """Save, show and plot one explanation or a list of them."""

    __slots__ = ()

    def _as_list(self) -> list[Any]:
        return self if isinstance(self, list) else [self]

    @checked
    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to a file in the format that its extension names.

        Args:
            path: A file ending in ``.json``, ``.html``, ``.csv``, ``.parquet``, ``.png``, ``.svg`` or
                ``.pdf``. Only JSON can be loaded again.

        Returns:
            The path.

        Raises:
            BadInput: The extension is unknown.
            Unwritable: The file cannot be written.

        Example:
            >>> import tempfile
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("A great film")
            >>> attribution.save(f"{tempfile.mkdtemp()}/film.json").name
            'film.json'
        """
        from tokenlight.files.saved import save

        return save(self._as_list(), path)

    def to_pandas(self) -> Any:
        """Return a data frame with one row per token.

        Returns:
            A ``pandas.DataFrame``.

        Raises:
            MissingExtra: pandas is not installed.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Never dull.")
            >>> list(attribution.to_pandas()["token"])  # doctest: +SKIP
            ['[CLS]', 'never', 'dull', '.', '[SEP]']
        """
        from tokenlight.files.saved import to_pandas

        return to_pandas(self._as_list())

    def to_html(self) -> str:
        """Return one self-contained HTML page.

        Returns:
            The text of the page, which needs no other file.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Never dull.")
            >>> attribution.to_html()[:15]
            '<!doctype html>'
        """
        from tokenlight.plots.html import render_page

        return render_page(self._as_list())

    def _repr_html_(self) -> str:
        from tokenlight.plots.html import render_fragment

        return render_fragment(self._as_list())

    def show(self) -> None:
        """Print the highlighted text to the terminal; in a notebook, display it.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Never dull.")
            >>> attribution.show()  # doctest: +SKIP
        """
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if hasattr(shell, "kernel"):
            display = import_module("IPython.display")
            display.display(display.HTML(self._repr_html_()))
            return
        from tokenlight.plots.terminal import show

        show(self._as_list())

    def plot(self) -> Any:
        """Return a matplotlib figure of the highlighted text, or of heat maps over images.

        Returns:
            A ``matplotlib.figure.Figure``.

        Raises:
            MissingExtra: matplotlib is not installed.

        Example:
            >>> from tokenlight import Explainer
            >>> attribution = Explainer.from_pretrained("tokenlight/sentiment").explain("Never dull.")
            >>> attribution.plot().savefig("dull.png")  # doctest: +SKIP
        """
        from tokenlight.plots.figures import draw_attributions

        return draw_attributions(self._as_list())
