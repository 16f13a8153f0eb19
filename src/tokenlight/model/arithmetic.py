"""How precisely a model computes: its dtype, and the settings of torch that round more coarsely than it."""

import torch

# Products in TF32 keep 10 bits of a number, those in bfloat16 (which torch calls "bf16") keep 7.
EPS_BY_PRODUCT_PRECISION = {"tf32": 2.0**-10, "bf16": 2.0**-7}


def float32_product_precision(device: torch.device) -> str:
    """Return how matrix products of float32 are rounded on ``device``: ``ieee``, ``tf32`` or ``bf16``.

    The setting is read where torch keeps it for each backend. Older names (``allow_tf32``,
    ``get_float32_matmul_precision``) raise an error if a user has set it by the new one.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    precision = str(backend.matmul.fp32_precision)
    return precision if precision in EPS_BY_PRODUCT_PRECISION else "ieee"


def arithmetic_eps(device: torch.device, dtype: torch.dtype) -> float:
    """Return the relative rounding error of one operation, the coarsest that takes part in a pass.

    Args:
        device: The device that computes.
        dtype: The dtype of the model.

    Returns:
        The eps of the dtype, of the dtype that autocast puts in its place, or of float32 products in TF32
        or bfloat16.
    """
    eps = torch.finfo(dtype).eps
    if torch.is_autocast_enabled(device.type) and dtype != torch.float64:
        eps = max(eps, torch.finfo(torch.get_autocast_dtype(device.type)).eps)
    if dtype == torch.float32:
        precision = float32_product_precision(device)
        eps = max(eps, EPS_BY_PRODUCT_PRECISION.get(precision, 0.0))
    return float(eps)
