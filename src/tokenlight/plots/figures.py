"""Figures of explanations and of attention heads for papers and slides; the caller saves them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.postprocess import difference, l1_normalise
from tokenlight.errors import BadInput
from tokenlight.plots import charts, facts
from tokenlight.plots.characters import in_line
from tokenlight.plots.charts import named, panes, sheet, titled
from tokenlight.plots.colours import STEPS, VEIL, hexadecimal, ink, shade
from tokenlight.plots.passages import strongest_pieces
from tokenlight.plots.scene import WORDS, scenes
from tokenlight.plots.views import Mark, layer_table

PANEL = 2.3  # inches of a picture
OFFSETS = 10  # relative positions drawn to each side
COLUMNS = 84  # letters in a line
SIZE, LETTER, LINE = 11, 0.092, 0.27  # points; inches of a letter and of a line
HEAD_KINDS = ("neither", "positional", "syntactic", "both")
HEAD_COLOURS = ("#eceff1", "#1e88e5", "#e65100", "#6a1b9a")  # told apart by colour-blind eyes, too


def heat_map(attribution: Attribution, *, rollout: bool = False) -> Any:
    """Per-layer terms and their sum, divided by the Frobenius norm of the table, on one colour scale, without
    special tokens (AttCAT, figure 5). ``rollout``: with the product of the layers, as the paper has it."""
    table = layer_table(attribution, rollout=rollout).without_special().normalised()
    rows, columns = table.values.shape
    axes = sheet(2.4 + 0.55 * columns, 1.4 + 0.32 * rows).add_subplot()
    image = _cells(axes, table.values, table.values, [rows - 1])
    named(axes, "x", table.columns, rotation=60, ha="right")
    named(axes, "y", table.rows)
    axes.axhline(rows - 1.5, color="black", linewidth=1)
    titled(axes, attribution.label, 10)
    axes.figure.colorbar(image, ax=axes, label="against  ←  →  for")
    return axes.figure


def bars(attributions: Attribution | Iterable[Attribution], *, k: int = 10) -> Any:
    """The ``k`` strongest tokens of each attribution as signed bars, one panel each."""
    given = [one.attribution for text in scenes(attributions) for one in text.methods]
    full = {sign: hexadecimal(shade(sign * STEPS)) for sign in (1, -1)}
    panels, size, axes = [(one.label, one) for one in given], (3.6, 0.9 + 0.28 * k), None
    for axes, _, attribution in panes(panels, 3, size, "x"):
        best = strongest_pieces(attribution, k)[::-1]
        scores = [score for _, score in best]
        axes.barh(range(len(best)), scores, color=[full[1 if s >= 0 else -1] for s in scores])
        named(axes, "y", [piece.bracketed for piece, _ in best])
        axes.axvline(0, color="black", linewidth=0.8)
    return axes and axes.figure


def difference_map(
    reference: tuple[str, Attribution], others: Mapping[str, Attribution], *, title: str = ""
) -> Any:
    """Scores of the reference (L1 sum 1), then reference minus each other, which share one scale, a row each
    (Mask-LRP, figure 6). Special tokens are left out."""
    name, base = reference
    kept = np.flatnonzero(~np.array(base.row.special, dtype=bool))
    rows = {name: l1_normalise(base).scores[kept]}
    rows |= {f"{name} − {label}": difference(base, a).scores[kept] for label, a in others.items()}
    values = np.vstack(list(rows.values()))
    scales = [float(np.abs(own).max(initial=0.0)) or 1.0 for own in (values[:1], values[1:])]
    axes = sheet(2.2 + 0.75 * len(kept), 1.0 + 0.34 * len(rows)).add_subplot()
    shares = np.vstack([values[:1] / scales[0], values[1:] / scales[1]])
    _cells(axes, shares, values, range(len(rows)))
    named(axes, "x", [base.tokens[i] for i in kept], rotation=45, ha="right", fontsize=8)
    named(axes, "y", list(rows), fontsize=8)
    axes.set_xlabel(facts.SCALED, fontsize=8)
    titled(axes, title)
    return axes.figure


def _cells(axes: Any, shares: np.ndarray, values: np.ndarray, numbered: Iterable[int]) -> Any:
    """A cell a score, coloured by its share in the largest; rows that are ``numbered`` carry their values."""
    from matplotlib.colors import LinearSegmentedColormap  # sheet says what to install

    limit = float(np.abs(shares).max(initial=0.0)) or 1.0
    paints = [hexadecimal(shade(n * STEPS)) for n in (-1, 0, 1)]
    colours = LinearSegmentedColormap.from_list("for and against", paints)
    for row in numbered:
        for column, value in enumerate(values[row]):
            on = colours(0.5 + shares[row, column] / limit / 2, bytes=True)[:3]
            how = {"ha": "center", "va": "center", "fontsize": 8, "color": hexadecimal(ink(on))}
            axes.text(column, row, f"{value:+.2f}", **how)
    return axes.imshow(shares, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")


def heat_maps(attributions: Attribution | Iterable[Attribution]) -> Any:
    """What a model of pictures sees, then a panel an explanation: one row a picture and target."""
    lines = [(one.first, own.methods) for one in scenes(attributions) for own in one.targets]
    across = 1 + max(len(found) for _, found in lines)
    figure = sheet(PANEL * across, (PANEL + 0.35) * len(lines))
    panels = figure.subplots(len(lines), across, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for line, (first, found) in zip(panels, lines, strict=True):
        image, said = first.row.image, first.prediction
        if image is None:
            raise BadInput("heat maps are drawn over pictures, and among these is a text.")
        chance = "" if said.probability is None else f" {said.probability:.2f}"
        line[0].imshow(image.shown, interpolation="nearest")
        titled(line[0], f"{image.name}\n{said.label}{chance}", 8)
        grey = np.repeat(image.shown.mean(axis=2, keepdims=True), 3, axis=2) / 255
        height, width = image.shown.shape[:2]
        over = {"interpolation": "nearest", "extent": (-0.5, width - 0.5, height - 0.5, -0.5)}
        for axes, method in zip(line[1:], found, strict=False):
            a = method.attribution
            axes.imshow(0.35 + 0.6 * grey, interpolation="nearest")
            axes.imshow(_veil(a.patches(), method.views[0].scale), **over)
            weighs = f" ({a.segment_shares()[0].share:.0%} the image)".replace("%", " %")
            titled(axes, f"{method.label}{weighs * bool(image.places)}\nfor {a.target.name}", 8)
    return figure


def _veil(values: np.ndarray, scale: float) -> np.ndarray:
    """``row column 4``: the colour of the sign, the strength as opacity."""
    share = np.clip(values / scale, -1, 1) if scale else np.zeros_like(values)
    ends = [np.array(shade(sign * STEPS)) / 255 for sign in (1, -1)]
    colour = np.where(share[..., None] >= 0, ends[0], ends[1])
    return np.concatenate((colour, VEIL * np.abs(share)[..., None]), axis=2)


def highlighted(attributions: Attribution | Iterable[Attribution]) -> Any:
    """Each explanation below its name, the words on the colours of the page; special tokens left out."""
    lines: list[list[tuple[int, Mark]]] = []
    for text in scenes(attributions, (WORDS,)):
        for method in text.methods:
            lines.append([(0, Mark(method.attribution.label, None, 0, (), False, False, None))])
            for part in method.views[0].lines:
                lines += _wrapped([mark for mark in part.marks if not mark.special])
            lines.append([])
    figure = sheet(LETTER * COLUMNS + 0.3, LINE * len(lines) + 0.1, layout=None)
    axes = figure.add_axes((0.02, 0.0, 0.96, 1.0))
    axes.set_axis_off()
    axes.set(xlim=(0, COLUMNS), ylim=(len(lines), 0))
    for row, line in enumerate(lines):
        for column, mark in line:
            how: dict[str, Any] = {"family": "monospace", "fontsize": SIZE, "va": "center"}
            if mark.score is None:  # a name, or what is no token's
                how["color"] = "#5b6470"
            elif mark.strength:
                paper = shade(mark.strength)
                how["color"] = hexadecimal(ink(paper))
                how["bbox"] = {"facecolor": hexadecimal(paper), "linewidth": 0, "pad": 1.2}
            axes.text(column, row + 0.5, in_line(mark.text), parse_math=False, **how)
    return figure


def _wrapped(marks: list[Mark]) -> list[list[tuple[int, Mark]]]:
    """The marks line by line, each with the column it begins at."""
    lines, column = list[list[tuple[int, Mark]]]([[]]), 0
    for mark in marks:
        width = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in mark.text)
        if (column and column + width > COLUMNS) or "\n" in mark.text:
            lines.append([])
            column = 0
        if mark.text.strip():
            lines[-1].append((column, mark))
        if column or mark.text.strip():  # a line begins with no blank
            column += width
    return lines


def drawn(attributions: Sequence[Attribution]) -> Any:
    """Heat maps of pictures, the highlighted text of texts."""
    pictures = any(one.row.image is not None for one in attributions)
    return (heat_maps if pictures else highlighted)(attributions)


def file_of(attributions: Sequence[Attribution], ending: str) -> bytes:
    """The same as a ``.png``, ``.svg`` or ``.pdf`` file."""
    return charts.file_of(drawn(attributions), ending[1:], 160)


def relation_histograms(heads: Mapping[str, Any]) -> Any:
    r"""Relative position of dependent minus head, a panel a relation of a heads file (Mask-LRP, figure 1).
    The dashed line is the threshold :math:`\max\lambda+\xi`."""
    places, axes = list(range(-OFFSETS, OFFSETS + 1)), None
    panels = [(f"{name} ({own['dependents']})", own) for name, own in heads["relations"].items()]
    for axes, _, found in panes(panels, len(panels), (3.2, 2.6), "y"):
        shares = [found["offsets"].get(str(place), 0.0) for place in places]
        axes.bar(places, shares, color=HEAD_COLOURS[1])
        axes.axhline(found["threshold"], color=HEAD_COLOURS[2], linestyle="--", linewidth=1)
        axes.set(ylim=(0, 1), xlabel="dependent − head, in words", ylabel="share")
    return axes and axes.figure


def head_map(heads: Mapping[str, Any]) -> Any:
    """Which head of which block, the lowest below, is positional or syntactic (Mask-LRP, figure 5)."""
    mask = heads["mask"]
    kinds = 2 * (np.array(mask["syntactic"]) > 0) + (np.array(mask["positional"]) > 0)
    layers, across = kinds.shape
    axes = sheet(1.6 + 0.32 * across, 1.5 + 0.3 * layers, None).add_subplot()
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = {"cmap": ListedColormap(HEAD_COLOURS), "vmin": -0.5, "vmax": 3.5}
    axes.pcolormesh(kinds, edgecolors="white", linewidth=1, **colours)
    axes.set_xticks(np.arange(across) + 0.5, map(str, range(across)), fontsize=8)
    axes.set_yticks(np.arange(layers) + 0.5, map(str, range(1, layers + 1)), fontsize=8)
    axes.set(xlabel="head", ylabel="block")
    counts = (f"{kind} ({int((kinds == n).sum())})" for n, kind in enumerate(HEAD_KINDS))
    legend = [Patch(color=c, label=own) for c, own in zip(HEAD_COLOURS, counts, strict=True)]
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
    axes.legend(handles=legend, fontsize=8, ncols=2, **below)
    axes.figure.tight_layout()
    return axes.figure


def heads_page(heads: Mapping[str, Any]) -> str:
    """One self-contained HTML page with both figures."""
    from tokenlight.plots.html import _environment

    made = (charts.file_of(draw(heads), "svg") for draw in (relation_histograms, head_map))
    drawn = [file[file.index(b"<svg") :].decode("utf-8") for file in made]
    title = f"Attention heads of {heads.get('model') or 'a model'}"
    page = _environment().get_template("heads.html.j2")
    return page.render(title=title, heads=heads, figures=drawn)
