"""Images cut into patches: what a vision model reads, and what replaces an occluded patch."""

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
# Token ids of a patch.
OCCLUDED_ID = 0
VISIBLE_ID = 1
MAX_PIXELS = 4096 * 4096  # of a stored image: a file of some kilobytes can unpack to gigabytes
# Largest difference from one of 256 shades, in shades, that is taken for rounding.
MAX_SHADE_ERROR = 1e-2


@dataclass(frozen=True)
class Normalization:
    """How brightness, 0 to 1, became pixel values: ``(brightness − mean) / std``.

    Args:
        mean: One number per channel.
        std: One number per channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_values(cls, mean: Any, std: Any, channels: int) -> "Normalization":
        """Create from a number each, or one per channel.

        Args:
            mean: Subtracted from each pixel.
            std: What the difference is divided by.
            channels: How many channels the image has.
        """
        means = np.broadcast_to(np.asarray(mean, dtype=float), (channels,))
        stds = np.broadcast_to(np.asarray(std, dtype=float), (channels,))
        return cls(tuple(means.tolist()), tuple(stds.tolist()))

    def to_rgb(self, pixels: np.ndarray) -> np.ndarray:
        """Convert pixel values ``channel height width`` to ``height width 3`` of uint8."""
        mean, std = self._as_columns()
        brightness = np.clip(pixels * std + mean, 0, 1) * 255
        rgb = brightness.round().astype(np.uint8).transpose(1, 2, 0)
        # An image of one channel becomes gray.
        return np.broadcast_to(rgb, (*pixels.shape[1:], 3)).copy()

    def from_rgb(self, rgb: np.ndarray) -> np.ndarray:
        """Convert ``height width 3`` of uint8 to pixel values; the inverse of :meth:`to_rgb`."""
        mean, std = self._as_columns()
        brightness = rgb.transpose(2, 0, 1)[: len(self.mean)] / 255
        pixels: np.ndarray = ((brightness - mean) / std).astype(np.float32)
        return pixels

    def _as_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and std as ``channel 1 1``."""
        return np.array(self.mean)[:, None, None], np.array(self.std)[:, None, None]


@dataclass(frozen=True, eq=False)
class PatchImage:
    """An image cut into patches, as a model reads it. Two are equal if the model reads the same.

    Args:
        pixels: ``channel height width``, normalized.
        normalization: How brightness became ``pixels``.
        patch_size: Height and width of one patch.
        fill: The replacement of an occluded patch.
        name: Name of its file, or a description.
        original_size: Width and height before it was resized, if known.
        token_positions: Positions of the patches among the tokens of a text; empty if the patches are
            the last tokens of a row of their own.
    """

    pixels: np.ndarray
    normalization: Normalization
    patch_size: tuple[int, int] = (1, 1)
    fill: Fill = "mean"
    name: str = ""
    original_size: tuple[int, ...] = ()
    token_positions: tuple[int, ...] = ()

    def get_positions(self, num_tokens: int) -> list[int]:
        """Return the patches' positions in a row of ``num_tokens``, row by row from the top left."""
        if self.token_positions:
            return list(self.token_positions)
        num_patches = self.rows * self.columns
        return list(range(num_tokens - num_patches, num_tokens))

    def to_grid(self, values: np.ndarray) -> np.ndarray:
        """Select the patches' values: ``… token`` to ``… row column``."""
        patch_values = values[..., self.get_positions(values.shape[-1])]
        return patch_values.reshape(*values.shape[:-1], self.rows, self.columns)

    @property
    def rows(self) -> int:
        """Number of patches from top to bottom."""
        return int(self.pixels.shape[1]) // self.patch_size[0]

    @property
    def columns(self) -> int:
        """Number of patches from left to right."""
        return int(self.pixels.shape[2]) // self.patch_size[1]

    @property
    def patch_names(self) -> list[str]:
        """Names of the patches, ``row,column``."""
        return [f"{row},{column}" for row, column in np.ndindex(self.rows, self.columns)]

    @cached_property
    def rgb(self) -> np.ndarray:
        """The image as the model reads it, for display: ``height width 3`` of uint8."""
        return self.normalization.to_rgb(self.pixels)

    @cached_property
    def fill_pixels(self) -> np.ndarray:
        """Pixels of an image of which every patch is occluded, ``channel height width``."""
        if self.fill == "zero":
            return np.zeros_like(self.pixels)
        if self.fill == "blur":
            return _gaussian_blur(self.pixels, max(self.patch_size))
        mean = self.pixels.mean(axis=(1, 2), keepdims=True)
        return np.broadcast_to(mean, self.pixels.shape).astype(np.float32)

    @cached_property
    def digest(self) -> str:
        """Hash of everything that the model reads."""
        values = self.rgb if self.is_8bit else self.pixels
        digest = hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16)
        # Seeds are drawn from this digest, so the text that is hashed must never change.
        scale = f"Scale(mean={self.normalization.mean!r}, std={self.normalization.std!r})"
        settings = f"({self.pixels.shape!r}, {scale}, {self.patch_size!r}, {self.fill!r})"
        digest.update(settings.encode())
        return digest.hexdigest()

    @cached_property
    def is_8bit(self) -> bool:
        """Whether the pixel values are those of an image of 256 shades, as a PNG holds it."""
        rounded = self.normalization.from_rgb(self.rgb)
        # The largest error of each channel, as brightness.
        error = np.abs(rounded - self.pixels).max(axis=(1, 2)) * np.array(self.normalization.std)
        return bool((error < MAX_SHADE_ERROR / 255).all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PatchImage) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, _memo: Any) -> "PatchImage":
        return self  # it is immutable

    @cached_property
    def png(self) -> bytes:
        """The image as the model reads it, as the bytes of a PNG file."""
        stream = io.BytesIO()
        library = import_pillow("a picture of an explanation")
        library.fromarray(self.rgb).save(stream, format="PNG")
        return stream.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the image as a PNG in base64, and how it becomes pixel values again.

        Where 256 shades do not hold the pixel values, the values themselves are stored, too.
        """
        pixels = None
        if not self.is_8bit:
            raw = self.pixels.astype("<f4").tobytes()
            pixels = base64.b64encode(raw).decode("ascii")
        return {
            "png": base64.b64encode(self.png).decode("ascii"),
            "pixels": pixels,
            "mean": list(self.normalization.mean),
            "std": list(self.normalization.std),
            "patch": list(self.patch_size),
            "fill": self.fill,
            "name": self.name,
            "size": list(self.original_size),
            "places": list(self.token_positions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "PatchImage":
        """Rebuild from :meth:`to_dict`.

        Raises:
            DamagedFile: The values are no image, or an impossible one.
        """
        normalization = Normalization.from_values(
            values["mean"], values["std"], len(values["mean"])
        )
        fill = values["fill"]
        patch_height, patch_width = map(int, values["patch"])
        with _open_stored_png(values) as image:
            rgb = np.asarray(image.convert("RGB"))
        has_normalization = len(normalization.mean) in (1, 3) and 0 not in normalization.std
        has_patches = (
            min(patch_height, patch_width) >= 1
            and rgb.shape[0] % patch_height == 0
            and rgb.shape[1] % patch_width == 0
        )
        if not has_normalization or not has_patches or fill not in get_args(Fill):
            raise DamagedFile(
                "The image in the file has invalid patches, an invalid normalization or an unknown "
                "fill. Save the explanation again.",
                code="image-settings",
            )
        with np.errstate(all="ignore"):  # infinite values are refused below
            pixels = normalization.from_rgb(rgb)
        if values["pixels"] is not None:
            raw = np.frombuffer(base64.b64decode(values["pixels"], validate=True), dtype="<f4")
            pixels = raw.reshape(pixels.shape).astype(np.float32)
        if not np.isfinite(pixels).all():
            raise DamagedFile(
                "The image in the file holds NaN or infinity. Save the explanation again.",
                code="image-not-finite",
            )
        original_width, original_height = map(int, values["size"])
        return cls(
            pixels,
            normalization,
            patch_size=(patch_height, patch_width),
            fill=fill,
            name=str(values["name"]),
            original_size=(original_width, original_height),
            token_positions=tuple(map(int, values.get("places", ()))),
        )


def count_stored_pixels(values: Mapping[str, Any]) -> int:
    """Return the number of pixels of a :meth:`PatchImage.to_dict`, without unpacking the image."""
    with _open_stored_png(values) as image:
        return int(image.width * image.height)


def _open_stored_png(values: Mapping[str, Any]) -> AbstractContextManager[Any]:
    png = io.BytesIO(base64.b64decode(values["png"], validate=True))
    return open_image_file("the picture in this file", png, ("PNG",), DamagedFile, MAX_PIXELS)


@contextmanager
def open_image_file(
    name: str,
    file: Any,
    formats: Sequence[str],
    error_class: type[TokenlightError],
    max_pixels: int | None,
) -> Iterator[Any]:
    """Open an image file and read its header, not yet its pixels.

    Args:
        name: Name of the file, for messages.
        file: A path or a stream.
        formats: Formats that may be opened, as Pillow names them.
        error_class: Class of the error that is raised.
        max_pixels: Most pixels that are read; None for no limit.

    Raises:
        TokenlightError: ``error_class``, for a file that cannot be read or is too large.
    """
    library = import_pillow("reading an image")
    # A small file may claim to be a huge image: Pillow calls it a decompression bomb.
    bombs = (library.DecompressionBombError, library.DecompressionBombWarning)
    try:
        with library.open(file, formats=formats) as image:
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise error_class(
                    f"{name} has {image.width} × {image.height} pixels, but at most {max_pixels:,} "
                    "are allowed. Make it smaller.",
                    code="image-too-large",
                )
            yield image
    except TokenlightError:
        raise
    except (OSError, SyntaxError, ValueError, *bombs) as error:
        raise error_class(
            f"{name} cannot be read as an image: {error}. Save it again, as PNG or JPEG.",
            code="image-unreadable",
        ) from error


def _gaussian_blur(pixels: np.ndarray, sigma: float) -> np.ndarray:
    """Blur ``channel height width`` by a Gaussian; the image is mirrored beyond its edges."""
    for axis in (1, 2):
        # Weights beyond three standard deviations are negligible.
        radius = min(int(3 * sigma), pixels.shape[axis] - 1)
        offsets = np.arange(-radius, radius + 1)
        weights = np.exp(-0.5 * (offsets / sigma) ** 2)
        weights /= weights.sum()
        padding = [(0, 0)] * 3
        padding[axis] = (radius, radius)
        padded = np.pad(pixels, padding, mode="reflect")
        pixels = np.apply_along_axis(np.convolve, axis, padded, weights, mode="valid")
    return pixels.astype(np.float32)


def import_pillow(purpose: str) -> Any:
    """Return Pillow's Image module, or raise a MissingExtra that says what to install."""
    return MissingExtra.import_or_raise("PIL.Image", "vision", purpose, "Pillow")
