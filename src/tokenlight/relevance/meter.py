"""The conservation meter: how much of the relevance is still there at each layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenlight.errors import NotFinite


def conservation(layers: Sequence[Tensor], start: Tensor) -> Tensor:
    r"""Relevance at each layer over relevance at the output, ``batch layer``.

    ``layers``: relevance at h^0 … h^L, each ``batch token hidden``; ``start``: ``batch``, what was
    put in at the output. 1 means nothing was lost or made.
    """
    return _sums(layers) / torch.where(start == 0, 1.0, start)[:, None]


def require_finite(layers: Sequence[Tensor], rules: str) -> None:
    """Raise NotFinite naming the topmost layer where relevance is NaN or infinite."""
    if bool(torch.isfinite(_sums(layers)).all()):  # then so is every number in them
        return
    finite = torch.stack([torch.isfinite(found).flatten(1).all(dim=1) for found in layers])
    bad = (~finite).nonzero().tolist()  # one question to the device, not one a layer
    if bad:
        layer, example = bad[-1]
        raise NotFinite(
            f"relevance by the rules {rules!r} is not finite at layer {layer} (0 is the "
            f"embedding) of text {example} of the batch; load the model in float32 or float64."
        )


def _sums(layers: Sequence[Tensor]) -> Tensor:
    """Relevance at each layer, ``batch layer``."""
    return torch.stack([relevance.flatten(1).sum(dim=1) for relevance in layers], dim=1)
