"""Pictures on the model's device, with their filling where patches are hidden."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokenlight.data.image import PatchImage
from tokenlight.errors import BadInput


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
