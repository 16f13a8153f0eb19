"""What the figures of reports share: a grid of panels, colours and marks, and a small PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from tokenlight.errors import MissingExtra
from tokenlight.plots.characters import in_line

MARKS = "osv^D*PX<>hp"  # told apart without colours, too
DOTS = 100  # an inch
SHADES = 255  # colours of a PNG: a third of the bytes, the same picture to the eye


def grid(count: int, *, across: int = 2, width: float = 6.2, height: float = 4.2) -> Iterator[Any]:
    """The axes of ``count`` panels, at most ``across`` side by side, all of one figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise MissingExtra.naming("matplotlib", "plots", "a figure of a report") from missing
    across = max(1, min(across, count))
    down = -(-count // across) or 1
    # A Figure of its own, never pyplot: no global state, no window, nothing to close.
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    for number in range(count):
        yield figure.add_subplot(down, across, number + 1)


def style(number: int) -> dict[str, Any]:
    """Colour and mark of the n-th line; ten colours, so the dash changes every ten."""
    dash = ("-", "--", ":", "-.")[number // 10 % 4]
    return {"color": f"C{number % 10}", "marker": MARKS[number % len(MARKS)], "linestyle": dash}


def titled(axes: Any, title: str) -> None:
    """A title in which nothing acts as a formula."""
    axes.set_title(in_line(title), parse_math=False, fontsize=11)


def named(axes: Any, place: str, names: list[str], **how: Any) -> None:
    """Tick labels in which nothing acts as a formula; ``place`` is x or y."""
    setter = axes.set_xticks if place == "x" else axes.set_yticks
    setter(range(len(names)), [in_line(name) for name in names], parse_math=False, **how)


def png(figure: Any) -> bytes:
    """A figure as a PNG of few colours; the same figure gives the same bytes."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DOTS, facecolor="white")
    return small(Image.open(drawn))


def small(image: Any) -> bytes:
    """An image (of Pillow) as a PNG of few colours."""
    into = io.BytesIO()
    image.convert("RGB").quantize(SHADES).save(into, format="PNG", optimize=True)
    return into.getvalue()
