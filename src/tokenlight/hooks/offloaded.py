"""Offloaded weights: accelerate keeps them on the CPU or on disk, and loads them while their module runs."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def find_execution_device(module: nn.Module, weight: Tensor) -> torch.device:
    """Return the device on which ``module`` computes: that of ``weight``, unless the weight is offloaded."""
    hook: Any = getattr(module, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    if weight.device.type != "meta" or device is None:
        return weight.device
    # accelerate counts GPUs.
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def loaded_weights(module: nn.Module) -> AbstractContextManager[None]:
    """Load the weights of ``module`` inside the block, if they are offloaded between its calls."""
    hook: Any = getattr(module, "_hf_hook", None)
    if not getattr(hook, "offload", False):
        return nullcontext()
    from accelerate.utils import align_module_device

    loaded: AbstractContextManager[None] = align_module_device(module)
    return loaded
