"""Pictures that a person gives: files, PIL images and arrays, read as a model of patches reads them.

A picture becomes a row of tokens like a text: the model's own tokens ([CLS] and its like) are
special, then come the patches, row by row from the top left. A patch has the id 1 where it is seen
and 0 where it is hidden, so all that replaces tokens replaces patches too.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tokenlight.data.image import SEEN, Fill, PatchImage, Scale, pillow, unreadable
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, one_of

# What is read from a file: others, such as EPS, may start a program to be drawn.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to explain: a file, a PIL image, or an array ``height width 3`` of uint8.

    ``fill`` replaces a hidden patch: the picture's ``mean`` colour, ``zero`` (the mean
    colour of the model's training pictures), or the picture under a ``blur`` as wide as a patch.
    ``processor``: a transformers image processor of its own; else the Explainer's is used.
    ``text``: what is written beside it, a text or a Chat, for models that read both.
    """

    source: Any
    fill: Fill = "mean"
    processor: Any = None
    name: str = ""
    text: Any = None

    def __post_init__(self) -> None:
        one_of("fill", self.fill, get_args(Fill))

    @classmethod
    def from_pixels(
        cls, values: Any, *, mean: Any = 0.0, std: Any = 1.0, **others: Any
    ) -> "Picture":
        """Pixel values ``channel height width`` as the model reads them, resized and normalised.

        ``mean`` and ``std`` (a number, or one per channel) undo the normalising, so that the picture
        can be shown: what is shown is ``values · std + mean``, from 0 to 1. ``others``: fill, name, text.
        """
        pixels = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or pixels.size == 0:
            raise BadInput(
                f"pixel values have shape {pixels.shape}; give channel × height × width, one picture "
                "at a time, with 1 or 3 channels."
            )
        if not np.isfinite(pixels).all():
            raise BadInput("the pixel values hold NaN or infinity; give finite numbers.")
        scale = Scale.of(mean, std, len(pixels))
        return cls(Pixels(pixels.astype(np.float32), scale), **others)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Pixel values that need no processor; ``name`` and ``size`` are those of the file, if any."""

    values: np.ndarray
    scale: Scale
    name: str = ""
    size: tuple[int, int] | None = None


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
    if isinstance(picture.source, Pixels):
        return cut(picture, picture.source, patch)
    image, name = read(picture.source)
    pixels, scale = _processed(image, picture.processor or processor)
    return cut(picture, Pixels(pixels, scale, name, image.size), patch)


def cut(picture: Picture, made: Pixels, patch: tuple[int, int]) -> PatchImage:
    """A picture's pixel values in patches."""
    pixels = made.values
    if pixels.shape[1] % patch[0] or pixels.shape[2] % patch[1]:
        raise BadInput(
            f"the picture is {pixels.shape[2]} × {pixels.shape[1]} pixels after preprocessing, which "
            f"patches of {patch[1]} × {patch[0]} do not fill; give the processor a size that is a "
            "multiple of the patch."
        )
    size = made.size or (pixels.shape[2], pixels.shape[1])
    name = picture.name or made.name or f"image {size[0]} × {size[1]}"
    return PatchImage(pixels, made.scale, patch, picture.fill, name, size)


def read(source: Any) -> tuple[Any, str]:
    """A PIL image in RGB, and its name."""
    library = pillow("reading an image")
    if isinstance(source, str | os.PathLike):
        place = Path(source)
        try:
            from PIL import ImageOps

            with library.open(place, formats=FORMATS) as image:
                most = library.MAX_IMAGE_PIXELS
                if most is not None and image.width * image.height > most:
                    raise BadInput(
                        f"{place.name} has {image.width} × {image.height} pixels, more than the "
                        f"{most:,} that are read; make it smaller, or raise "
                        "PIL.Image.MAX_IMAGE_PIXELS if you trust it."
                    )
                # A camera notes how it was held; the model is to see what a person sees.
                return ImageOps.exif_transpose(image).convert("RGB"), place.name
        except FileNotFoundError as missing:
            raise BadInput(f"there is no image file {str(place)!r}.") from missing
        except unreadable(library) as broken:
            raise BadInput(f"{place.name} cannot be read as an image: {broken}.") from broken
    if isinstance(source, library.Image):
        image, name = source, ""
    else:
        image, name = library.fromarray(_array(source)), ""
    return image.convert("RGB"), name or f"image {image.size[0]} × {image.size[1]}"


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


def _processed(image: Any, processor: Any) -> tuple[np.ndarray, Scale]:
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
    return pixels, scale_of(processor, len(pixels))


def scale_of(processor: Any, channels: int) -> Scale:
    """How an image processor makes pixel values of brightness."""
    normalised = getattr(processor, "do_normalize", True)
    mean, std = (processor.image_mean, processor.image_std) if normalised else (0.0, 1.0)
    # What full brightness became before the mean was taken off: usually 255 · 1/255.
    rescaled = getattr(processor, "do_rescale", True)
    whole = 255 * (float(getattr(processor, "rescale_factor", 1 / 255)) if rescaled else 1.0)
    scale = Scale.of(mean, std, channels)
    return Scale(tuple(m / whole for m in scale.mean), tuple(s / whole for s in scale.std))


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
