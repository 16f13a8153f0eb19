"""How precisely a model computes: its dtype, and the settings of torch that round more coarsely than it."""

from typing import NamedTuple

import torch

# Products in TF32 keep 10 bits of a number, those in bfloat16 (which torch calls "bf16") keep 7.
EPS_BY_PRODUCT_PRECISION = {"tf32": 2.0**-10, "bf16": 2.0**-7}


class PrecisionSettings(NamedTuple):
    """The settings of torch that decide how a pass rounds.

    Attributes:
        product_precision: How matrix products of float32 are rounded: ``ieee``, ``tf32`` or ``bf16``.
        autocast_dtype: The dtype that autocast puts in the place of float32; None without autocast.
        is_deterministic: Whether only deterministic kernels are chosen.
    """

    product_precision: str = "ieee"
    autocast_dtype: torch.dtype | None = None
    is_deterministic: bool = False

    def compute_eps(self, dtype: torch.dtype) -> float:
        """Return the relative rounding error of the coarsest operation in a pass of a model in ``dtype``."""
        eps = torch.finfo(dtype).eps
        if self.autocast_dtype is not None and dtype != torch.float64:
            eps = max(eps, torch.finfo(self.autocast_dtype).eps)
        if dtype == torch.float32:
            eps = max(eps, EPS_BY_PRODUCT_PRECISION.get(self.product_precision, 0.0))
        return float(eps)


def read_precision_settings(device: torch.device) -> PrecisionSettings:
    """Read the settings that are in force on ``device``.

    The precision of products is read where torch keeps it for each backend. Older names (``allow_tf32``,
    ``get_float32_matmul_precision``) raise an error if a user has set it by the new one.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    precision = str(backend.matmul.fp32_precision)
    autocast_dtype: torch.dtype | None = None
    if torch.is_autocast_enabled(device.type):
        autocast_dtype = torch.get_autocast_dtype(device.type)
    return PrecisionSettings(
        product_precision=precision if precision in EPS_BY_PRODUCT_PRECISION else "ieee",
        autocast_dtype=autocast_dtype,
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def compute_rounding_eps(device: torch.device, dtype: torch.dtype) -> float:
    """Return the relative rounding error of one operation, the coarsest that takes part in a pass.

    Args:
        device: The device that computes.
        dtype: The dtype of the model.

    Returns:
        The eps of the dtype, of the dtype that autocast puts in its place, or of float32 products in TF32
        or bfloat16.
    """
    return read_precision_settings(device).compute_eps(dtype)
