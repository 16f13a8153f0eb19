"""Griffe extension: docstrings reach the guide with formulas that Markdown understands."""

from __future__ import annotations

from typing import Any

import griffe

# docs/update_tables.py, which mkdocs loads first, has put this module where it can be found.
from formulas import as_markdown


class Formulas(griffe.Extension):
    """Turns ``.. math::`` and ``:math:`` of every docstring into ``$$…$$`` and ``$…$``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
