"""Models that read pictures, alone or in a text: pixels from rows, and which token holds which place, found
by passes: what changes in one cell must change its vector and no other."""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from tokenlight.capture.attention import one_per_query_head
from tokenlight.capture.rewired import no_grid, patch_embedding, rewired, token_embeddings
from tokenlight.data.image import HIDDEN, SEEN, PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.data.units import WRITTEN
from tokenlight.errors import BadInput, TokenlightError, UnsupportedModel

VOCABULARY = 2  # of patches: hidden, seen
# Parameters beside the patch embedding that put tokens of their own before the patches.
OWN_TOKENS = {
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "[REG]",
}
ALONE = "tokenlight_alone"  # attention in which each place sees itself and no other
TYPES = ("token_type_ids", "mm_token_type_ids")
# Families whose prompt is read in both directions: what was written after it has a type of its own.
PREFIX = ("paligemma",)
Shape = tuple[int, ...]  # channel height width


class _Eye:
    """What both kinds of model do with a picture."""

    def __init__(self, model: PreTrainedModel, weight: Tensor, token: int) -> None:
        self.model, self.weight, self.token = model, weight, token

    def pixels(self, rows: Sequence[Any]) -> Tensor:
        """``batch channel height width``: pictures, filled where another token stands in a patch's place."""
        weight, images = self.weight, [row.image for row in rows if row.image is not None]
        ids = [image.grid(np.asarray(row.ids)) for row, image in zip(rows, images, strict=True)]
        hidden = np.stack(ids) != self.token
        unique = {id(image): image for image in images}
        order = {key: i for i, key in enumerate(unique)}
        chosen = torch.tensor([order[id(image)] for image in images], device=weight.device)

        def sent(parts: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.stack(parts)).to(weight.device, weight.dtype)[chosen]

        pixels = sent([image.pixels for image in unique.values()])
        if not hidden.any():
            return pixels
        height, width = images[0].patch
        veil = torch.from_numpy(hidden).to(weight.device)[:, None]
        veil = veil.repeat_interleave(height, 2).repeat_interleave(width, 3)
        return torch.where(veil, sent([image.filling for image in unique.values()]), pixels)

    def _marked(self, shape: Shape, rows: int, columns: int) -> Tensor:
        """A picture, and two in which one cell is another: the first row's last, the second's first."""
        # Not zero: some models take a picture of zeros for padding.
        found = torch.full((3, *shape), 0.5, device=self.weight.device, dtype=self.weight.dtype)
        down, across = shape[1] // rows, shape[2] // columns
        found[1, :, :down, -across:] = -0.5
        found[2, :, down : 2 * down, :across] = -0.5
        return found

    def _reading(
        self, shape: Shape, refusal: type[TokenlightError]
    ) -> AbstractContextManager[None]:
        size = f"{shape[2]} × {shape[1]} pixels and {shape[0]} channels"
        said = f"{type(self.model).__name__} does not read pictures of {size}: "
        return refusal.telling(said, ValueError, RuntimeError, TypeError, AttributeError, end="")


def _in_place(vectors: Tensor, rows: int, columns: int, ahead: int = 0) -> bool:
    """Whether each marked cell changed its own of the vectors, ``picture place hidden``, and no other."""
    gaps = (vectors[1:] - vectors[:1]).abs().amax(dim=-1)
    moved = [(own > 1e-3 * gaps.max()).nonzero().flatten().tolist() for own in gaps]
    return moved == [[ahead + columns - 1], [ahead + columns] if rows > 1 else []]


class Patches(_Eye):
    """How a model of pictures cuts one: the size of a patch, and the tokens it puts before them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.embedding = patch_embedding(model)
        cut = next(module for module in self.embedding.modules() if isinstance(module, nn.Conv2d))
        super().__init__(model, cut.weight, SEEN)
        self.patch: tuple[int, int] = (int(cut.kernel_size[0]), int(cut.kernel_size[1]))
        self._special: dict[Shape, tuple[str, ...]] = {}
        self.ahead = 0  # how many tokens of its own it puts before them; known once it has read

    def read(self, image: PatchImage) -> TokenRow:
        """The picture as tokens: the model's own, which are special, then patches named ``row,column``."""
        shape = image.pixels.shape
        if shape not in self._special:
            self._special[shape] = self._find(shape, image.rows, image.columns)
        special, names = self._special[shape], image.names
        length = len(special) + len(names)
        return TokenRow.plain(
            (SEEN,) * length,
            pieces=(*special, *names),
            special=(True,) * len(special) + (False,) * len(names),
            words=(None,) * length,
            texts=(image.name,),
            image=image,
        )

    @torch.inference_mode(mode=False)
    def _find(self, shape: Shape, rows: int, columns: int) -> tuple[str, ...]:
        """Names of the tokens before the patches of a picture."""
        marked = self._marked(shape, rows, columns)
        with self._reading(shape, BadInput), rewired(self.model, attention="own", gradients=False):
            found = self.model(pixel_values=marked, output_hidden_states=True, return_dict=True)
        states: Sequence[Tensor] = getattr(found, "hidden_states", None) or ()
        if {state.dim() for state in states} != {3} or len({own.shape for own in states}) != 1:
            raise no_grid(self.model)
        self.ahead = ahead = states[0].shape[1] - rows * columns
        if ahead < 0 or not _in_place(states[0], rows, columns, ahead):
            raise no_grid(self.model)
        around = (m for m in self.model.modules() if self.embedding in m.children())
        names: list[str] = []
        for own, (parameter, piece) in product(around, OWN_TOKENS.items()):
            weight = own._parameters.get(parameter)
            if weight is not None:
                several = weight.shape[1] if weight.dim() == 3 else 1
                each = (f"{piece[:-1]}{i}]" for i in range(several))
                names += [piece] if several == 1 else each
        return tuple(names) if len(names) == ahead else tuple(f"[{i}]" for i in range(ahead))

    def pixels(self, rows: Sequence[Any]) -> Tensor:
        """See above; the model's own tokens must stay."""
        own = len(rows[0]) - rows[0].image.rows * rows[0].image.columns
        if any(HIDDEN in row.ids[:own] for row in rows):
            raise BadInput(
                "the tokens before the patches ([CLS] and its like) are the model's own and show "
                "nothing of the picture, so they cannot be hidden; leave special tokens in place "
                "(protect_special=True, special='keep')."
            )
        return super().pixels(rows)


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


class Sight(_Eye):
    """How a language model reads pictures: its vision tower makes a vector of each place, which it reads like
    a token's. What is explained begins there: scores tell of the language model's part alone."""

    def __init__(self, model: PreTrainedModel, token: int, accepts: set[str]) -> None:
        super().__init__(model, token_embeddings(model)[0].weight, token)  # type: ignore[arg-type]
        self._accepts = accepts
        self.language: nn.Module = model.get_decoder()
        asked = inspect.signature(_seer(model).get_image_features).parameters.get("image_sizes")
        self._sized = asked is not None and asked.default is inspect.Parameter.empty
        self._grids: dict[Shape, tuple[int, int]] = {}
        # Modules that keep from one pass to the next how far the places of a picture reach.
        self.keeping = [module for module in model.modules() if hasattr(module, "rope_deltas")]
        self.written = int(model.config.model_type in PREFIX)  # the token type of what was written

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
    def grid(self, shape: Shape) -> tuple[int, int]:
        """Rows and columns of a picture's vectors, proved where no place of it attends to another."""
        if shape in self._grids:
            return self._grids[shape]
        _, height, width = shape
        with self._reading(shape, UnsupportedModel):
            with rewired(self.model, attention="own", gradients=False):
                count = len(self._vectors(self._marked(shape, 1, 1)[:1]))
            rows = round((count * height / width) ** 0.5)
            columns = count // max(1, rows)
            proved = rows * columns == count and not (height % rows or width % columns)
            if proved:
                with rewired(self.model, attention=ALONE, gradients=False):
                    vectors = self._vectors(self._marked(shape, rows, columns))
                proved = _in_place(vectors.view(3, count, -1), rows, columns)
        if not proved:
            raise UnsupportedModel(
                f"{type(self.model).__name__} makes {count} vectors of a picture of {width} × {height} "
                "pixels, and they do not stand for the cells of one grid, row by row: it resamples the "
                "picture, or reads several views of it. Scores could not be laid over it."
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
