"""The one door through which a lower module reaches a higher one: by name, when it is called.

``Attribution.show()`` belongs to the object a user holds, yet drawing stands above it in the house.
Such a call names its drawer here; nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

from tokenlight.errors import MissingExtra

_EXTRA = {"jinja2": "cli", "rich": "cli", "typer": "cli", "matplotlib": "plots"}


def late(module: str, name: str) -> Any:
    """The object ``name`` of ``module``, imported now."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        library = missing.name or ""
        if library in _EXTRA:
            raise MissingExtra.naming(library, _EXTRA[library], f"{module}.{name}") from missing
        raise
