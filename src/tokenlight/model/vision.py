"""Models that read images, alone or within a text: pixels from rows, and which token shows which patch.

The order of tokens is not assumed but proved by passes: a change in one cell of the image must change the
vector of one token and no other.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from tokenlight.data.image import OCCLUDED_ID, VISIBLE_ID, PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import CONTINUATION_SEGMENT
from tokenlight.errors import BadInput, TokenlightError, UnsupportedModel
from tokenlight.hooks.attention import repeat_kv_heads
from tokenlight.hooks.embedding_layers import (
    find_patch_embedding,
    find_token_embeddings,
    make_patch_grid_error,
)
from tokenlight.hooks.instrument import instrumented
from tokenlight.model.model_row import ModelRow

PATCH_VOCAB_SIZE = 2  # ids of patches: occluded, visible
# Parameters next to the patch embedding that put tokens of the model's own before the patches.
PREFIX_TOKENS = {
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "[REG]",
}
SELF_ONLY_ATTENTION = "tokenlight_alone"  # attention in which each token sees itself and no other
TOKEN_TYPE_ARGUMENTS = ("token_type_ids", "mm_token_type_ids")
# Families whose prompt is read in both directions: the continuation has a token type of its own.
PREFIX_LM_FAMILIES = ("paligemma",)
ImageShape = tuple[int, ...]  # channel height width
# What models raise when they are given an image of a size that they do not read.
IMAGE_ERRORS = (ValueError, RuntimeError, TypeError, AttributeError)


class _ImageInputs:
    """Image handling that both kinds of model share.

    Args:
        model: The model.
        weight: A weight with the device and the dtype of its inputs.
        image_token_id: The id of a visible patch.
    """

    def __init__(self, model: PreTrainedModel, weight: Tensor, image_token_id: int) -> None:
        self.model = model
        self.weight = weight
        self.image_token_id = image_token_id

    def build_pixels(self, rows: Sequence[ModelRow]) -> Tensor:
        """Return the images, ``batch channel height width``, with occluded patches filled.

        A patch is occluded where the row has another id than ``image_token_id``.
        """
        images = [_get_image(row) for row in rows]
        id_grids = []
        for row, image in zip(rows, images, strict=True):
            id_grids.append(image.to_grid(np.asarray(row.ids)))
        is_occluded = np.stack(id_grids) != self.image_token_id
        # Many rows show one image: it is sent once and repeated on the device.
        unique_images = list({id(image): image for image in images}.values())
        order = {id(image): index for index, image in enumerate(unique_images)}
        indices = torch.tensor([order[id(image)] for image in images], device=self.weight.device)
        pixels = self._send_pixels([image.pixels for image in unique_images])[indices]
        if not is_occluded.any():
            return pixels
        fill_pixels = self._send_pixels([image.fill_pixels for image in unique_images])[indices]
        patch_height, patch_width = images[0].patch_size
        occlusion = torch.from_numpy(is_occluded).to(self.weight.device)[:, None]
        occlusion = occlusion.repeat_interleave(patch_height, 2).repeat_interleave(patch_width, 3)
        return torch.where(occlusion, fill_pixels, pixels)

    def _send_pixels(self, images: list[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack(images)).to(self.weight.device, self.weight.dtype)

    def _make_probe_images(self, shape: ImageShape, rows: int, columns: int) -> Tensor:
        """Return three images: a plain one; the last cell of row 0 changed; the first of row 1 changed."""
        # Not zero, because some models take an image of zeros for padding.
        images = torch.full((3, *shape), 0.5, device=self.weight.device, dtype=self.weight.dtype)
        cell_height = shape[1] // rows
        cell_width = shape[2] // columns
        images[1, :, :cell_height, -cell_width:] = -0.5
        images[2, :, cell_height : 2 * cell_height, :cell_width] = -0.5
        return images


def _get_image(row: ModelRow) -> PatchImage:
    assert row.image is not None, "A model of images reads rows with an image."
    return row.image


def _is_grid_aligned(vectors: Tensor, rows: int, columns: int, num_prefix_tokens: int = 0) -> bool:
    """Return whether the cells that the probe images change are seen only by their own tokens.

    Args:
        vectors: ``image token hidden``, for the three images of ``_make_probe_images``.
        rows: Rows of the grid.
        columns: Columns of the grid.
        num_prefix_tokens: Number of tokens before the first patch.
    """
    gaps = (vectors[1:] - vectors[:1]).abs().amax(dim=-1)
    threshold = 1e-3 * gaps.max()
    changed_tokens = [(gap > threshold).nonzero().flatten().tolist() for gap in gaps]
    last_of_first_row = num_prefix_tokens + columns - 1
    expected = [[last_of_first_row], [last_of_first_row + 1]]
    if rows == 1:  # there is no second row to change
        expected[1] = []
    return changed_tokens == expected


class PatchInputs(_ImageInputs):
    """How an image classifier reads an image: the size of its patches, and the tokens before them.

    Attributes:
        patch_size: Height and width of a patch in pixels.
        num_prefix_tokens: Number of tokens that the model puts before the patches; known after the first
            image.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.embedding = find_patch_embedding(model)
        convolutions = (m for m in self.embedding.modules() if isinstance(m, nn.Conv2d))
        convolution = next(convolutions)
        super().__init__(model, convolution.weight, VISIBLE_ID)
        height, width = convolution.kernel_size
        self.patch_size: tuple[int, int] = (int(height), int(width))
        self._prefix_tokens: dict[ImageShape, tuple[str, ...]] = {}
        self.num_prefix_tokens = 0

    def encode_image(self, image: PatchImage) -> TokenRow:
        """Return the image as tokens: the model's own, which are special, then patches ``row,column``.

        Raises:
            BadInput: The model does not read images of this size.
            UnsupportedModel: Its tokens are not the patches of the image.
        """
        shape = image.pixels.shape
        if shape not in self._prefix_tokens:
            self._prefix_tokens[shape] = self._find_prefix_tokens(shape, image.rows, image.columns)
        prefix_tokens = self._prefix_tokens[shape]
        patch_names = image.patch_names
        length = len(prefix_tokens) + len(patch_names)
        return TokenRow.from_ids(
            (VISIBLE_ID,) * length,
            pieces=(*prefix_tokens, *patch_names),
            special_tokens_mask=(True,) * len(prefix_tokens) + (False,) * len(patch_names),
            word_ids=(None,) * length,
            texts=(image.name,),
            image=image,
        )

    @torch.inference_mode(mode=False)
    def _find_prefix_tokens(self, shape: ImageShape, rows: int, columns: int) -> tuple[str, ...]:
        """Return the names of the tokens before the patches of an image."""
        states = self._probe_hidden_states(shape, rows, columns)
        has_token_axis = {state.dim() for state in states} == {3}
        if not has_token_axis or len({state.shape for state in states}) != 1:
            raise make_patch_grid_error(self.model)
        num_prefix_tokens = states[0].shape[1] - rows * columns
        self.num_prefix_tokens = num_prefix_tokens
        if num_prefix_tokens < 0 or not _is_grid_aligned(
            states[0], rows, columns, num_prefix_tokens
        ):
            raise make_patch_grid_error(self.model)
        names = self._find_prefix_token_names()
        if len(names) != num_prefix_tokens:
            return tuple(f"[{index}]" for index in range(num_prefix_tokens))
        return tuple(names)

    def _probe_hidden_states(self, shape: ImageShape, rows: int, columns: int) -> Sequence[Tensor]:
        """Return the hidden states of the probe images, ``image token hidden`` each."""
        images = self._make_probe_images(shape, rows, columns)
        try:
            with instrumented(self.model, attention="unchanged", gradients=False):
                outputs = self.model(
                    pixel_values=images, output_hidden_states=True, return_dict=True
                )
        except TokenlightError:
            raise
        except IMAGE_ERRORS as error:
            raise BadInput(
                f"{type(self.model).__name__} does not read images of {shape[2]} × {shape[1]} pixels and "
                f"{shape[0]} channels: {error}. Use the image processor of this model.",
                code="image-size",
            ) from error
        return getattr(outputs, "hidden_states", None) or ()

    def _find_prefix_token_names(self) -> list[str]:
        """Name the prefix tokens by the parameters next to the patch embedding."""
        names: list[str] = []
        for module in self.model.modules():
            if self.embedding not in module.children():
                continue
            for parameter_name, token_name in PREFIX_TOKENS.items():
                parameter = module._parameters.get(parameter_name)
                if parameter is None:
                    continue
                count = parameter.shape[1] if parameter.dim() == 3 else 1
                if count == 1:
                    names.append(token_name)
                else:
                    names.extend(f"{token_name[:-1]}{index}]" for index in range(count))
        return names

    def build_pixels(self, rows: Sequence[ModelRow]) -> Tensor:
        """Return the images with occluded patches filled; the prefix tokens cannot be occluded.

        Raises:
            BadInput: A prefix token is occluded.
        """
        image = _get_image(rows[0])
        num_prefix_tokens = len(rows[0]) - image.rows * image.columns
        for row in rows:
            if OCCLUDED_ID in row.ids[:num_prefix_tokens]:
                raise BadInput(
                    "The tokens before the patches, such as [CLS], belong to the model and show no part of "
                    "the image, so they cannot be occluded. Keep special tokens "
                    "(protect_special=True, special='keep').",
                    code="prefix-token-occluded",
                )
        return super().build_pixels(rows)


def find_image_token_id(model: PreTrainedModel) -> int | None:
    """Return the id that stands for a patch among the tokens of a text; None if the model reads none."""
    is_decoder_only = not model.config.is_encoder_decoder
    if not is_decoder_only or model.main_input_name != "input_ids":
        return None
    if not hasattr(_find_image_encoder(model), "get_image_features"):
        return None
    for name in ("image_token_id", "image_token_index"):
        token_id = getattr(model.config, name, None)
        if isinstance(token_id, int):
            return token_id
    return None


def _find_image_encoder(model: PreTrainedModel) -> Any:
    """Return the part with ``get_image_features``: the model or its base model."""
    return model if hasattr(model, "get_image_features") else model.base_model


class VisionLanguageInputs(_ImageInputs):
    """How a language model reads images.

    Its vision tower makes a vector of each cell of the image, which the language model reads like the
    embedding of a token. The explanation begins there: scores cover only the language model's part.

    Attributes:
        language_model: The part that reads tokens.
        rope_modules: Modules that store the extent of an image's positions from one pass to the next.
        continuation_token_type: The token type of a continuation.
    """

    def __init__(
        self, model: PreTrainedModel, image_token_id: int, forward_parameters: set[str]
    ) -> None:
        super().__init__(model, find_token_embeddings(model)[0].weight, image_token_id)  # type: ignore[arg-type]
        self._forward_parameters = forward_parameters
        self.language_model: nn.Module = model.get_decoder()
        parameters = inspect.signature(_find_image_encoder(model).get_image_features).parameters
        image_sizes = parameters.get("image_sizes")
        self._needs_image_sizes = (
            image_sizes is not None and image_sizes.default is inspect.Parameter.empty
        )
        self._grids: dict[ImageShape, tuple[int, int]] = {}
        self.rope_modules = [module for module in model.modules() if hasattr(module, "rope_deltas")]
        self.continuation_token_type = int(model.config.model_type in PREFIX_LM_FAMILIES)

    def restore_image_ids(self, row: ModelRow) -> np.ndarray:
        """Return the ids of a row, with the image token at occluded patches as well."""
        ids = np.array(row.ids, dtype=np.int64)
        ids[list(_get_image(row).token_positions)] = self.image_token_id
        return ids

    def check_row(self, row: TokenRow) -> TokenRow:
        """Return a row that was encoded before; refuse it if it was made for another model.

        Raises:
            BadInput: Its image tokens are not those that this model makes of the image.
        """
        image = row.image
        is_compatible = False
        if image is not None and image.token_positions:
            is_compatible = self.find_grid(image.pixels.shape) == (image.rows, image.columns)
        if not is_compatible:
            raise BadInput(
                f"{type(self.model).__name__} reads an image with a text, but this row was not made for it. "
                "Give Picture(…, text=…).",
                code="row-of-another-model",
            )
        return row

    def add_token_types(self, row: TokenRow) -> TokenRow:
        """Return the row with the token types that this model reads: 1 at patches, or at the continuation."""
        if self._forward_parameters.isdisjoint(TOKEN_TYPE_ARGUMENTS):
            return row
        marked_segment: int | None = 0  # the image
        if self.continuation_token_type:
            marked_segment = None
            if row.segment_names[-1] == CONTINUATION_SEGMENT:
                marked_segment = len(row.segment_names) - 1
        token_types = []
        for segment in row.segments:
            token_types.append(int(segment is not None and segment == marked_segment))
        return replace(row, token_type_ids=tuple(token_types))

    @torch.inference_mode(mode=False)
    def find_grid(self, shape: ImageShape) -> tuple[int, int]:
        """Return the rows and columns of an image's vectors.

        They are proved by passes in which no token of the image attends to another.

        Raises:
            UnsupportedModel: The vectors do not correspond to the cells of one grid.
        """
        if shape in self._grids:
            return self._grids[shape]
        _, height, width = shape
        try:
            num_vectors = self._count_vectors(shape)
            rows = round((num_vectors * height / width) ** 0.5)
            columns = num_vectors // max(1, rows)
            is_grid = rows * columns == num_vectors and not (height % rows or width % columns)
            is_proved = is_grid and self._is_grid_proved(shape, rows, columns)
        except TokenlightError:
            raise
        except IMAGE_ERRORS as error:
            raise UnsupportedModel(
                f"{type(self.model).__name__} does not read images of {width} × {height} pixels and "
                f"{shape[0]} channels: {error}. Use the image processor of this model.",
                code="vision-image-size",
            ) from error
        if not is_proved:
            raise UnsupportedModel(
                f"{type(self.model).__name__} makes {num_vectors} vectors for an image of {width} × {height} "
                "pixels, and they are not the cells of one grid, row by row: the model resamples the image, "
                "or reads several views of it, so scores cannot be shown on the image. Use another model.",
                code="no-vector-grid",
            )
        self._grids[shape] = rows, columns
        return rows, columns

    def _count_vectors(self, shape: ImageShape) -> int:
        plain_image = self._make_probe_images(shape, 1, 1)[:1]
        with instrumented(self.model, attention="unchanged", gradients=False):
            return len(self._compute_image_features(plain_image))

    def _is_grid_proved(self, shape: ImageShape, rows: int, columns: int) -> bool:
        images = self._make_probe_images(shape, rows, columns)
        with instrumented(self.model, attention=SELF_ONLY_ATTENTION, gradients=False):
            vectors = self._compute_image_features(images)
        return _is_grid_aligned(vectors.view(3, rows * columns, -1), rows, columns)

    def _compute_image_features(self, pixels: Tensor) -> Tensor:
        """Return ``token hidden``: what the language model reads of the images, one after the other."""
        features: Any = _find_image_encoder(self.model).get_image_features(
            **self.build_pixel_arguments(pixels), return_dict=True
        )
        vectors = getattr(features, "pooler_output", features)
        if not isinstance(vectors, Tensor):  # one tensor per image
            vectors = torch.cat([image_vectors.flatten(0, -2) for image_vectors in vectors])
        return vectors.flatten(0, -2)

    def build_pixel_arguments(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return the arguments by which the model reads ``pixels``, ``batch channel height width``."""
        if "image_grid_thw" in self._forward_parameters:
            return self._build_flat_patch_arguments(pixels)
        arguments = {"pixel_values": pixels}
        if "pixel_attention_mask" in self._forward_parameters:
            # These models take several images per text: ``batch image channel height width``.
            arguments["pixel_values"] = pixels[:, None]
        if self._needs_image_sizes:
            sizes = [list(pixels.shape[2:])] * len(pixels)
            arguments["image_sizes"] = torch.tensor(sizes, device=pixels.device)
        return arguments

    def _build_flat_patch_arguments(self, pixels: Tensor) -> dict[str, Tensor]:
        """Cut images into flat patches, in the order in which Qwen-VL merges them."""
        config = self.model.config.vision_config
        side = int(config.patch_size)
        merge = int(config.spatial_merge_size)
        batch, channels, height, width = pixels.shape
        rows = height // side
        columns = width // side
        cells = pixels.reshape(
            batch, channels, rows // merge, merge, side, columns // merge, merge, side
        )
        # Axes: image, block row, block column, row, column, channel, time, and height and width of a patch.
        patches = cells.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]
        patches = patches.expand(*patches.shape[:6], int(config.temporal_patch_size), side, side)
        return {
            "pixel_values": patches.reshape(batch * rows * columns, -1),
            "image_grid_thw": torch.tensor([[1, rows, columns]] * batch, device=pixels.device),
        }


def _attend_self_only(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """Return the values themselves: the attention of a token that sees only itself."""
    if query.shape[2] != key.shape[2]:
        # A plain ValueError: ``find_grid`` turns it into a message about the model.
        raise ValueError(
            f"{type(module).__name__} resamples the image, so no vector shows one cell"
        )
    return repeat_kv_heads(value, query.shape[1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(SELF_ONLY_ATTENTION, _attend_self_only)
AttentionMaskInterface.register(SELF_ONLY_ATTENTION, sdpa_mask)
