"""Transfers to and from a device that do not wait for the work queued on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.accel.executor import get_current_executor


def to_device(
    values: Any,
    device: torch.device,
    dtype: torch.dtype | None = None,
    *,
    convert: Callable[[Any], Any] | None = None,
) -> Tensor:
    """Return ``values`` as a tensor on ``device``, without waiting for the work queued there.

    Args:
        values: Numbers, or the targets of a batch where ``convert`` is given.
        device: Where the tensor shall be.
        dtype: Its dtype; by default that of the values.
        convert: Turns targets into values. A CUDA graph calls it again for the targets of each batch.
    """

    def make_tensor(values: Any) -> Tensor:
        converted = values if convert is None else convert(values)
        # The tensor starts on the CPU, whatever torch's default device is.
        tensor = torch.as_tensor(converted, dtype=dtype, device="cpu")
        if device.type != "cuda":
            return tensor.to(device)
        return tensor.pin_memory().to(device, non_blocking=True)

    return get_current_executor().send(values, make_tensor, depends_on_targets=convert is not None)


def concatenate_rows(values: Sequence[Any]) -> np.ndarray:
    """Return the integers of all rows in one int64 array.

    A batch waits for this before its first kernel, and numpy takes four times as long as struct to read
    tuples.
    """
    if any(isinstance(row, np.ndarray) for row in values):
        return np.concatenate(values, dtype=np.int64)
    packed_rows = bytearray().join([pack(f"{len(row)}q", *row) for row in values])
    return np.frombuffer(packed_rows, dtype=np.int64)


class AsyncTensor:
    """The values of a tensor as float64, on their way to the CPU.

    Reading them waits for the operations that made the tensor, but not for those queued after it.
    """

    def __init__(self, tensor: Tensor) -> None:
        values, ready_event = get_current_executor().copy_to_host(tensor.detach())
        self._values = values
        self._ready_event = ready_event

    def refresh(self) -> "AsyncTensor":
        """Return the values that the last replay of a captured pass left on the device."""
        return AsyncTensor(self._values)

    def numpy(self) -> np.ndarray:
        """Wait for the values and return them."""
        get_current_executor().check_can_read()
        if self._ready_event is not None:
            self._ready_event.synchronize()
        values: np.ndarray = self._values.numpy()
        return values


@dataclass(frozen=True)
class Deferred:
    """A computation on values that are still on their way.

    Attributes:
        tensor: The values.
        compute: Called with the values, as an array, and the arguments of the call.
    """

    tensor: AsyncTensor
    compute: Callable[..., Any]

    def refresh(self) -> "Deferred":
        """Return the same computation on the values of the last replay."""
        return Deferred(self.tensor.refresh(), self.compute)

    def __call__(self, *args: Any) -> Any:
        return self.compute(self.tensor.numpy(), *args)
