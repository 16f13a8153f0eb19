"""A picture's patches as the HTML template shows them: rectangles over the picture."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np

from tokenlight.data.attribution import Attribution
from tokenlight.data.image import PatchImage
from tokenlight.plots.colours import STEPS, step, step_name
from tokenlight.plots.facts import number

VEIL = 0.78  # of the strongest colour: the picture shines through
COARSE = 128  # pixels below which a picture is shown with hard edges


@dataclass(frozen=True, slots=True)
class Patch:
    """One rectangle: where, its colour, how far it covers the picture, and what hovering says."""

    x: int
    y: int
    look: str
    opacity: float
    hover: str


@dataclass(frozen=True, slots=True)
class Photo:
    """What the model sees, once a page: the name other places refer to it by, and its data."""

    key: str
    url: str
    name: str
    about: str
    width: int
    height: int
    look: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A heat map over a picture, the model's own tokens beside it, and one map a layer."""

    photo: Photo
    patch: tuple[int, int]  # width, height
    patches: tuple[Patch, ...]
    special: tuple[tuple[str, str], ...]
    layers: tuple[tuple[str, tuple[Patch, ...]], ...]


def photo(image: PatchImage) -> Photo:
    """The picture as a data URL: no file beside the page."""
    height, width = image.shown.shape[:2]
    given = f"{image.size[0]} × {image.size[1]} pixels"
    seen = "" if image.size == (width, height) else f", read as {width} × {height}"
    return Photo(
        f"photo-{image.digest[:12]}",
        f"data:image/png;base64,{base64.b64encode(image.png).decode('ascii')}",
        image.name,
        f"{given}{seen}, {image.rows} × {image.columns} patches",
        width,
        height,
        "photo coarse" if max(width, height) < COARSE else "photo",
    )


def grid(attribution: Attribution, scale: float) -> Grid | None:
    """The heat map of an explained picture; None for a text."""
    image, row = attribution.row.image, attribution.row
    if image is None:
        return None
    own = [i for i, special in enumerate(row.special) if special]
    maps = () if attribution.layers is None else layer_maps(attribution)
    strongest = float(np.abs(maps).max()) if len(maps) else 0.0
    return Grid(
        photo(image),
        (image.patch[1], image.patch[0]),
        _patches(attribution.patches(), image, scale, hover=True),
        tuple((row.pieces[i], number(float(attribution.scores[i]))) for i in own),
        tuple(
            (f"L{layer}", _patches(terms, image, strongest, hover=False))
            for layer, terms in enumerate(maps)
        ),
    )


def layer_maps(attribution: Attribution) -> np.ndarray:
    """The terms of a picture's patches, ``layer row column``."""
    image = attribution.row.image
    assert image is not None
    assert attribution.layers is not None
    terms = attribution.layers[:, -image.rows * image.columns :]
    return terms.reshape(len(terms), image.rows, image.columns)


def _patches(
    values: np.ndarray, image: PatchImage, scale: float, *, hover: bool
) -> tuple[Patch, ...]:
    found = []
    for row, line in enumerate(values):
        for column, value in enumerate(map(float, line)):
            strength = step(value, scale)
            if not strength and not hover:
                continue
            found.append(
                Patch(
                    column * image.patch[1],
                    row * image.patch[0],
                    step_name(STEPS if strength > 0 else -STEPS) if strength else "",
                    round(VEIL * abs(strength) / STEPS, 3),
                    f"row {row}, column {column}  {number(value)}" if hover else "",
                )
            )
    return tuple(found)
