"""The precision of float32 products while a model is trained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tf32_products() -> Iterator[None]:
    """Round float32 products to TF32 inside the block where the device can do so."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
