"""Kernels that Triton compiles, where it is installed; plain steps do the same wherever it is not."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

TYPES = (torch.float16, torch.bfloat16, torch.float32)


def has_kernels(given: Tensor) -> bool:
    """Whether there are kernels for a tensor such as this."""
    return given.is_cuda and given.dtype in TYPES and _installed()


def by_kernel(name: str, given: Any, *more: Any, **how: Any) -> Any:
    """What the function ``name`` of a module of kernels gives for tensors; None where there is no kernel for
    the first of them, or a device has less memory beside its cores than it takes."""
    first = given if isinstance(given, Tensor) else given[0]
    if not has_kernels(first):
        return None
    module, function = name.split(".")
    kernel = getattr(import_module(f"tokenlight.capture.{module}"), function)
    try:
        with torch.no_grad(), torch.cuda.device(first.device):
            return kernel(given, *more, **how)
    except import_module("triton.runtime.errors").OutOfResources:
        return None


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
