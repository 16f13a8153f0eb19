"""Charts of reports: how methods compare, a panel a title, and word clouds of classes."""

import io
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.plots.characters import in_line, visible

MARKS = "osv^D*PX<>hp"  # told apart without colours, too
DASHES = ("-", "--", ":", "-.")
OURS, THEIRS, GREY = "#1f5fa8", "#e65100", "#5b6470"
DOTS = 100  # an inch
SHADES = 255  # colours of a PNG: a third of the bytes, the same picture to the eye
LARGEST = 40  # inches
MANY = 12  # names in a legend
SPREAD = 8  # costs further apart than this stand on a logarithmic axis
T = TypeVar("T")
Place = tuple[float, float]  # what a method costs, and how faithful it is
_drawing = threading.Lock()
# Dark enough on white for small print; told apart by place and title, not by colour alone.
CLOUD_COLOURS = ("#9f2f1f", "#1f5fa8", "#2b6e3f", "#7a4fa3", "#8a5a00", "#444444")


class Line(NamedTuple):
    """A curve: where its points stand, its means, and the interval at each (or nothing)."""

    points: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


class Bar(NamedTuple):
    """A mean with its interval, and the published number; either may be missing."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None


def sheet(width: float, height: float, layout: str | None = "constrained") -> Any:
    """An empty figure. Never pyplot: no global state, no window, nothing to close."""
    figure = MissingExtra.importing("matplotlib.figure", "plots", "a figure")
    return figure.Figure(figsize=(min(width, LARGEST), min(height, LARGEST)), layout=layout)


def lines(
    panels: Mapping[str, Mapping[str, Line]],
    axis: Mapping[str, str] | None = None,
    named: Sequence[str] | None = None,
) -> Any:
    """One panel a title, one line a method, the 95 % interval as a band; ``axis``: title to what
    its x stands for. ``named``: the methods with a colour and a name; all others are grey."""
    axes = None
    for axes, title, panel in panes(panels.items()):
        known = list(panel) if named is None else named
        others = [line for name, line in panel.items() if name not in known]
        for place, line in enumerate(others):
            label = None if place else f"{len(others)} others"
            axes.plot(line.points, line.means, color="0.8", linewidth=0.8, zorder=1, label=label)
        for name, line in ((name, panel[name]) for name in known if name in panel):
            how = _style(known.index(name))
            axes.plot(line.points, line.means, markersize=3.5, label=in_line(name), **how)
            if len(line.lows):
                style = {"color": how["color"], "alpha": 0.12, "linewidth": 0}
                axes.fill_between(line.points, line.lows, line.highs, **style)
        axes.set_xlabel((axis or {}).get(title, "share of tokens removed"))
        many = len(panel) > MANY
        axes.legend(fontsize=6 if many else 7, ncols=2 if many else 1)
    return axes and axes.figure


def bars(panels: Mapping[str, Mapping[str, Bar]], limits: Sequence[float | None] = ()) -> Any:
    """One bar a method; a diamond is the published number, a dashed line the largest value there can be."""
    largest = dict(zip(panels, limits, strict=False))
    most = max(map(len, panels.values()), default=1)
    size, axes = (4.4, 1.3 + 0.3 * most), None
    for axes, title, panel in panes(panels.items(), 3, size, "x"):
        for place, bar in enumerate(panel.values()):
            if bar.mean is not None:
                axes.barh(place, bar.mean, height=0.7, color=OURS, alpha=0.85)
                if bar.low is not None and bar.high is not None:
                    reach = [[max(0.0, bar.mean - bar.low)], [max(0.0, bar.high - bar.mean)]]
                    how = {"color": "black", "capsize": 2, "linewidth": 1}
                    axes.errorbar(bar.mean, place, xerr=reach, **how)
            if bar.published is not None:
                axes.plot(bar.published, place, "D", color=THEIRS, markersize=6, zorder=3)
        if largest.get(title) is not None:
            axes.axvline(largest[title], color=GREY, linestyle="--", linewidth=1)
        named(axes, "y", list(panel), fontsize=8)
        axes.invert_yaxis()  # the first method on top, as in the tables
        axes.axvline(0, color="black", linewidth=0.8)
    return axes and axes.figure


def frontier(panels: Mapping[str, Mapping[str, Place]], metric: str, *, lower: bool = False) -> Any:
    """One panel a kind of cost, one mark a method; the line joins the methods that none
    is both cheaper and better than. ``lower``: smaller values are better."""
    axes = None
    for axes, _, panel in panes(panels.items()):
        for order, (name, place) in enumerate(panel.items()):
            how = _style(order) | {"linestyle": "none"}
            axes.plot(*place, markersize=7, label=in_line(name), **how)
        best = [panel[name] for name in unbeaten(panel, lower=lower)]
        axes.plot(*zip(*best, strict=True), color=GREY, linewidth=1, zorder=0)
        costs = [cost for cost, _ in panel.values()]
        if min(costs) > 0 and max(costs) > SPREAD * min(costs):
            axes.set_xscale("log", subs=(2, 5))
            axes.xaxis.set_major_formatter("{x:g}")
            if max(costs) < 1000 * min(costs):  # further apart, 2 and 5 would crowd the axis
                axes.xaxis.set_minor_formatter("{x:g}")
        axes.set_ylabel(in_line(metric), parse_math=False)
        many = len(panel) > MANY
        axes.legend(fontsize=6 if many else 7, ncols=2 if many else 1)
    return axes and axes.figure


def unbeaten(panel: Mapping[str, Place], *, lower: bool = False) -> Sequence[str]:
    """The methods, cheapest first, that no cheaper or equally cheap one matches."""
    sign = -1.0 if lower else 1.0
    found, reached = list[str](), float("-inf")
    ranked = sorted((cost, -sign * value, name) for name, (cost, value) in panel.items())
    for _, value, name in ranked:
        if -value > reached:
            found.append(name)
            reached = -value
    return found


def panes(
    panels: Collection[tuple[str, T]],
    across: int = 2,
    size: tuple[float, float] = (6.2, 4.2),
    grid: str = "both",
) -> Iterator[tuple[Any, str, T]]:
    """Axes, title and content of each panel of a new figure; it gets its grid and title once it is drawn."""
    across = max(1, min(across, len(panels)))
    down = -(-len(panels) // across)
    figure: Any = sheet(size[0] * across, size[1] * down) if panels else None
    for number, (title, panel) in enumerate(panels, 1):
        axes = figure.add_subplot(down, across, number)
        yield axes, title, panel
        axes.grid(axis=grid, alpha=0.25)
        titled(axes, title)


def _style(number: int) -> dict[str, Any]:
    """Colour and mark of the n-th line; ten colours, so the dash changes every ten."""
    dash, mark = DASHES[number // 10 % 4], MARKS[number % len(MARKS)]
    return {"color": f"C{number % 10}", "marker": mark, "linestyle": dash}


def titled(axes: Any, title: str, size: int = 11) -> None:
    """A title, each line of which is plain text: nothing in it acts as a formula."""
    shown = "\n".join(_lettering(line) for line in title.split("\n"))
    axes.set_title(shown, parse_math=False, fontsize=size)


def named(axes: Any, place: str, names: Sequence[str], **how: Any) -> None:
    """Tick labels in which nothing acts as a formula; ``place`` is x or y."""
    setter = axes.set_xticks if place == "x" else axes.set_yticks
    setter(range(len(names)), [_lettering(name) for name in names], parse_math=False, **how)


def _lettering(text: str) -> str:
    """Characters that act, or that few fonts have a sign for, in backslash notation."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def file_of(figure: Any, kind: str = "png", dots: int = DOTS) -> bytes:
    """A figure as a PNG, PDF or SVG file; the same figure is the same SVG: fixed names and no date."""
    from matplotlib import rc_context

    drawn, dated = io.BytesIO(), {"Date": None} if kind == "svg" else None
    # The context is the whole process's.
    with _drawing, rc_context({"svg.hashsalt": "tokenlight", "svg.fonttype": "none"}):
        figure.savefig(drawn, format=kind, dpi=dots, facecolor="white", metadata=dated)
    return drawn.getvalue()


def png(figure: Any) -> bytes:
    """A figure as a PNG of few colours; the same figure gives the same bytes."""
    from PIL import Image

    return small(Image.open(io.BytesIO(file_of(figure))))


def small(image: Any) -> bytes:
    """An image (of Pillow) as a PNG of few colours."""
    into = io.BytesIO()
    image.convert("RGB").quantize(SHADES).save(into, format="PNG", optimize=True)
    return into.getvalue()


def cloud(weights: Mapping[str, float], *, k: int = 50, colour: str = CLOUD_COLOURS[1]) -> Any:
    """The ``k`` tokens that speak most for one class, as an image (of Pillow)."""
    wordcloud = MissingExtra.importing("wordcloud", "plots", "a word cloud")
    sizes: dict[str, float] = {}
    for token, weight in top_tokens(weights, k):
        word = shown(token)
        sizes[word] = max(weight, sizes.get(word, 0.0))  # a word and its piece: the stronger
    if not sizes:
        raise BadInput("no token speaks for this class, so there is nothing to draw.")
    how = {"width": 900, "height": 560, "background_color": "white", "relative_scaling": 0.5}
    how |= {"prefer_horizontal": 1.0, "color_func": lambda *_, **__: colour, "max_words": k}
    how |= {"margin": 8, "random_state": 0}  # two words read as two, and lie in the same places
    return wordcloud.WordCloud(**how).generate_from_frequencies(sizes).to_image()


def top_tokens(weights: Mapping[str, float], k: int = 50) -> list[tuple[str, float]]:
    """The types that speak most for a class, at most ``k``; equal ones by name."""
    speaking = [(token, weight) for token, weight in weights.items() if weight > 0]
    return sorted(speaking, key=lambda pair: (-pair[1], pair[0]))[:k]


def shown(token: str) -> str:
    """A token type without its tokenizer's marks of what goes on, and of what begins a word."""
    return visible(re.sub("^(##|Ġ|▁|Ċ)", "", token)) or "·"
