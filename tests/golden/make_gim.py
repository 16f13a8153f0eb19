"""Compute GIM with the authors' package for two tiny models, in float64, and keep it beside this file.

Run once where gim-explain (0.1.4) is installed: ``python -m tests.golden.make_gim``. Every array is ``text
token``: the embedding of each word times its gradient, 0 behind the end of a text.

The package sets a temperature where a model calls ``softmax``, and shares where it calls
``scaled_dot_product_attention``, which calls no softmax of Python; so that function is written out here, and
both apply, as they do in a model of TransformerLens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import gim
import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor
from torch.nn import functional

from tests.golden.gim_models import TEXTS, build_gim_model


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> Tensor:
    """Scaled dot-product attention through a softmax that can be patched."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * factor
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return functional.softmax(scores, dim=-1) @ value


def scores(model: Any, ids: list[int]) -> np.ndarray:
    """Embedding × gradient of logit 1, by token."""
    embeddings = model.get_input_embeddings()(torch.tensor([ids])).detach().requires_grad_()
    with gim.GIM(model):
        logits = model(inputs_embeds=embeddings).logits
        (gradient,) = torch.autograd.grad(logits[0, 1], embeddings)
    return (embeddings * gradient).sum(dim=-1)[0].detach().numpy()


def main() -> None:
    """Compute the vectors with GIM's own package and store them."""
    models = {name: build_gim_model(name) for name in ("bert", "gpt2")}
    torch.set_default_dtype(torch.float64)  # the package makes its norms in the default dtype
    arrays = {}
    for name, model in models.items():
        model.set_attn_implementation("sdpa")
        with mock.patch.object(functional, "scaled_dot_product_attention", attend):
            rows = [scores(model, ids) for ids in TEXTS]
        width = max(map(len, rows))
        arrays[name] = np.stack([np.pad(row, (0, width - len(row))) for row in rows])
    save_file(arrays, Path(__file__).parent / "vectors" / "gim.safetensors")


if __name__ == "__main__":
    main()
