"""What ``show()`` prints into a terminal of a given width."""

from __future__ import annotations

import io
from typing import Any, Literal

from rich.console import Console

from tokenlight.plots.terminal import show


def render_terminal(
    attributions: Any,
    *,
    colours: Literal["truecolor"] | None = None,
    width: int = 100,
    **options: Any,
) -> str:
    """Return what ``show()`` prints; without ``colours`` as into a file."""
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=colours is not None, color_system=colours, width=width
    )
    show(attributions, console=console, **options)
    return stream.getvalue()
