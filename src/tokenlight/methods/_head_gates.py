"""Head masks as gates in the way of relevance: what a block's attention context lets through."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.flow import Gate
from tokenlight.capture.tape import Tape
from tokenlight.capture.transfer import sent
from tokenlight.errors import BadInput
from tokenlight.relevance.division import safe_divide

Conserve = Literal["none", "paper", "abs"]


def placed(parts: Sequence[np.ndarray], tape: Tape) -> list[Tensor]:
    """The parts of a head mask (``layer head``) beside a model's maps, each ``layer 1 head``."""
    attention = tape.recording.attention
    given, shape = parts[0].shape, (len(attention), attention[0].shape[1])
    if given != shape:
        raise BadInput(
            f"the head mask is {given[0]} layers × {given[1]} heads, but this model has "
            f"{shape[0]} × {shape[1]}; run 'tokenlight heads' on this model."
        )
    return [sent(part, attention[0].device, attention[0].dtype)[:, None, :] for part in parts]


def gates(parts: Sequence[Tensor], conserve: Conserve, *, binary: bool) -> dict[int, Gate]:
    """A gate for every block, lowest first. Without conservation the parts act as their sum, which
    ``binary`` caps at one (a head may be in both)."""
    if conserve == "none":
        whole = torch.stack(list(parts)).sum(dim=0)
        parts = [whole.clamp(max=1) if binary else whole]
    return {
        block: _gate([part[block][:, :, None, None] for part in parts], conserve)
        for block in range(len(parts[0]))
    }


def _gate(masks: list[Tensor], conserve: Conserve) -> Gate:
    r"""Let relevance C (``batch head token width``) through: :math:`R_x = M_x\odot C`, then

    .. math:: R_x \leftarrow R_x\,\frac{|\sum R_x|}{D}\,\frac{\sum C}{\sum R_x}

    with :math:`D=|\sum_x\sum R_x|` (``"paper"``, to the letter) or :math:`\sum_x|\sum R_x|`
    (``"abs"``, which conserves whatever the signs). Sums run over one example.
    """

    def total(relevance: Tensor) -> Tensor:
        return relevance.sum(dim=(1, 2, 3), keepdim=True)

    def gate(arriving: Tensor) -> Tensor:
        if conserve == "none":
            return masks[0] * arriving
        parts = [mask * arriving for mask in masks]
        sums = torch.stack([total(part) for part in parts])
        whole = sums.sum(dim=0).abs() if conserve == "paper" else sums.abs().sum(dim=0)
        carried = torch.zeros_like(arriving)
        for part, value in zip(parts, sums, strict=True):
            share = safe_divide(value.abs(), whole) * total(arriving)
            carried = carried + part * safe_divide(share, value)
        return carried

    return gate
