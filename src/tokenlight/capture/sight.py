"""Language models that read a picture: which tokens stand for it, and which place of it each holds."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from tokenlight.capture.attention import one_per_query_head
from tokenlight.capture.patches import painted
from tokenlight.capture.rewired import rewired, token_embeddings
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, UnsupportedModel

ALONE = "tokenlight_alone"  # attention in which each place sees itself and no other
TYPES = ("token_type_ids", "mm_token_type_ids")
# Families whose prompt is read in both directions: what was written after it has a type of its own.
PREFIX = ("paligemma",)


def image_token(model: PreTrainedModel) -> int | None:
    """The id that stands for a patch among a language model's tokens; None where it reads none."""
    reads = not model.config.is_encoder_decoder and model.main_input_name == "input_ids"
    if not reads or not hasattr(_seer(model), "get_image_features"):
        return None
    names = ("image_token_id", "image_token_index")
    found = (getattr(model.config, name, None) for name in names)
    return next((i for i in found if isinstance(i, int)), None)


def _seer(model: PreTrainedModel) -> Any:
    """The part that makes vectors of a picture, as transformers names it."""
    return model if hasattr(model, "get_image_features") else model.base_model


class Sight:
    """How one model reads pictures: its vision tower and projector make a vector of each place of the
    picture, which its language model reads like a token's. What is explained begins there: h^0 of a
    patch is that vector, so scores tell of the language model's part alone."""

    def __init__(self, model: PreTrainedModel, token: int, accepts: set[str]) -> None:
        self.model, self.token, self._accepts = model, token, accepts
        self.language: nn.Module = model.get_decoder()
        self._weight: Any = token_embeddings(model)[0].weight
        asked = inspect.signature(_seer(model).get_image_features).parameters.get("image_sizes")
        self._sized = asked is not None and asked.default is inspect.Parameter.empty
        self._grids: dict[tuple[int, ...], tuple[int, int]] = {}
        # Modules that keep from one pass to the next how far the places of a picture reach.
        self.keeping = [module for module in model.modules() if hasattr(module, "rope_deltas")]
        self.written = int(model.config.model_type in PREFIX)  # the token type of what was written

    def pixels(self, rows: Sequence[Any]) -> Tensor:
        """``batch channel height width``; a patch in whose place another token stands is hidden."""
        images = [row.image for row in rows if row.image is not None]
        ids = [image.grid(np.asarray(row.ids)) for row, image in zip(rows, images, strict=True)]
        return painted(self._weight, images, np.stack(ids) != self.token)

    def ids(self, row: Any) -> np.ndarray:
        """The row's ids, with the token of a patch where one is hidden."""
        found = np.array(row.ids, dtype=np.int64)
        found[list(row.image.places)] = self.token
        return found

    def checked(self, row: TokenRow) -> TokenRow:
        """A row that was read before, refused where another model's sight made it."""
        image = row.image
        if image is None or not image.places or self.grid(image.pixels.shape) != (
            image.rows, image.columns
        ):  # fmt: skip
            raise BadInput(
                f"{type(self.model).__name__} reads a picture with a text, and this row was not made "
                "for it; give Picture(…, text=…)."
            )
        return row

    def typed(self, row: TokenRow) -> TokenRow:
        """The row with the token types this model wants: 1 at patches, or at what was written."""
        if not self._accepts & {*TYPES}:
            return row
        last = len(row.names) - 1 if row.names[-1] == WRITTEN else None
        wanted = last if self.written else 0
        kinds = tuple(int(segment is not None and segment == wanted) for segment in row.segments)
        return replace(row, token_types=kinds)

    @torch.inference_mode(mode=False)
    def grid(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows and columns of the vectors a picture of ``channel height width`` becomes.

        Proved by a pass in which no place of the picture attends to another: what changes in one
        cell must then change its vector and no other.
        """
        if shape in self._grids:
            return self._grids[shape]
        name, (channels, height, width) = type(self.model).__name__, shape
        weight = self._weight
        # Not zero: some models take a picture of zeros for padding.
        blank = torch.full((3, *shape), 0.5, device=weight.device, dtype=weight.dtype)
        try:
            with rewired(self.model, attention="own", gradients=False):
                count = len(self._vectors(blank[:1]))
            rows = round((count * height / width) ** 0.5)
            columns = count // max(1, rows)
            moved: list[list[int]] = []
            if rows * columns == count and not (height % rows or width % columns):
                down, across = height // rows, width // columns
                blank[1, :, :down, -across:] = -0.5
                blank[2, :, down : 2 * down, :across] = -0.5
                with rewired(self.model, attention=ALONE, gradients=False):
                    moved = _moved(self._vectors(blank).view(3, count, -1))
        except UnsupportedModel:
            raise
        except (ValueError, RuntimeError, TypeError, AttributeError) as refused:
            raise UnsupportedModel(
                f"{name} does not read a picture of {width} × {height} pixels and {channels} channels "
                f"in the way tokenlight knows: {str(refused).splitlines()[0]}"
            ) from refused
        if moved != [[columns - 1], [columns] if rows > 1 else []]:
            raise UnsupportedModel(
                f"{name} makes {count} vectors of a picture of {width} × {height} pixels, and they do "
                "not stand for the cells of one grid, row by row: it resamples the picture, or reads "
                "several views of it. Scores could not be laid over it."
            )
        self._grids[shape] = rows, columns
        return rows, columns

    def _vectors(self, pixels: Tensor) -> Tensor:
        """``place hidden``: what the language model is given for pictures, one after the other."""
        found: Any = _seer(self.model).get_image_features(**self.laid(pixels), return_dict=True)
        vectors = getattr(found, "pooler_output", found)
        if not isinstance(vectors, Tensor):
            vectors = torch.cat([own.flatten(0, -2) for own in vectors])
        return vectors.flatten(0, -2)

    def laid(self, pixels: Tensor) -> dict[str, Tensor]:
        """``batch channel height width`` as the model's own arguments."""
        if "image_grid_thw" not in self._accepts:
            one_of_several = "pixel_attention_mask" in self._accepts  # images of a text
            sizes = torch.tensor([[*pixels.shape[2:]]] * len(pixels), device=pixels.device)
            given = {"pixel_values": pixels[:, None] if one_of_several else pixels}
            return given | ({"image_sizes": sizes} if self._sized else {})
        vision = self.model.config.vision_config
        side, several = int(vision.patch_size), int(vision.spatial_merge_size)
        batch, channels, height, width = pixels.shape
        down, across = height // side, width // side
        cells = pixels.reshape(
            batch, channels, down // several, several, side, across // several, several, side
        )
        # picture, block row, block column, row, column, channel, time, and height and width of a patch
        flat = cells.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None]
        flat = flat.expand(*flat.shape[:6], int(vision.temporal_patch_size), side, side)
        return {
            "pixel_values": flat.reshape(batch * down * across, -1),
            "image_grid_thw": torch.tensor([[1, down, across]] * batch, device=pixels.device),
        }


def _alone(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{type(module).__name__} resamples it, so no vector stands for a place")
    return one_per_query_head(value, query.shape[1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(ALONE, _alone)
AttentionMaskInterface.register(ALONE, sdpa_mask)


def _moved(vectors: Tensor) -> list[list[int]]:
    """Which vectors of each further picture differ from the first's, but for rounding."""
    gaps = (vectors[1:] - vectors[:1]).abs().amax(dim=-1)
    return [(own > 1e-3 * gaps.max()).nonzero().flatten().tolist() for own in gaps]
