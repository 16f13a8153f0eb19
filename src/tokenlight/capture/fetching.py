"""Numbers on their way from the device, asked for at once and waited for when they are read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


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
