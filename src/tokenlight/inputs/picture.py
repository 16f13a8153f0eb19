"""Pictures that a person gives, read as a model of patches reads them.

A picture becomes a row of tokens like a text: the model's own ([CLS] and its like) are special, then
come the patches, row by row. A patch has the id 1 where it is seen and 0 where it is hidden, so all
that replaces tokens replaces patches too.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tokenlight.data.image import Fill, PatchImage, Scale, opened_file, pillow
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
        wrong = pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or pixels.size == 0
        if wrong or not np.isfinite(pixels).all():
            raise BadInput(
                f"these are no pixel values (shape {pixels.shape}); give channel × height × width, one "
                "picture at a time, with 1 or 3 channels and no NaN or infinity."
            )
        scale = Scale.of(mean, std, len(pixels))
        return cls(PatchImage(pixels.astype(np.float32), scale), **others)


def is_picture(given: Any) -> bool:
    """Whether this can only be meant as one image."""
    library = sys.modules.get("PIL.Image")
    return (
        isinstance(given, Picture | Path)
        or (library is not None and isinstance(given, library.Image))
        or (isinstance(given, np.ndarray) and given.ndim == 3 and given.dtype == np.uint8)
    )


def opened(given: Any, processor: Any, patch: tuple[int, int]) -> PatchImage:
    """Read, resize and normalise a picture as its processor says, and cut it into patches."""
    picture = given if isinstance(given, Picture) else Picture(given)
    made = picture.source
    if not isinstance(made, PatchImage):
        image, name = read(made)
        processor = picture.processor or processor
        found = processed(processor, image, "AutoImageProcessor.from_pretrained(…, backend='pil')")
        made = seen(found, processor, image, name)
    return cut(picture, made, patch)


def cut(picture: Picture, made: PatchImage, patch: tuple[int, int]) -> PatchImage:
    """The pixel values of a picture in patches, named and hidden as it says."""
    _, height, width = made.pixels.shape
    if height % patch[0] or width % patch[1]:
        raise BadInput(
            f"the picture is {width} × {height} pixels after preprocessing, which patches of {patch[1]} × "
            f"{patch[0]} do not fill; give the processor a size that is a multiple of the patch."
        )
    size = made.size or (width, height)
    name = picture.name or made.name or f"image {size[0]} × {size[1]}"
    return replace(made, patch=patch, fill=picture.fill, name=name, size=size)


def read(source: Any) -> tuple[Any, str]:
    """A PIL image in RGB, and the name of its file."""
    library = pillow("reading an image")
    if not isinstance(source, str | os.PathLike):
        image = source if isinstance(source, library.Image) else library.fromarray(_array(source))
        return image.convert("RGB"), ""
    from PIL import ImageOps

    place = Path(source)
    with opened_file(place.name, place, FORMATS, BadInput, library.MAX_IMAGE_PIXELS) as image:
        # A camera notes how it was held; the model is to see what a person sees.
        return ImageOps.exif_transpose(image).convert("RGB"), place.name


def _array(source: Any) -> np.ndarray:
    given = type(source).__name__
    if isinstance(source, np.ndarray):
        flat = source.ndim == 2 or (source.ndim == 3 and source.shape[2] <= 4)
        if source.dtype == np.uint8 and flat and source.size:
            return source[..., 0] if source.shape[2:] == (1,) else source
        given = f"an array of dtype {source.dtype} and shape {source.shape}"
    raise BadInput(
        f"cannot read a picture from {given}; give uint8 height × width × 3 (channels last), a file or a "
        "PIL image; pixel values that are already normalised go in by Picture.from_pixels(…)."
    )


def processed(processor: Any, image: Any, usual: str, **beside: Any) -> Any:
    """What a processor, which ``usual`` loads, makes of a picture and of what stands beside it."""
    if processor is None or not hasattr(
        getattr(processor, "image_processor", processor), "image_mean"
    ):
        raise BadInput(
            "this Explainer has no image processor, which says how images are resized and normalised; build "
            f"it with Explainer(model, {usual}), or give Picture.from_pixels(…)."
        )
    said = f"{type(processor).__name__} refuses this image: "
    troubles = ImportError, OSError, ValueError, TypeError, RuntimeError, IndexError
    with BadInput.telling(said, *troubles, end=""):
        return processor(images=image, **beside, return_tensors="pt")


def seen(found: Mapping[str, Any], reader: Any, image: Any, name: str = "") -> PatchImage:
    """The one picture that a processor read, not cut yet."""
    values: np.ndarray = found["pixel_values"].float().numpy()
    if "image_grid_thw" in found:
        _, down, across = map(int, found["image_grid_thw"][0])
        side, several = int(reader.patch_size), int(reader.merge_size)
        values = values.reshape(
            down // several, across // several, several, several, -1, reader.temporal_patch_size,
            side, side,
        )[..., 0, :, :]  # fmt: skip
        # block row, block column, row, column, channel, and height and width of a patch
        turned = values.transpose(4, 0, 2, 5, 1, 3, 6)
        values = np.ascontiguousarray(turned.reshape(-1, down * side, across * side))
    while values.ndim > 3 and len(values) == 1:
        values = values[0]
    mask = found.get("pixel_attention_mask")
    if values.ndim != 3 or (mask is not None and not bool(mask.bool().all())):
        raise BadInput(
            f"{type(reader).__name__} makes {tuple(found['pixel_values'].shape)} of one picture, or pads it: "
            "switch off its crops (do_image_splitting=False, crop_to_patches=False)."
        )
    normalised = getattr(reader, "do_normalize", True)
    mean, std = (reader.image_mean, reader.image_std) if normalised else (0.0, 1.0)
    # What full brightness became before the mean was taken off: usually 255 · 1/255.
    rescaled = getattr(reader, "do_rescale", True)
    whole = 255 * (float(getattr(reader, "rescale_factor", 1 / 255)) if rescaled else 1.0)
    scale = Scale.of(mean, std, len(values))
    scale = Scale(tuple(m / whole for m in scale.mean), tuple(s / whole for s in scale.std))
    return PatchImage(values, scale, name=name, size=image.size)
