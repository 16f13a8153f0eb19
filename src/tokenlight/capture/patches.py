"""Models that read pictures: where their patches stand among the tokens, and pixels from rows."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.capture.rewired import merging, patch_embedding, rewired
from tokenlight.data.image import HIDDEN, PatchImage
from tokenlight.data.tokens import TokenRow
from tokenlight.errors import BadInput, UnsupportedModel
from tokenlight.inputs.picture import opened, patch_row

VOCABULARY = 2  # hidden, seen
# Parameters beside the patch embedding that put tokens of their own before the patches.
OWN_TOKENS = {
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "[REG]",
}


class Patches:
    """How one model cuts a picture: the size of a patch, and the tokens it puts before them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.embedding = patch_embedding(model)
        cut = next(module for module in self.embedding.modules() if isinstance(module, nn.Conv2d))
        self.patch: tuple[int, int] = (int(cut.kernel_size[0]), int(cut.kernel_size[1]))
        self.channels = cut.in_channels
        self.weight: Tensor = cut.weight
        self._special: dict[tuple[int, ...], tuple[str, ...]] = {}

    def row(self, picture: Any, processor: Any) -> TokenRow:
        """A picture as the model will read it."""
        return self.read(opened(picture, processor, self.patch))

    def read(self, image: PatchImage) -> TokenRow:
        """A picture that is already cut."""
        if len(image.pixels) != self.channels:
            raise BadInput(
                f"the picture has {len(image.pixels)} channels but this model reads {self.channels}."
            )
        shape = image.pixels.shape
        if shape not in self._special:
            self._special[shape] = self._find(shape)
        return patch_row(image, self._special[shape])

    @property
    def ahead(self) -> int:
        """How many tokens of its own the model puts before the patches; known once it has read."""
        return len(next(iter(self._special.values())))

    @torch.inference_mode(mode=False)
    def _find(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the tokens before the patches of a picture of ``shape``.

        Found by two passes: a change in two patches must change h^0 at their two tokens and nowhere
        else, so that a patch's score belongs to the patch.
        """
        rows, columns = shape[1] // self.patch[0], shape[2] // self.patch[1]
        blank = torch.zeros(2, *shape, device=self.weight.device, dtype=self.weight.dtype)
        blank[1, :, : self.patch[0], -self.patch[1] :] = 1.0
        blank[1, :, -self.patch[0] :, : self.patch[1]] = 1.0
        name = type(self.model).__name__
        try:
            with rewired(self.model, attention="own", gradients=False):
                outputs = self.model(
                    pixel_values=blank, output_hidden_states=True, return_dict=True
                )
        except (ValueError, RuntimeError) as refused:
            raise BadInput(
                f"{name} does not read pictures of {shape[2]} × {shape[1]} pixels: "
                f"{str(refused).splitlines()[0]}"
            ) from refused
        states = getattr(outputs, "hidden_states", None)
        if not states or any(state.shape != states[0].shape for state in states):
            raise UnsupportedModel(merging(name, states or ()))
        ahead = states[0].shape[1] - rows * columns
        expected = [ahead + columns - 1, ahead + (rows - 1) * columns]
        moved = (states[0][0] != states[0][1]).any(dim=-1).nonzero().flatten().tolist()
        if states[0].dim() != 3 or ahead < 0 or moved != sorted(set(expected)):
            raise UnsupportedModel(
                f"{name} mixes its patches before its first block, so no token stands for one patch; "
                "a score could not be laid over the picture."
            )
        return self._names(ahead)

    def _names(self, ahead: int) -> tuple[str, ...]:
        around = (m for m in self.model.modules() if self.embedding in m.children())
        names: list[str] = []
        for own, (parameter, piece) in product(around, OWN_TOKENS.items()):
            found = own._parameters.get(parameter)
            if found is not None:
                several = found.shape[1] if found.dim() == 3 else 1
                each = (f"{piece[:-1]}{i}]" for i in range(several))
                names += [piece] if several == 1 else each
        return tuple(names) if len(names) == ahead else tuple(f"[{i}]" for i in range(ahead))

    def pixel_values(self, rows: Sequence[Any]) -> Tensor:
        """``batch channel height width``: the pictures, with their filling where a patch is hidden."""
        images: list[Any] = [row.image for row in rows]
        if any(image is None for image in images):
            raise BadInput(
                f"{type(self.model).__name__} reads pictures, not token ids; give Picture(…)."
            )
        ids = np.stack([np.asarray(row.ids) for row in rows])
        patches = images[0].grid(ids)
        if (ids[:, : ids.shape[1] - patches[0].size] == HIDDEN).any():
            raise BadInput(
                "the tokens before the patches ([CLS] and its like) are the model's own and show "
                "nothing of the picture, so they cannot be hidden; leave special tokens in place "
                "(protect_special=True, special='keep')."
            )
        return painted(self.weight, images, patches == HIDDEN)


def painted(weight: Tensor, images: Sequence[PatchImage], hidden: np.ndarray) -> Tensor:
    """``batch channel height width``, where ``weight`` is and in its dtype; ``hidden``: ``batch row
    column``, true where a patch is."""
    shapes = {image.pixels.shape for image in images}
    if len(shapes) > 1:
        raise BadInput(
            f"the pictures have different sizes after preprocessing ({sorted(shapes)}); give "
            "pictures of one size together, or one by one."
        )
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
