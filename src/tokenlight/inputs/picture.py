"""Images that a user gives, converted to what a vision model reads.

An image becomes a row of tokens like a text: first the model's special tokens, such as [CLS], then the
patches, row by row. A visible patch has the id 1 and an occluded one the id 0, so that everything that
replaces tokens can replace patches, too.
"""

import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

import numpy as np

from tokenlight.data.image import Fill, Normalization, PatchImage, import_pillow, open_image_file
from tokenlight.errors import BadInput, TokenlightError, check_choice
from tokenlight.errors.arguments import checked

# Only these formats are opened: for others, such as EPS, Pillow may start a program.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
BYTES_NAME = "This picture"  # in messages about bytes, which have no file name


class PictureKeywords(TypedDict, total=False):
    """Fields of a Picture besides its source."""

    fill: Any
    processor: Any
    name: str
    text: Any


@dataclass(frozen=True, eq=False)
class Picture:
    """An image to explain.

    Args:
        source: A file or its bytes, a PIL image, or an array ``height width 3`` of uint8.
        fill: What replaces an occluded patch: the image's ``"mean"`` color, ``"zero"`` (the mean color of
            the model's training images), or the image under a ``"blur"`` as wide as a patch.
        processor: A transformers image processor; by default the Explainer's.
        name: A name for results; by default the name of the file.
        text: The prompt, a text or a Chat, for models that read image and text.

    Raises:
        BadInput: ``fill`` is unknown.

    Example:
        >>> import numpy as np
        >>> from tokenlight import Picture
        >>> Picture(np.zeros((32, 32, 3), dtype=np.uint8), fill="blur").fill
        'blur'
    """

    source: Any
    fill: Fill = "mean"
    processor: Any = None
    name: str = ""
    text: Any = None

    def __post_init__(self) -> None:
        check_choice("fill", self.fill, get_args(Fill))

    @classmethod
    @checked
    def from_pixels(
        cls, values: Any, *, mean: Any = 0.0, std: Any = 1.0, **fields: Unpack[PictureKeywords]
    ) -> "Picture":
        """Create a Picture from pixel values that are already resized and normalized.

        Args:
            values: ``channel height width``, as the model reads them.
            mean: Undoes the normalization for display, a number or one per channel: the displayed
                brightness, from 0 to 1, is ``values · std + mean``.
            std: See ``mean``.
            fields: ``fill``, ``name`` and ``text`` of the Picture.

        Returns:
            A Picture that is neither resized nor normalized again.

        Raises:
            BadInput: The values have another shape, or are not finite.

        Example:
            >>> import numpy as np
            >>> from tokenlight import Picture
            >>> picture = Picture.from_pixels(np.zeros((3, 32, 32)), mean=0.5, std=0.5, name="gray")
        """
        if hasattr(values, "detach"):  # a tensor
            values = values.detach().cpu()
        pixels = np.asarray(values)
        is_numeric = pixels.dtype.kind in "biuf"
        has_shape = pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.size > 0
        if not is_numeric or not has_shape or not np.isfinite(pixels).all():
            raise BadInput(
                f"These are not pixel values (shape {pixels.shape}). Give channel × height × width, one "
                "picture at a time, with 1 or 3 channels and no NaN or infinity.",
                code="pixel-values",
            )
        try:
            normalization = Normalization.from_values(mean, std, len(pixels))
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"mean and std are not valid: {error}. Give a number each, or one per channel.",
                code="pixel-normalization",
            ) from error
        return cls(PatchImage(pixels.astype(np.float32), normalization), **fields)


def is_picture(value: Any) -> bool:
    """Return whether a value can only be meant as one image."""
    if isinstance(value, Picture | Path):
        return True
    if isinstance(value, np.ndarray):
        return value.ndim == 3 and value.dtype == np.uint8
    # Without Pillow imported, nothing can be a PIL image.
    library = sys.modules.get("PIL.Image")
    return library is not None and isinstance(value, library.Image)


def load_picture(source: Any, processor: Any, patch_size: tuple[int, int]) -> PatchImage:
    """Read an image, resize and normalize it by its processor, and cut it into patches.

    Args:
        source: A path, an image of Pillow, an array, or a Picture with a processor or patches of its own.
        processor: The processor of the model, unless the Picture has one.
        patch_size: Height and width of a patch, in pixels.
    """
    picture = source if isinstance(source, Picture) else Picture(source)
    patch_image = picture.source
    if not isinstance(patch_image, PatchImage):
        image, name = read_image(picture.source)
        processor = picture.processor or processor
        outputs = run_processor(
            processor, image, "AutoImageProcessor.from_pretrained(…, backend='pil')"
        )
        patch_image = build_patch_image(outputs, processor, image, name)
    return split_into_patches(picture, patch_image, patch_size)


def split_into_patches(
    picture: Picture, image: PatchImage, patch_size: tuple[int, int]
) -> PatchImage:
    """Cut an image into patches, with the name and the fill of ``picture``.

    Args:
        picture: The picture as it was given.
        image: Its pixels after preprocessing.
        patch_size: Height and width of a patch, in pixels.
    """
    _, height, width = image.pixels.shape
    patch_height, patch_width = patch_size
    if height % patch_height or width % patch_width:
        raise BadInput(
            f"The image is {width} × {height} pixels after preprocessing, which is not a multiple of the "
            f"patch size, {patch_width} × {patch_height}. Set the processor's size to a multiple.",
            code="picture-size",
        )
    original_size = image.original_size or (width, height)
    name = picture.name or image.name or f"image {original_size[0]} × {original_size[1]}"
    return replace(
        image, patch_size=patch_size, fill=picture.fill, name=name, original_size=original_size
    )


def read_image(source: Any) -> tuple[Any, str]:
    """Return a PIL image in RGB, and the name of its file."""
    library = import_pillow("reading an image")
    if isinstance(source, library.Image):
        return source.convert("RGB"), ""
    file: Any
    if isinstance(source, bytes):
        file, name = io.BytesIO(source), ""
    elif isinstance(source, str | os.PathLike):
        file, name = Path(source), Path(source).name
    else:
        return library.fromarray(_to_pixel_array(source)).convert("RGB"), ""
    from PIL import ImageOps

    max_pixels = library.MAX_IMAGE_PIXELS
    with open_image_file(name or BYTES_NAME, file, IMAGE_FORMATS, BadInput, max_pixels) as image:
        # A camera stores how it was held; the model is to read the image as a person sees it.
        return ImageOps.exif_transpose(image).convert("RGB"), name


def _to_pixel_array(source: Any) -> np.ndarray:
    """Return ``height width channel`` of uint8, or raise."""
    description = type(source).__name__
    if isinstance(source, np.ndarray):
        has_shape = source.ndim == 2 or (source.ndim == 3 and source.shape[2] <= 4)
        if source.dtype == np.uint8 and has_shape and source.size:
            # Pillow wants gray images without a channel axis.
            return source[..., 0] if source.shape[2:] == (1,) else source
        description = f"an array of dtype {source.dtype} and shape {source.shape}"
    raise BadInput(
        f"Cannot read an image from {description}. Give a uint8 array height × width × 3, a file, its "
        "bytes or a PIL image; for pixel values that are already normalized, give Picture.from_pixels(…).",
        code="picture-source",
    )


def run_processor(processor: Any, image: Any, loader_hint: str, **inputs: Any) -> Any:
    """Run a processor on an image and the inputs that come with it.

    Args:
        processor: An image processor, or a processor of images and texts.
        image: The image or images.
        loader_hint: The call that loads such a processor, for the message.
        inputs: Further inputs, such as a text.

    Raises:
        BadInput: There is no processor, or it refuses the image.
    """
    image_processor = getattr(processor, "image_processor", processor)
    if processor is None or not hasattr(image_processor, "image_mean"):
        raise BadInput(
            "This Explainer has no image processor, which says how images are resized and normalized. "
            f"Build it with Explainer(model, {loader_hint}), or give Picture.from_pixels(…).",
            code="image-processor-missing",
        )
    try:
        return processor(images=image, **inputs, return_tensors="pt")
    except TokenlightError:
        raise
    except (ImportError, OSError, ValueError, TypeError, RuntimeError, IndexError) as error:
        raise BadInput(
            f"{type(processor).__name__} rejects this image: {error}", code="image-refused"
        ) from error


def build_patch_image(
    outputs: Mapping[str, Any], processor: Any, image: Any, name: str = ""
) -> PatchImage:
    """Return the one image that a processor returned, not yet cut into patches.

    Args:
        outputs: The output of the processor.
        processor: The image processor.
        image: The PIL image.
        name: Name of its file.

    Raises:
        BadInput: The processor returns several crops, or pads the image.
    """
    pixels: np.ndarray = outputs["pixel_values"].float().numpy()
    if "image_grid_thw" in outputs:
        pixels = _merge_patch_grid(pixels, outputs["image_grid_thw"][0], processor)
    # Axes for batches and crops of one.
    while pixels.ndim > 3 and len(pixels) == 1:
        pixels = pixels[0]
    mask = outputs.get("pixel_attention_mask")
    is_padded = mask is not None and not bool(mask.bool().all())
    if pixels.ndim != 3 or is_padded:
        raise BadInput(
            f"{type(processor).__name__} returns {tuple(outputs['pixel_values'].shape)} for one image, or "
            "pads it. Switch off its crops (do_image_splitting=False, crop_to_patches=False).",
            code="image-crops",
        )
    normalization = _read_normalization(processor, len(pixels))
    return PatchImage(pixels, normalization, name=name, original_size=image.size)


def _merge_patch_grid(patches: np.ndarray, grid: Any, processor: Any) -> np.ndarray:
    """Reassemble the image from a list of patches, as Qwen2-VL and similar models read them.

    Args:
        patches: ``patch value``.
        grid: Number of frames, rows and columns of patches.
        processor: The image processor.

    Returns:
        ``channel height width``.
    """
    _, rows, columns = map(int, grid)
    size = int(processor.patch_size)
    merge = int(processor.merge_size)
    # Patches come in blocks of merge × merge; all frames of an image are equal.
    blocks = patches.reshape(
        rows // merge, columns // merge, merge, merge, -1, processor.temporal_patch_size, size, size
    )
    first_frame = blocks[..., 0, :, :]
    # From block row, block column, row, column, channel, patch height, patch width.
    image = first_frame.transpose(4, 0, 2, 5, 1, 3, 6)
    return np.ascontiguousarray(image.reshape(-1, rows * size, columns * size))


def _read_normalization(processor: Any, channels: int) -> Normalization:
    """Return how a processor turns brightness, 0 to 1, into pixel values."""
    mean, std = 0.0, 1.0
    if getattr(processor, "do_normalize", True):
        mean, std = processor.image_mean, processor.image_std
    # What full brightness becomes before the mean is subtracted: usually 255 · 1/255.
    full_brightness = 255.0
    if getattr(processor, "do_rescale", True):
        full_brightness = 255 * float(getattr(processor, "rescale_factor", 1 / 255))
    scale = Normalization.from_values(mean, std, channels)
    return Normalization(
        mean=tuple(value / full_brightness for value in scale.mean),
        std=tuple(value / full_brightness for value in scale.std),
    )
