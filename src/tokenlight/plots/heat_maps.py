"""Heat maps over pictures as one figure: what the model sees, then one panel an explanation."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.errors import BadInput, MissingExtra
from tokenlight.plots.characters import in_line
from tokenlight.plots.colours import STEPS, shade
from tokenlight.plots.grids import VEIL
from tokenlight.plots.groups import TextGroup, grouped, method_label

PANEL = 2.3  # inches


def figure(attributions: Attribution | Iterable[Attribution]) -> Any:
    """One row a picture and target; green speaks for the target, red against it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise MissingExtra.naming("matplotlib", "plots", "a figure of heat maps") from missing
    lines = [
        (group, target.attributions) for group in grouped(attributions) for target in group.targets
    ]
    if any(group.first.row.image is None for group, _ in lines):
        raise BadInput(
            "heat maps are drawn over pictures, and this explains a text; write .html for it."
        )
    across = 1 + max(len(found) for _, found in lines)
    # A Figure of its own, never pyplot: no global state, no window, nothing to close.
    drawn = Figure(figsize=(PANEL * across, (PANEL + 0.35) * len(lines)), layout="constrained")
    panels = drawn.subplots(len(lines), across, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for line, (group, found) in zip(panels, lines, strict=True):
        _draw(line, group, found)
    return drawn


def _draw(line: Sequence[Any], group: TextGroup, found: Sequence[Attribution]) -> None:
    image = group.first.row.image
    assert image is not None
    prediction = group.first.prediction
    chance = "" if prediction.probability is None else f" {prediction.probability:.2f}"
    line[0].imshow(image.shown, interpolation="nearest")
    line[0].set_title(
        f"{in_line(image.name)}\n{in_line(prediction.label)}{chance}", fontsize=8, parse_math=False
    )
    grey = np.repeat(image.shown.mean(axis=2, keepdims=True), 3, axis=2) / 255
    for axes, a in zip(line[1:], found, strict=False):
        height, width = image.shown.shape[:2]
        axes.imshow(0.35 + 0.6 * grey, interpolation="nearest")
        veil = _veil(a.patches(), group.scale(a))
        axes.imshow(veil, interpolation="nearest", extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        title = f"{in_line(method_label(a))}\nfor {in_line(a.target.name)}"
        axes.set_title(title, fontsize=8, parse_math=False)


def _veil(values: np.ndarray, scale: float) -> np.ndarray:
    """``row column 4``: the colour of the sign, the strength as opacity."""
    share = np.clip(values / scale, -1, 1) if scale else np.zeros_like(values)
    ends = [np.array(shade(sign * STEPS)) / 255 for sign in (1, -1)]
    colour = np.where(share[..., None] >= 0, ends[0], ends[1])
    return np.concatenate((colour, VEIL * np.abs(share)[..., None]), axis=2)


def png(attributions: Attribution | Iterable[Attribution]) -> bytes:
    """The figure as a PNG file."""
    into = io.BytesIO()
    figure(attributions).savefig(into, format="png", dpi=130)
    return into.getvalue()
