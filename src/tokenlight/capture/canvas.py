"""Pictures on the model's device, with their filling where patches are hidden."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tokenlight.data.image import PatchImage
from tokenlight.errors import BadInput


class Canvas:
    """``weight`` tells where the model is and in which dtype it computes: it may be moved or cast."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._held: WeakKeyDictionary[PatchImage, tuple[Tensor, Tensor]] = WeakKeyDictionary()

    def painted(self, images: Sequence[PatchImage], hidden: np.ndarray) -> Tensor:
        """``batch channel height width``; ``hidden``: ``batch row column``, true where a patch is."""
        shapes = {image.pixels.shape for image in images}
        if len(shapes) > 1:
            raise BadInput(
                f"the pictures have different sizes after preprocessing ({sorted(shapes)}); give "
                "pictures of one size together, or one by one."
            )
        unique = {id(image): image for image in images}
        places = {key: i for i, key in enumerate(unique)}
        held = [self._on_device(image) for image in unique.values()]
        chosen = torch.tensor([places[id(image)] for image in images], device=self.weight.device)
        pixels = torch.stack([seen for seen, _ in held])[chosen]
        if not hidden.any():
            return pixels
        filling = torch.stack([fill for _, fill in held])[chosen]
        height, width = images[0].patch
        veil = torch.from_numpy(hidden).to(self.weight.device)[:, None]
        veil = veil.repeat_interleave(height, 2).repeat_interleave(width, 3)
        return torch.where(veil, filling, pixels)

    def _on_device(self, image: PatchImage) -> tuple[Tensor, Tensor]:
        held = self._held.get(image)
        if held is None or (held[0].device, held[0].dtype) != (
            self.weight.device,
            self.weight.dtype,
        ):
            held = self._held[image] = (self._tensor(image.pixels), self._tensor(image.filling))
        return held

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.tensor(values).to(self.weight.device, self.weight.dtype)
