"""Charts of reports: methods compared panel by panel, and word clouds of classes."""

import io
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tokenlight.errors import BadInput, MissingExtra
from tokenlight.plots.characters import make_visible, to_single_line

MARKERS = "osv^D*PX<>hp"  # distinguishable without colours, too
DASHES = ("-", "--", ":", "-.")
NUM_CYCLE_COLOURS = 10  # colours of matplotlib's default cycle
OUR_COLOUR = "#1f5fa8"
PUBLISHED_COLOUR = "#e65100"
GREY_COLOUR = "#5b6470"
DPI = 100
NUM_PNG_COLOURS = 255  # colours of a small PNG, which looks the same with a third of the bytes
MAX_INCHES = 40  # size of a figure
MAX_LEGEND_NAMES = 12  # a longer legend gets two columns and a smaller font
LOG_SCALE_RATIO = 8  # costs that differ by a larger factor get a logarithmic axis
MAX_MINOR_LABEL_RATIO = 1000  # with a larger factor, minor labels would crowd that axis
T = TypeVar("T")
CostAndScore = tuple[float, float]  # cost of a method, and its value of a metric
# matplotlib's settings belong to the whole process.
_matplotlib_lock = threading.Lock()
# Dark enough on white for small print. Clouds also differ by position and title, not only by colour.
CLOUD_COLOURS = ("#9f2f1f", "#1f5fa8", "#2b6e3f", "#7a4fa3", "#8a5a00", "#444444")


class Line(NamedTuple):
    """A curve.

    Args:
        points: Positions on the x axis.
        means: The value at each point.
        lows: The lower end of the interval at each point, or nothing.
        highs: The upper end of the interval at each point, or nothing.
    """

    points: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


class Bar(NamedTuple):
    """A mean with its interval, and the published number; each of them may be missing."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None


def make_figure(width: float, height: float, layout: str | None = "constrained") -> Any:
    """Return an empty matplotlib figure of at most ``MAX_INCHES`` per side.

    It is made without pyplot, so there is no global state, no window and nothing to close.

    Args:
        width: Width in inches.
        height: Height in inches.
        layout: A layout engine of matplotlib; None to place everything by hand.
    """
    figure = MissingExtra.import_or_raise("matplotlib.figure", "plots", "a figure")
    return figure.Figure(figsize=(min(width, MAX_INCHES), min(height, MAX_INCHES)), layout=layout)


def draw_lines(
    panels: Mapping[str, Mapping[str, Line]],
    x_labels: Mapping[str, str] | None = None,
    highlighted_methods: Sequence[str] | None = None,
) -> Any:
    """Draw one panel per title with one line per method; the interval is a band.

    Args:
        panels: Title → method → its line.
        x_labels: Title → label of the x axis; by default "share of tokens removed".
        highlighted_methods: Methods with a colour and a name; all others are grey. By default all.

    Returns:
        The figure; None without panels.
    """
    axes = None
    for axes, title, panel in iter_axes(panels.items()):
        highlighted = list(panel)
        if highlighted_methods is not None:
            highlighted = list(highlighted_methods)
        _draw_grey_lines(axes, [line for name, line in panel.items() if name not in highlighted])
        for index, name in enumerate(highlighted):
            if name in panel:
                _draw_line(axes, name, panel[name], _line_style(index))
        axes.set_xlabel((x_labels or {}).get(title, "share of tokens removed"))
        _add_legend(axes, len(panel))
    return axes and axes.figure


def _draw_grey_lines(axes: Any, lines: Sequence[Line]) -> None:
    """Draw the lines of methods that are not highlighted, with one entry in the legend."""
    label: str | None = f"{len(lines)} others"
    for line in lines:
        axes.plot(line.points, line.means, color="0.8", linewidth=0.8, zorder=1, label=label)
        label = None


def _draw_line(axes: Any, name: str, line: Line, style: Mapping[str, Any]) -> None:
    axes.plot(line.points, line.means, markersize=3.5, label=to_single_line(name), **style)
    if len(line.lows):
        axes.fill_between(
            line.points, line.lows, line.highs, color=style["color"], alpha=0.12, linewidth=0
        )


def _add_legend(axes: Any, num_names: int) -> None:
    if num_names > MAX_LEGEND_NAMES:
        axes.legend(fontsize=6, ncols=2)
    else:
        axes.legend(fontsize=7, ncols=1)


def draw_bars(panels: Mapping[str, Mapping[str, Bar]], limits: Sequence[float | None] = ()) -> Any:
    """Draw one bar per method; a diamond is the published number.

    Args:
        panels: Title → method → its bar.
        limits: For each panel the largest possible value, drawn as a dashed line, or None.

    Returns:
        The figure; None without panels.
    """
    limit_by_title = dict(zip(panels, limits, strict=False))
    max_bars = max(map(len, panels.values()), default=1)
    panel_size = (4.4, 1.3 + 0.3 * max_bars)
    axes = None
    for axes, title, panel in iter_axes(panels.items(), 3, panel_size, "x"):
        for position, bar in enumerate(panel.values()):
            _draw_bar(axes, position, bar)
        limit = limit_by_title.get(title)
        if limit is not None:
            axes.axvline(limit, color=GREY_COLOUR, linestyle="--", linewidth=1)
        set_tick_labels(axes, "y", list(panel), fontsize=8)
        axes.invert_yaxis()  # the first method on top, as in the tables
        axes.axvline(0, color="black", linewidth=0.8)
    return axes and axes.figure


def _draw_bar(axes: Any, position: int, bar: Bar) -> None:
    if bar.mean is not None:
        axes.barh(position, bar.mean, height=0.7, color=OUR_COLOUR, alpha=0.85)
        if bar.low is not None and bar.high is not None:
            # A bootstrap interval need not contain the mean; matplotlib refuses negative lengths.
            length_below = max(0.0, bar.mean - bar.low)
            length_above = max(0.0, bar.high - bar.mean)
            interval = [[length_below], [length_above]]
            axes.errorbar(bar.mean, position, xerr=interval, color="black", capsize=2, linewidth=1)
    if bar.published is not None:
        axes.plot(bar.published, position, "D", color=PUBLISHED_COLOUR, markersize=6, zorder=3)


def draw_frontier(
    panels: Mapping[str, Mapping[str, CostAndScore]], metric: str, *, lower_is_better: bool = False
) -> Any:
    """Draw methods by cost and value; a line joins those that no other is cheaper and better than.

    Args:
        panels: Kind of cost → method → its cost and value.
        metric: Label of the values.
        lower_is_better: Whether smaller values are better.

    Returns:
        The figure; None without panels.
    """
    axes = None
    for axes, _, panel in iter_axes(panels.items()):
        for index, (name, (cost, value)) in enumerate(panel.items()):
            style = _line_style(index) | {"linestyle": "none"}
            axes.plot(cost, value, markersize=7, label=to_single_line(name), **style)
        front = [panel[name] for name in find_pareto_front(panel, lower_is_better=lower_is_better)]
        axes.plot(*zip(*front, strict=True), color=GREY_COLOUR, linewidth=1, zorder=0)
        _scale_cost_axis(axes, [cost for cost, _ in panel.values()])
        axes.set_ylabel(to_single_line(metric), parse_math=False)
        _add_legend(axes, len(panel))
    return axes and axes.figure


def _scale_cost_axis(axes: Any, costs: Sequence[float]) -> None:
    """Use a logarithmic axis for costs of different magnitudes."""
    lowest = min(costs)
    highest = max(costs)
    if lowest > 0 and highest > LOG_SCALE_RATIO * lowest:
        axes.set_xscale("log", subs=(2, 5))
        axes.xaxis.set_major_formatter("{x:g}")
        if highest < MAX_MINOR_LABEL_RATIO * lowest:
            axes.xaxis.set_minor_formatter("{x:g}")


def find_pareto_front(
    panel: Mapping[str, CostAndScore], *, lower_is_better: bool = False
) -> Sequence[str]:
    """Return the methods, cheapest first, that are better than every one that costs no more.

    Args:
        panel: Method → its cost and value.
        lower_is_better: Whether smaller values are better.

    Example:
        >>> find_pareto_front({"fast": (1, 0.5), "slow": (9, 0.7), "worse": (5, 0.4)})
        ['fast', 'slow']
    """
    ranked = []
    for name, (cost, value) in panel.items():
        quality = -value if lower_is_better else value
        ranked.append((cost, -quality, name))  # of equal costs the best method first
    front = []
    best_quality = float("-inf")
    for _, negative_quality, name in sorted(ranked):
        if -negative_quality > best_quality:
            best_quality = -negative_quality
            front.append(name)
    return front


def iter_axes(
    panels: Collection[tuple[str, T]],
    max_columns: int = 2,
    panel_size: tuple[float, float] = (6.2, 4.2),
    grid: str = "both",
) -> Iterator[tuple[Any, str, T]]:
    """Yield axes, title and content of each panel of a new figure.

    A panel gets its grid and title after the caller has drawn it.

    Args:
        panels: Titles and contents.
        max_columns: Panels side by side.
        panel_size: Width and height of a panel, in inches.
        grid: The axis with grid lines: ``x``, ``y`` or ``both``.
    """
    if not panels:
        return
    num_columns = max(1, min(max_columns, len(panels)))
    num_rows = -(-len(panels) // num_columns)  # rounded up
    width, height = panel_size
    figure = make_figure(width * num_columns, height * num_rows)
    for number, (title, panel) in enumerate(panels, 1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        yield axes, title, panel
        axes.grid(axis=grid, alpha=0.25)
        set_title(axes, title)


def _line_style(index: int) -> dict[str, Any]:
    """Return colour, marker and dash of a line; the dash changes whenever the colours repeat."""
    return {
        "color": f"C{index % NUM_CYCLE_COLOURS}",
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // NUM_CYCLE_COLOURS % len(DASHES)],
    }


def set_title(axes: Any, title: str, font_size: int = 11) -> None:
    """Set a title of one or more lines as plain text: nothing in it is read as a formula.

    Args:
        axes: Axes of matplotlib.
        title: The title, perhaps with names that users chose.
        font_size: Size in points.
    """
    lines = map(_escape_unprintable, title.split("\n"))
    axes.set_title("\n".join(lines), parse_math=False, fontsize=font_size)


def set_tick_labels(axes: Any, axis: str, names: Sequence[str], **options: Any) -> None:
    """Set tick labels as plain text; ``axis`` is x or y.

    Args:
        axes: The axes of a figure.
        axis: ``x`` or ``y``.
        names: The labels.
        **options: Further keywords of matplotlib, such as ``rotation``.
    """
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    labels = list(map(_escape_unprintable, names))
    set_ticks(range(len(labels)), labels, parse_math=False, **options)


def _escape_unprintable(text: str) -> str:
    """Write characters that no font can print in backslash notation."""
    escaped = ""
    for character in text:
        if character.isprintable():
            escaped += character
        else:
            escaped += character.encode("unicode_escape").decode()
    return escaped


def render_figure(figure: Any, file_format: str = "png", dpi: int = DPI) -> bytes:
    """Render a figure as the bytes of a PNG, PDF or SVG file.

    The same figure gives the same SVG: its ids are fixed and it has no date.

    Args:
        figure: A figure of matplotlib.
        file_format: ``"png"``, ``"svg"`` or ``"pdf"``.
        dpi: Pixels per inch of a PNG.
    """
    from matplotlib import rc_context

    metadata = {"Date": None} if file_format == "svg" else None
    buffer = io.BytesIO()
    with _matplotlib_lock, rc_context({"svg.hashsalt": "tokenlight", "svg.fonttype": "none"}):
        figure.savefig(buffer, format=file_format, dpi=dpi, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def render_png(figure: Any) -> bytes:
    """Render a figure as a PNG with few colours; the same figure gives the same bytes."""
    from PIL import Image

    return to_small_png(Image.open(io.BytesIO(render_figure(figure))))


def to_small_png(image: Any) -> bytes:
    """Encode a Pillow image as a PNG with few colours."""
    buffer = io.BytesIO()
    image.convert("RGB").quantize(NUM_PNG_COLOURS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def draw_word_cloud(
    weights: Mapping[str, float], *, k: int = 50, colour: str = CLOUD_COLOURS[1]
) -> Any:
    """Draw the tokens with the largest weights for one class as a Pillow image.

    Args:
        weights: Token → weight for the class.
        k: The largest number of tokens.
        colour: Colour of the words.

    Raises:
        BadInput: No token has a positive weight.
    """
    wordcloud = MissingExtra.import_or_raise("wordcloud", "plots", "a word cloud")
    sizes: dict[str, float] = {}
    for token, weight in select_top_tokens(weights, k):
        # A word and a piece of another word can look the same; the stronger one counts.
        word = strip_token_prefix(token)
        sizes[word] = max(weight, sizes.get(word, 0.0))
    if not sizes:
        raise BadInput(
            "No token has a positive weight for this class, so there is nothing to draw. Choose another "
            "class.",
            code="empty-word-cloud",
        )
    cloud = wordcloud.WordCloud(
        width=900,
        height=560,
        background_color="white",
        relative_scaling=0.5,
        prefer_horizontal=1.0,
        color_func=lambda *_, **__: colour,
        max_words=k,
        margin=8,  # so that two words are not read as one
        random_state=0,  # the same words at the same positions
    )
    return cloud.generate_from_frequencies(sizes).to_image()


def select_top_tokens(weights: Mapping[str, float], k: int = 50) -> list[tuple[str, float]]:
    """Return at most ``k`` tokens with positive weights, the largest first, ties by name.

    Args:
        weights: The weight of each token.
        k: The most tokens to return.
    """
    positive = [(token, weight) for token, weight in weights.items() if weight > 0]
    return sorted(positive, key=lambda pair: (-pair[1], pair[0]))[:k]


def strip_token_prefix(token: str) -> str:
    """Return a token without the prefix that says whether it begins or continues a word."""
    return make_visible(re.sub("^(##|Ġ|▁|Ċ)", "", token)) or "·"
