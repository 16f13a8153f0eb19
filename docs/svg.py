"""Small drawings in SVG, legible on a phone: 460 units wide, letters of 12 to 13 units, on a card of their own."""

from __future__ import annotations

from html import escape

WIDTH = 460
INK = "#1f2933"
FAINT = "#616e7c"
GRID = "#e4e7eb"
ACCENT = "#0f766e"
MUTED = "#9aa5b1"
FONT = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"


def drawing(shapes: list[str], height: float, title: str, *, width: float = WIDTH) -> str:
    """A drawing on a white card, which can be read in a dark page too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}" style="{FONT}">\n'
        f'<rect width="{width}" height="{height:.0f}" rx="8" fill="#ffffff" stroke="{GRID}"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, **style: str | float) -> str:
    """Words at a place; ``anchor``, ``size``, ``fill`` and ``weight`` are optional."""
    anchor = style.get("anchor", "start")
    size = style.get("size", 12)
    fill = style.get("fill", INK)
    weight = style.get("weight", "normal")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def line(
    start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1
) -> str:
    """A straight line."""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def dot(x: float, y: float, colour: str, label: str = "", radius: float = 4.5) -> str:
    """A point that names itself when the pointer rests on it."""
    title = f"<title>{escape(label)}</title>" if label else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>'


def box(x: float, y: float, size: tuple[float, float], fill: str, radius: float = 4) -> str:
    """A filled rectangle."""
    geometry = f'x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
    return f'<rect {geometry} rx="{radius}" fill="{fill}"/>'
