"""Run a Triton kernel where there is one; callers do the same in plain torch where there is none."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def has_kernels(tensor: Tensor) -> bool:
    """Return whether kernels support the device and dtype of ``tensor``."""
    return tensor.is_cuda and tensor.dtype in KERNEL_DTYPES and _is_triton_installed()


def run_kernel(name: str, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function of a kernel module.

    Args:
        name: ``module.function``, where the module is one of ``tokenlight.accel``.
        tensors: A tensor or a sequence of them: the first argument of the function.
        *args: Its other arguments.
        **kwargs: Its keyword arguments.

    Returns:
        What the function returns; None if no kernel supports the tensors, or if the device has too
        little shared memory for it.
    """
    first = tensors if isinstance(tensors, Tensor) else tensors[0]
    if not has_kernels(first):
        return None
    module_name, function_name = name.split(".")
    # Kernel modules import triton, which is not installed everywhere.
    kernel = getattr(import_module(f"tokenlight.accel.{module_name}"), function_name)
    try:
        with torch.no_grad(), torch.cuda.device(first.device):
            return kernel(tensors, *args, **kwargs)
    except import_module("triton.runtime.errors").OutOfResources:
        return None


@cache
def _is_triton_installed() -> bool:
    return find_spec("triton") is not None
