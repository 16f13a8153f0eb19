"""Numbers on their way to a device and from it, on which nobody waits before they are read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def sent(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers as a tensor on ``device``. A plain copy to a GPU waits for all that was queued there
    before; the GPU then waits in turn for what is queued next."""
    made = torch.as_tensor(values, dtype=dtype, device="cpu")  # whatever the default device is
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)


def widened(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """The same numbers, half precision in float32, where ``device`` says or where they are."""
    return tensor.to(device or tensor.device, torch.promote_types(tensor.dtype, torch.float32))


# A GPU likes few large steps: so many numbers are laid side by side; elsewhere that is one more copy.
STACKED = {"cuda": 1 << 28}


def dotted(first: Sequence[Tensor], second: Sequence[Tensor], device: torch.device) -> Tensor:
    """Dot products over the last axis of each pair of ``batch token hidden``: ``batch pair token``."""
    step = max(1, STACKED.get(device.type, 0) // first[0].numel())

    def beside(own: Sequence[Tensor]) -> Tensor:
        return widened(torch.stack([one.detach().to(device) for one in own], dim=1))

    found = [
        torch.linalg.vecdot(beside(first[i : i + step]), beside(second[i : i + step]))
        for i in range(0, len(first), step)
    ]
    return torch.cat(found, dim=1)


class Fetched:
    """A tensor as float64 numbers. Whoever reads them waits for the work that made them, not for
    what was queued after it."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._made: torch.cuda.Event | None = None
        if tensor.device.type == "cuda":
            self._values = tensor.double().to("cpu", non_blocking=True)
            self._made = torch.cuda.current_stream(tensor.device).record_event()
        else:  # some devices have no float64
            self._values = tensor.cpu().double()

    def arrived(self) -> np.ndarray:
        """The numbers; here the device is waited for."""
        if self._made is not None:
            self._made.synchronize()
        values: np.ndarray = self._values.numpy()
        return values
