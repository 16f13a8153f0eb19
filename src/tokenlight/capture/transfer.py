"""Numbers on their way to a device and from it, on which nobody waits before they are read."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from struct import pack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenlight.capture.kernels import by_kernel
from tokenlight.capture.turns import lent


@dataclass
class Crossings:
    """What was sent to the device in one pass, in order, so that a recorded pass can read it again:
    each tensor, with how it is made of the targets where it is. ``repeating``: it is being read again,
    and nothing may be sent or fetched, since the pass is being recorded, not run."""

    sent: list[tuple[Tensor, Callable[[Any], Tensor] | None]] = field(default_factory=list)
    repeating: bool = False
    read: int = 0


class _Thread(threading.local):
    crossings: Crossings | None = None


_thread = _Thread()


def crossing(crossings: Crossings) -> AbstractContextManager[None]:
    """Within, on this thread: what is sent is kept in ``crossings``, or read from there again."""
    return lent([_thread], crossings=crossings)


class Unrepeatable(Exception):
    """A pass that is recorded reads what is another thing in the next batch."""


def repeating() -> bool:
    """Whether this thread records a pass for replay, when nothing can be asked of the device."""
    return _thread.crossings is not None and _thread.crossings.repeating


def sent(
    values: Any,
    device: torch.device,
    dtype: torch.dtype | None = None,
    *,
    by: Callable[[Any], Any] | None = None,
) -> Tensor:
    """Numbers as a tensor on ``device``, without waiting for what was queued there, as a plain copy would.
    ``by``: makes the numbers of ``values``, the targets of a batch, which are others in the next."""
    kept = _thread.crossings
    if kept is not None and kept.repeating:
        kept.read += 1
        return kept.sent[kept.read - 1][0]

    def made(values: Any) -> Tensor:
        numbers = values if by is None else by(values)
        # Made on the processor, whatever the default device is.
        found = torch.as_tensor(numbers, dtype=dtype, device="cpu")
        if device.type != "cuda":
            return found.to(device)
        return found.pin_memory().to(device, non_blocking=True)

    found = made(values)
    if kept is not None:
        kept.sent.append((found, None if by is None else made))
    return found


def joined(values: Sequence[Any]) -> np.ndarray:
    """All numbers of ``values`` in one array. A batch waits for this before its first kernel, and
    numpy takes four times as long as struct to read tuples."""
    if any(isinstance(row, np.ndarray) for row in values):
        return np.concatenate(values, dtype=np.int64)
    packed = bytearray().join([pack(f"{len(row)}q", *row) for row in values])
    return np.frombuffer(packed, dtype=np.int64)


def widened(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """The same numbers, half precision in float32, where ``device`` says or where they are."""
    return tensor.to(device or tensor.device, torch.promote_types(tensor.dtype, torch.float32))


def all_widened(
    tensors: Sequence[Any], widen: Callable[[int, Any], Tensor], *, in_turn: bool = False
) -> Sequence[Tensor]:
    """Tensors as ``widen`` gives them by number: in a list, unless each is made ``in_turn`` or they would
    take more than KEPT bytes."""
    found = Widened(tensors, widen, range(len(tensors)))
    kept = not in_turn and 4 * sum(one.numel() for one in tensors) <= KEPT
    return list(found) if kept else found


class Widened(Sequence[Tensor]):
    """Each of many tensors when it is asked for, and never kept."""

    def __init__(self, tensors: Sequence[Any], widen: Any, numbers: range) -> None:
        self._tensors, self._widen, self._numbers = tensors, widen, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        number = self._numbers[place]
        if isinstance(number, range):
            return Widened(self._tensors, self._widen, number)
        return self._widen(number, self._tensors[number])


KEPT = 1 << 32
# A GPU likes few large steps: so many numbers are laid side by side; elsewhere that is one more copy.
STACKED = {"cuda": 1 << 28}


def dotted(first: Sequence[Tensor], second: Sequence[Tensor], device: torch.device) -> Tensor:
    """Dot products over the last axis of each pair of ``batch token hidden``: ``batch pair token``."""
    if all(one.device == device for one in (*first, *second)):
        found: Tensor | None = by_kernel("dot_kernel.dots", first, second)
        if found is not None:
            return found
    step = max(1, STACKED.get(device.type, 0) // first[0].numel())

    def beside(own: Sequence[Tensor]) -> Tensor:
        return widened(torch.stack([one.detach().to(device) for one in own], dim=1))

    parts = [
        torch.linalg.vecdot(beside(first[i : i + step]), beside(second[i : i + step]))
        for i in range(0, len(first), step)
    ]
    return torch.cat(parts, dim=1)


class Fetched:
    """A tensor as float64 numbers: who reads them waits for what made them, not for what was queued since."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._made: torch.cuda.Event | None = None
        if repeating():
            self._values = tensor.double()  # of a pass that is recorded: see again()
        elif tensor.device.type == "cuda":
            self._values = tensor.double().to("cpu", non_blocking=True)
            self._made = torch.cuda.current_stream(tensor.device).record_event()
        else:  # some devices have no float64
            self._values = tensor.cpu().double()

    def again(self) -> "Fetched":
        """The numbers that a recorded pass left now."""
        return Fetched(self._values)

    def arrived(self) -> np.ndarray:
        """The numbers; here the device is waited for."""
        if repeating():
            raise Unrepeatable
        if self._made is not None:
            self._made.synchronize()
        values: np.ndarray = self._values.numpy()
        return values


@dataclass(frozen=True)
class Answer:
    """What is made of fetched numbers once they are there, and of ``more`` that is known by then."""

    fetched: Fetched
    read: Callable[..., Any]

    def again(self) -> "Answer":
        return Answer(self.fetched.again(), self.read)

    def __call__(self, *more: Any) -> Any:
        return self.read(self.fetched.arrived(), *more)
