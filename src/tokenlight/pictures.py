"""Pictures: an image as a model of patches reads it, and what stands in a hidden patch's place.

A picture becomes a row of tokens like a text: the model's own tokens ([CLS] and its like) are
special, then come the patches, row by row from the top left. A patch has the id 1 where it is seen
and 0 where it is hidden, so all that replaces tokens replaces patches too.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tokenlight.errors import BadInput, DamagedFile, MissingExtra
from tokenlight.tokens import TokenRow

Fill = Literal["mean", "zero", "blur"]
HIDDEN, SEEN = 0, 1  # the ids of a patch
MOST_PIXELS = 4096 * 4096  # of a stored picture: some kilobytes can claim to be gigabytes
# What is read from a file: others, such as EPS, may start a program to be drawn.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to explain: a file, a PIL image, or an array ``height width 3`` of uint8.

    ``fill`` stands in a hidden patch's place: the picture's ``mean`` colour, ``zero`` (the mean
    colour of the model's training pictures), or the picture under a ``blur`` as wide as a patch.
    ``processor``: a transformers image processor of its own; else the Explainer's is used.
    """

    source: Any
    fill: Fill = "mean"
    processor: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.fill not in get_args(Fill):
            raise BadInput(
                f"fill={self.fill!r} cannot be: it is one of "
                f"{', '.join(map(repr, get_args(Fill)))}."
            )

    @classmethod
    def from_pixels(
        cls, values: Any, *, mean: Any = 0.0, std: Any = 1.0, fill: Fill = "mean", name: str = ""
    ) -> Picture:
        """Pixel values ``channel height width`` as the model reads them, resized and normalised.

        ``mean`` and ``std`` (a number, or one a channel) undo the normalising, so that the picture
        can be shown: what is shown is ``values · std + mean``, from 0 to 1.
        """
        pixels = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or pixels.size == 0:
            raise BadInput(
                f"pixel values have shape {pixels.shape}; give channel × height × width, one picture "
                "at a time, with 1 or 3 channels."
            )
        if not np.isfinite(pixels).all():
            raise BadInput("the pixel values hold NaN or infinity; give finite numbers.")
        scale = _Scale.of(mean, std, len(pixels))
        return cls(_Pixels(pixels.astype(np.float32), scale), fill, None, name)


@dataclass(frozen=True)
class _Scale:
    """How a picture's brightness, 0 to 1, became pixel values: ``(brightness − mean) / std``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Any, std: Any, channels: int) -> _Scale:
        """One number a channel."""
        wide = [np.broadcast_to(np.asarray(v, dtype=float), (channels,)) for v in (mean, std)]
        return cls(tuple(wide[0].tolist()), tuple(wide[1].tolist()))

    def shown(self, pixels: np.ndarray) -> np.ndarray:
        """``height width 3`` of uint8."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        bright = np.clip(pixels * std + mean, 0, 1) * 255
        return np.broadcast_to(
            bright.round().astype(np.uint8).transpose(1, 2, 0), (*pixels.shape[1:], 3)
        ).copy()

    def pixels(self, shown: np.ndarray) -> np.ndarray:
        """The inverse of :meth:`shown`."""
        mean, std = (np.array(v)[:, None, None] for v in (self.mean, self.std))
        bright = shown.transpose(2, 0, 1)[: len(self.mean)] / 255
        pixels: np.ndarray = ((bright - mean) / std).astype(np.float32)
        return pixels


@dataclass(frozen=True, eq=False)
class _Pixels:
    """Pixel values that need no processor."""

    values: np.ndarray
    scale: _Scale


@dataclass(frozen=True, eq=False)
class PatchImage:
    """A picture cut into patches, as it goes into a model; equal where the model reads the same.

    ``pixels``: ``channel height width``, normalised; ``patch``: height and width of one;
    ``size``: width and height of the picture before it was resized.
    """

    pixels: np.ndarray
    scale: _Scale
    patch: tuple[int, int]
    fill: Fill
    name: str
    size: tuple[int, int]

    @property
    def rows(self) -> int:
        """Patches from top to bottom."""
        return int(self.pixels.shape[1]) // self.patch[0]

    @property
    def columns(self) -> int:
        """Patches from left to right."""
        return int(self.pixels.shape[2]) // self.patch[1]

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

    def __deepcopy__(self, _memo: Any) -> PatchImage:
        return self  # nothing of it changes

    @cached_property
    def png(self) -> bytes:
        """What the model sees, as a PNG file."""
        into = io.BytesIO()
        _pillow("a picture of an explanation").fromarray(self.shown).save(into, format="PNG")
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
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PatchImage:
        """Rebuild from :meth:`to_dict`."""
        scale = _Scale.of(values["mean"], values["std"], len(values["mean"]))
        height, width = map(int, values["patch"])
        with _stored(values) as image:
            if height < 1 or width < 1 or image.height % height or image.width % width:
                raise DamagedFile(f"patches of {width} × {height} do not fill its picture.")
            shown = np.asarray(image.convert("RGB"))
        fill: Fill = values["fill"]
        if len(scale.mean) not in (1, 3) or 0 in scale.std or fill not in get_args(Fill):
            raise DamagedFile("its picture has a scale or a fill that cannot be.")
        with np.errstate(all="ignore"):  # what comes of it is looked at below
            pixels = scale.pixels(shown)
        if values["pixels"] is not None:
            raw = np.frombuffer(base64.b64decode(values["pixels"], validate=True), dtype="<f4")
            pixels = raw.reshape(pixels.shape).astype(np.float32)
        if not np.isfinite(pixels).all():
            raise DamagedFile("its picture holds NaN or infinity.")
        across, down = map(int, values["size"])
        return cls(pixels, scale, (height, width), fill, str(values["name"]), (across, down))


def stored_pixels(values: Mapping[str, Any]) -> int:
    """How many pixels a picture of :meth:`PatchImage.to_dict` has, before it is unpacked."""
    with _stored(values) as image:
        return int(image.width * image.height)


@contextmanager
def _stored(values: Mapping[str, Any]) -> Iterator[Any]:
    """The stored PNG, its head read and not yet its pixels."""
    library = _pillow("a stored picture")
    png = io.BytesIO(base64.b64decode(values["png"], validate=True))
    try:
        with library.open(png, formats=["PNG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                size = f"{image.width} × {image.height} pixels"
                raise DamagedFile(f"its picture of {size} is too large: at most {MOST_PIXELS:,}.")
            yield image
    except _unreadable(library) as broken:
        raise DamagedFile(f"the picture in this file cannot be read: {broken}.") from broken


def _unreadable(library: Any) -> tuple[type[Exception], ...]:
    """What Pillow says of a broken file, or of a small one that claims to be a huge picture."""
    bomb, warned = library.DecompressionBombError, library.DecompressionBombWarning
    return OSError, SyntaxError, ValueError, bomb, warned


def is_picture(given: Any) -> bool:
    """Whether this can only be meant as one image."""
    library = sys.modules.get("PIL.Image")
    return (
        isinstance(given, Picture | Path)
        or (library is not None and isinstance(given, library.Image))
        or (isinstance(given, np.ndarray) and given.ndim == 3 and given.dtype == np.uint8)
    )


def is_pictures(given: Any) -> bool:
    """Whether this is an array of images, ``picture height width channel``."""
    return isinstance(given, np.ndarray) and given.ndim == 4 and given.dtype == np.uint8


def opened(given: Any, processor: Any, patch: tuple[int, int]) -> PatchImage:
    """Read, resize and normalise a picture as its processor says, and cut it into patches."""
    picture = given if isinstance(given, Picture) else Picture(given)
    if isinstance(picture.source, _Pixels):
        pixels, scale = picture.source.values, picture.source.scale
        size = (pixels.shape[2], pixels.shape[1])
        name = picture.name or f"image {size[0]} × {size[1]}"
    else:
        image, name = _read(picture.source)
        size, name = image.size, picture.name or name
        pixels, scale = _processed(image, picture.processor or processor)
    if pixels.shape[1] % patch[0] or pixels.shape[2] % patch[1]:
        raise BadInput(
            f"the picture is {pixels.shape[2]} × {pixels.shape[1]} pixels after preprocessing, which "
            f"patches of {patch[1]} × {patch[0]} do not fill; give the processor a size that is a "
            "multiple of the patch."
        )
    return PatchImage(pixels, scale, patch, picture.fill, name, size)


def _read(source: Any) -> tuple[Any, str]:
    """A PIL image in RGB, and its name."""
    library = _pillow("reading an image")
    if isinstance(source, str | os.PathLike):
        place = Path(source)
        try:
            from PIL import ImageOps

            with library.open(place, formats=FORMATS) as image:
                _refuse_bomb(image.size, place.name, library.MAX_IMAGE_PIXELS)
                # A camera notes how it was held; the model is to see what a person sees.
                return ImageOps.exif_transpose(image).convert("RGB"), place.name
        except FileNotFoundError as missing:
            raise BadInput(f"there is no image file {str(place)!r}.") from missing
        except _unreadable(library) as broken:
            raise BadInput(f"{place.name} cannot be read as an image: {broken}.") from broken
    if isinstance(source, library.Image):
        image, name = source, ""
    else:
        image, name = library.fromarray(_array(source)), ""
    return image.convert("RGB"), name or f"image {image.size[0]} × {image.size[1]}"


def _refuse_bomb(size: tuple[int, int], name: str, most: int | None) -> None:
    if most is not None and size[0] * size[1] > most:
        raise BadInput(
            f"{name} has {size[0]} × {size[1]} pixels, more than the {most:,} that are read; make it "
            "smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it."
        )


def _array(source: Any) -> np.ndarray:
    if not isinstance(source, np.ndarray):
        raise BadInput(
            f"cannot read a picture from {type(source).__name__}: give a file, a PIL image, or an "
            "array height × width × 3 of uint8; pixel values that are already normalised go in by "
            "Picture.from_pixels(…)."
        )
    if source.dtype != np.uint8:
        raise BadInput(
            f"the image array has dtype {source.dtype}; give uint8 from 0 to 255, or normalised "
            "pixel values by Picture.from_pixels(…)."
        )
    if source.ndim not in (2, 3) or 0 in source.shape or (source.ndim == 3 and source.shape[2] > 4):
        raise BadInput(
            f"the image array has shape {source.shape}; give height × width × 3 (channels last)."
        )
    return source[..., 0] if source.ndim == 3 and source.shape[2] == 1 else source


def _processed(image: Any, processor: Any) -> tuple[np.ndarray, _Scale]:
    if processor is None or not hasattr(processor, "image_mean"):
        raise BadInput(
            "this Explainer has no image processor, so it does not know how the model wants its "
            "images resized and normalised; build it with Explainer(model, processor), where "
            "processor = AutoImageProcessor.from_pretrained(…, backend='pil'), or give "
            "Picture.from_pixels(…)."
        )
    try:
        found = processor(images=image, return_tensors="pt")["pixel_values"]
    except (ImportError, OSError, ValueError, TypeError, RuntimeError) as refused:
        reason = str(refused).strip().splitlines()[0]
        raise BadInput(f"{type(processor).__name__} refuses this image: {reason}") from refused
    pixels = found[0].float().numpy()
    if pixels.ndim != 3 or len(found) != 1:
        raise BadInput(
            f"{type(processor).__name__} makes {tuple(found.shape)} of one image; tokenlight explains "
            "one view an image: switch off its crops."
        )
    normalised = getattr(processor, "do_normalize", True)
    mean, std = (processor.image_mean, processor.image_std) if normalised else (0.0, 1.0)
    # What full brightness became before the mean was taken off: usually 255 · 1/255.
    rescaled = getattr(processor, "do_rescale", True)
    whole = 255 * (float(getattr(processor, "rescale_factor", 1 / 255)) if rescaled else 1.0)
    scale = _Scale.of(mean, std, len(pixels))
    return pixels, _Scale(tuple(m / whole for m in scale.mean), tuple(s / whole for s in scale.std))


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


def _pillow(purpose: str) -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise MissingExtra.naming("Pillow", "vision", purpose) from missing
    return Image


def patch_row(image: PatchImage, special: Sequence[str]) -> TokenRow:
    """The picture as tokens: the model's own ``special`` ones, then patches named ``row,column``."""
    names = [f"{row},{column}" for row in range(image.rows) for column in range(image.columns)]
    length = len(special) + len(names)
    return TokenRow(
        ids=(SEEN,) * length,
        attention=(1,) * length,
        token_types=None,
        pieces=(*special, *names),
        special=(True,) * len(special) + (False,) * len(names),
        spans=(None,) * length,
        segments=(None,) * length,
        words=(None,) * length,
        texts=(image.name,),
        image=image,
    )
