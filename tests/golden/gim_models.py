"""The two models of the golden GIM vectors, with the same weights on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert

TEXTS = [[2, 7, 31, 90, 18, 55, 64, 23, 3], [2, 44, 12, 83, 3]]


def build_gim_model(name: str) -> Any:
    """Return the model in float64.

    Its weights come from NumPy: those that torch draws differ in their last bits between processors.
    """
    model = tiny_bert() if name == "bert" else build_model(name).double()
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            values = generator.uniform(-0.3, 0.3, tuple(parameter.shape))
            is_norm_weight = parameter.dim() == 1 and parameter_name.endswith("weight")
            parameter.copy_(torch.from_numpy(values + 1.0 if is_norm_weight else values))
    return model
