"""An image cut into patches: what a model of patches sees, and what stands in a hidden patch's place."""

import base64
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from tokenlight.errors import DamagedFile, MissingExtra, TokenlightError

Fill = Literal["mean", "zero", "blur"]
HIDDEN, SEEN = 0, 1  # the ids of a patch
MOST_PIXELS = 4096 * 4096  # of a stored picture: some kilobytes can claim to be gigabytes


@dataclass(frozen=True)
class Scale:
    """How a picture's brightness, 0 to 1, became pixel values: ``(brightness − mean) / std``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Any, std: Any, channels: int) -> "Scale":
        """One number a channel."""
        wide = [np.broadcast_to(np.asarray(v, dtype=float), (channels,)) for v in (mean, std)]
        return cls(tuple(wide[0].tolist()), tuple(wide[1].tolist()))

    def shown(self, pixels: np.ndarray) -> np.ndarray:
        """``height width 3`` of uint8."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        bright = np.clip(pixels * std + mean, 0, 1) * 255
        rgb = bright.round().astype(np.uint8).transpose(1, 2, 0)
        return np.broadcast_to(rgb, (*pixels.shape[1:], 3)).copy()

    def pixels(self, shown: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`shown`."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        bright = shown.transpose(2, 0, 1)[: len(self.mean)] / 255
        pixels: np.ndarray = ((bright - mean) / std).astype(np.float32)
        return pixels


@dataclass(frozen=True, eq=False)
class PatchImage:
    """A picture cut into patches, as it goes into a model; equal where the model reads the same. ``pixels``:
    ``channel height width``, normalised; ``patch``: height and width of one; ``size``: width and height
    before it was resized, where that is known; ``places``: where its patches stand among the tokens of a
    text, none where they are the last of their own row."""

    pixels: np.ndarray
    scale: Scale
    patch: tuple[int, int] = (1, 1)
    fill: Fill = "mean"
    name: str = ""
    size: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    def positions(self, tokens: int) -> list[int]:
        """Where the patches stand in a row of ``tokens``, row by row from the top left."""
        return list(self.places or range(tokens - self.rows * self.columns, tokens))

    def grid(self, values: np.ndarray) -> np.ndarray:
        """``… token`` to ``… row column``: what belongs to the patches."""
        own = values[..., self.positions(values.shape[-1])]
        return own.reshape(*values.shape[:-1], self.rows, self.columns)

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return int(self.pixels.shape[1]) // self.patch[0]

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return int(self.pixels.shape[2]) // self.patch[1]

    @property
    def names(self) -> list[str]:
        """What its patches are called, ``row,column``."""
        return [f"{row},{column}" for row in range(self.rows) for column in range(self.columns)]

    @cached_property
    def shown(self) -> np.ndarray:
        """What the model sees, for the eye: ``height width 3`` of uint8."""
        return self.scale.shown(self.pixels)

    @cached_property
    def filling(self) -> np.ndarray:
        """What hidden patches show, ``channel height width``."""
        if self.fill == "zero":
            return np.zeros_like(self.pixels)
        if self.fill == "blur":
            return _blurred(self.pixels, max(self.patch))
        mean = self.pixels.mean(axis=(1, 2), keepdims=True)
        return np.broadcast_to(mean, self.pixels.shape).astype(np.float32)

    @cached_property
    def digest(self) -> str:
        """Tells two pictures apart."""
        values = self.shown if self.plain else self.pixels
        found = hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16)
        found.update(repr((self.pixels.shape, self.scale, self.patch, self.fill)).encode())
        return found.hexdigest()

    @cached_property
    def plain(self) -> bool:
        """Whether the pixel values are those of a picture of 256 shades, as a PNG holds it."""
        off = np.abs(self.scale.pixels(self.shown) - self.pixels).max(axis=(1, 2))
        return bool((off * np.array(self.scale.std) < 1e-2 / 255).all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatchImage) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, _memo: Any) -> "PatchImage":
        return self  # nothing of it changes

    @cached_property
    def png(self) -> bytes:
        """What the model sees, as a PNG file."""
        into = io.BytesIO()
        pillow("a picture of an explanation").fromarray(self.shown).save(into, format="PNG")
        return into.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the picture as a PNG in base64, and how it becomes pixel values again; where
        256 shades do not hold them, the pixel values themselves."""
        raw = self.pixels.astype("<f4").tobytes()
        return {
            "png": base64.b64encode(self.png).decode("ascii"),
            "pixels": None if self.plain else base64.b64encode(raw).decode("ascii"),
            "mean": list(self.scale.mean),
            "std": list(self.scale.std),
            "patch": list(self.patch),
            "fill": self.fill,
            "name": self.name,
            "size": list(self.size),
            "places": list(self.places),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PatchImage":
        """Rebuild from :meth:`to_dict`."""
        scale, fill = Scale.of(values["mean"], values["std"], len(values["mean"])), values["fill"]
        height, width = map(int, values["patch"])
        with _stored(values) as image:
            shown = np.asarray(image.convert("RGB"))
        known = len(scale.mean) in (1, 3) and 0 not in scale.std and fill in get_args(Fill)
        if not known or min(height, width) < 1 or shown.shape[0] % height or shown.shape[1] % width:
            raise DamagedFile("its picture has patches, a scale or a fill that cannot be.")
        with np.errstate(all="ignore"):  # what comes of it is looked at below
            pixels = scale.pixels(shown)
        if values["pixels"] is not None:
            raw = np.frombuffer(base64.b64decode(values["pixels"], validate=True), dtype="<f4")
            pixels = raw.reshape(pixels.shape).astype(np.float32)
        if not np.isfinite(pixels).all():
            raise DamagedFile("its picture holds NaN or infinity.")
        across, down = map(int, values["size"])
        own = (height, width), fill, str(values["name"]), (across, down)
        return cls(pixels, scale, *own, tuple(map(int, values.get("places", ()))))


def stored_pixels(values: Mapping[str, Any]) -> int:
    """How many pixels a picture of :meth:`PatchImage.to_dict` has, before it is unpacked."""
    with _stored(values) as image:
        return int(image.width * image.height)


def _stored(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    png = io.BytesIO(base64.b64decode(values["png"], validate=True))
    return opened_file("the picture in this file", png, ("PNG",), DamagedFile, MOST_PIXELS)


@contextmanager
def opened_file(
    name: str, file: Any, formats: Sequence[str], refusal: type[TokenlightError], most: int | None
) -> Iterator[Any]:
    """A picture's file, its head read and not yet its pixels, of which there may be ``most``."""
    library = pillow("reading an image")
    # Some files are small, and claim to be huge pictures.
    bombs = library.DecompressionBombError, library.DecompressionBombWarning
    said = f"{name} cannot be read as an image: "
    told = refusal.telling(said, OSError, SyntaxError, ValueError, *bombs)
    with told, library.open(file, formats=formats) as image:
        if most is not None and image.width * image.height > most:
            said = f"{name} has {image.width} × {image.height} pixels, more than the {most:,}"
            raise refusal(f"{said} that are read; make it smaller.")
        yield image


def _blurred(pixels: np.ndarray, sigma: float) -> np.ndarray:
    """A Gaussian blur; the picture goes on mirrored beyond its edges."""
    for axis in (1, 2):
        reach = min(int(3 * sigma), pixels.shape[axis] - 1)
        offsets = np.arange(-reach, reach + 1)
        weights = np.exp(-0.5 * (offsets / sigma) ** 2)
        weights /= weights.sum()
        padding = [(0, 0)] * 3
        padding[axis] = (reach, reach)
        wide = np.pad(pixels, padding, mode="reflect")
        pixels = np.apply_along_axis(np.convolve, axis, wide, weights, mode="valid")
    return pixels.astype(np.float32)


def pillow(purpose: str) -> Any:
    """Pillow's Image module, or what to install."""
    return MissingExtra.importing("PIL.Image", "vision", purpose, "Pillow")
