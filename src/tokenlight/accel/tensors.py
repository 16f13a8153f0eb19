"""Tensors in float32 or wider: one by one, as lazy sequences, and their dot products."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tokenlight.accel.kernels import run_kernel

# Upcast tensors that need more bytes than this are made one by one.
MAX_KEPT_BYTES = 1 << 32
# A GPU prefers few large steps: this many elements are stacked. On other devices stacking is a wasted copy.
MAX_STACKED_ELEMENTS = {"cuda": 1 << 28}
FLOAT32_BYTES = 4


def upcast(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """Return ``tensor`` in float32 where it is in half precision, on ``device`` if one is given."""
    return tensor.to(device or tensor.device, torch.promote_types(tensor.dtype, torch.float32))


def dequantize(tensor: Tensor) -> Tensor:
    """Return a weight as plain numbers; quantized, it may be of a tensor class of torchao or quanto."""
    has_own_numbers = type(tensor).dequantize is Tensor.dequantize
    return tensor if has_own_numbers else tensor.dequantize()


def upcast_all(
    tensors: Sequence[Any], convert: Callable[[int, Any], Tensor], *, is_lazy: bool = False
) -> Sequence[Tensor]:
    """Return ``convert(index, tensor)`` of every tensor.

    Args:
        tensors: Tensors, or anything that ``convert`` turns into one.
        convert: Called with the index and the item.
        is_lazy: Convert each item when it is read. Items of more than ``MAX_KEPT_BYTES`` always are.
    """
    lazy_tensors = LazyTensors(tensors, convert, range(len(tensors)))
    if is_lazy:
        return lazy_tensors
    num_elements = sum(tensor.numel() for tensor in tensors)
    if FLOAT32_BYTES * num_elements > MAX_KEPT_BYTES:
        return lazy_tensors
    return list(lazy_tensors)


class LazyTensors(Sequence[Tensor]):
    """A sequence that converts each tensor when it is read and keeps none of them."""

    def __init__(
        self, tensors: Sequence[Any], convert: Callable[[int, Any], Tensor], indices: range
    ) -> None:
        self._tensors = tensors
        self._convert = convert
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        selected = self._indices[index]
        if isinstance(selected, range):
            return LazyTensors(self._tensors, self._convert, selected)
        return self._convert(selected, self._tensors[selected])


def compute_dot_products(
    first: Sequence[Tensor], second: Sequence[Tensor], device: torch.device
) -> Tensor:
    """Compute dot products over the last axis of each pair of tensors.

    Args:
        first: Tensors ``batch token hidden``.
        second: As many tensors of the same shape.
        device: Where the result shall be.

    Returns:
        ``batch pair token``, float32 or wider.
    """
    if all(tensor.device == device for tensor in (*first, *second)):
        products: Tensor | None = run_kernel("dot_kernel.compute_dots", first, second)
        if products is not None:
            return products
    step = max(1, MAX_STACKED_ELEMENTS.get(device.type, 0) // first[0].numel())
    chunks: list[Tensor] = []
    for start in range(0, len(first), step):
        first_stack = _stack_upcast(first[start : start + step], device)
        second_stack = _stack_upcast(second[start : start + step], device)
        chunks.append(torch.linalg.vecdot(first_stack, second_stack))
    return torch.cat(chunks, dim=1)


def _stack_upcast(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack tensors ``batch token hidden`` as ``batch tensor token hidden``."""
    return upcast(torch.stack([tensor.detach().to(device) for tensor in tensors], dim=1))
