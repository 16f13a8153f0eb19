"""How the pass of the current thread reaches its device: eagerly, or while a CUDA graph is captured.

Code inside a pass never asks whether a graph is being captured. It asks the current :class:`Executor` to send
numbers, to read a flag or to copy a result, and each executor does what it can at that moment. The
default is eager. ``accel/graphs.py`` uses the two others: :class:`LoggingExecutor` remembers what one eager
pass sends, and :class:`CaptureExecutor` reads the same tensors again while the pass is captured.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

RowT = TypeVar("RowT")
MakeTensor = Callable[[Any], Tensor]


class NotCapturable(Exception):
    """The captured pass needs something that differs in the next batch, so no graph can replay it."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """A tensor that a pass sent to the device.

    Attributes:
        tensor: The tensor on the device, which a captured graph reads at its address.
        remake: Makes the tensor for the targets of another batch; None if it depends only on shapes.
    """

    tensor: Tensor
    remake: MakeTensor | None


class UnreadableRows(tuple):  # type: ignore[type-arg]
    """The rows of a batch while its pass is captured: they can be counted, but not read."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotCapturable

    __iter__ = __getitem__ = __contains__ = _refuse


class Executor:
    """Run a pass eagerly: every operation is queued on the device as Python reaches it."""

    def send(self, values: Any, make_tensor: MakeTensor, *, depends_on_targets: bool) -> Tensor:  # noqa: ARG002
        """Return ``make_tensor(values)``, a tensor on the device.

        Args:
            values: What the tensor is made from: numbers on the host.
            make_tensor: Copies the values to the device.
            depends_on_targets: Whether other targets of the same texts would give other values. Such a
                tensor is made anew before a replay.
        """
        return make_tensor(values)

    def copy_to_host(self, tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Start to copy ``tensor`` to the CPU as float64.

        Returns:
            The copy, and an event after which it is complete; None if it already is.
        """
        if tensor.device.type == "cuda":
            values = tensor.double().to("cpu", non_blocking=True)
            return values, torch.cuda.current_stream(tensor.device).record_event()
        # Some devices have no float64, so the copy comes first.
        return tensor.cpu().double(), None

    def read_flag(self, condition: Callable[[], bool], *, fallback: bool) -> bool:  # noqa: ARG002
        """Return ``condition()``, which may wait for the device; ``fallback`` where nothing can wait."""
        return condition()

    def check_can_read(self) -> None:
        """Raise :class:`NotCapturable` where values of this batch must not be read."""

    def guard_rows(self, rows: Sequence[RowT]) -> tuple[RowT, ...]:
        """Return ``rows`` in the form in which a method may use them."""
        return tuple(rows)


@dataclass(eq=False)
class LoggingExecutor(Executor):
    """Run a pass eagerly and remember, in order, what it sends to the device."""

    transfers: list[Transfer] = field(default_factory=list)

    def send(self, values: Any, make_tensor: MakeTensor, *, depends_on_targets: bool) -> Tensor:
        """Return ``make_tensor(values)`` and log it."""
        tensor = make_tensor(values)
        remake = make_tensor if depends_on_targets else None
        self.transfers.append(Transfer(tensor, remake))
        return tensor


@dataclass(eq=False)
class CaptureExecutor(Executor):
    """Run a pass while its CUDA graph is captured: nothing can be sent, fetched or waited for.

    Args:
        transfers: Tensors that an eager pass of the same batch sent; the captured pass reads them.
    """

    transfers: list[Transfer]
    num_read: int = 0

    @property
    def has_read_all(self) -> bool:
        """Whether the captured pass asked for exactly as many tensors as the eager one sent."""
        return self.num_read == len(self.transfers)

    def send(self, values: Any, make_tensor: MakeTensor, *, depends_on_targets: bool) -> Tensor:  # noqa: ARG002
        """Return the tensor that the eager pass sent at this point."""
        transfer = self.transfers[self.num_read]
        self.num_read += 1
        return transfer.tensor

    def copy_to_host(self, tensor: Tensor) -> tuple[Tensor, None]:
        """Leave the values on the device; they are copied after each replay."""
        return tensor.double(), None

    def read_flag(self, condition: Callable[[], bool], *, fallback: bool) -> bool:  # noqa: ARG002
        """Return ``fallback``: the flag of another batch may differ, and nothing can be read now."""
        return fallback

    def check_can_read(self) -> None:
        """Refuse: what is read now would be frozen into the graph."""
        raise NotCapturable

    def guard_rows(self, rows: Sequence[RowT]) -> tuple[RowT, ...]:
        """Return rows that refuse to be read."""
        return UnreadableRows(rows)


class _ExecutorState(threading.local):
    executor: Executor = Executor()


# This stays thread-local: functions deep inside a pass, some of them called by transformers with a fixed
# signature, need it, and two threads may explain two models at the same time.
_state = _ExecutorState()


def get_current_executor() -> Executor:
    """Return the executor of the pass that this thread runs."""
    return _state.executor


@contextmanager
def executing_with(executor: Executor) -> Iterator[None]:
    """Run the passes of this thread by ``executor``."""
    previous = _state.executor
    _state.executor = executor
    try:
        yield
    finally:
        _state.executor = previous
