"""AttnLRP and CP-LRP end to end, against input × gradient of a BERT written out with the parts that
the papers hold constant held constant (Achtibat et al. 2024, appendix on efficient implementation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.lrp import attnlrp

ROWS = [[2, 9, 11, 13, 7, 22, 30, 41, 3], [2, 17, 8, 25, 3]]


def halve_gradient(tensor: Tensor) -> Tensor:
    """Return the same value with half the gradient."""
    return tensor / 2 + tensor.detach() / 2


def apply_as_constant_slope(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return an activation whose slope is constant: relevance passes unchanged."""
    return tensor * (function(tensor) / tensor).detach()


def normalize(tensor: Tensor, norm: Any) -> Tensor:
    """Return a LayerNorm whose deviation is constant."""
    deviation = (tensor.var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
    return (tensor - tensor.mean(dim=-1, keepdim=True)) / deviation * norm.weight + norm.bias


def attend(state: Tensor, block: Any, *, constant_maps: bool) -> Tensor:
    """Return the output of a block's attention; products share their gradient."""
    attention = block.attention.self

    def split_heads(layer: Any) -> Tensor:
        """Return the layer's output, ``batch head token width``."""
        by_head = layer(state).unflatten(-1, (attention.num_attention_heads, -1))
        return by_head.transpose(1, 2)

    query = split_heads(attention.query)
    key = split_heads(attention.key)
    value = split_heads(attention.value)
    scores = halve_gradient(query) @ halve_gradient(key).transpose(-1, -2) / query.shape[-1] ** 0.5
    maps = scores.softmax(dim=-1)
    context = (
        maps.detach() @ value if constant_maps else halve_gradient(maps) @ halve_gradient(value)
    )
    return context.transpose(1, 2).reshape(state.shape)


def compute_scores(model: Any, ids: list[int], label: int, *, constant_maps: bool) -> np.ndarray:
    """Return hidden state 0 × its gradient, summed over the hidden axis, of one text."""
    with torch.no_grad():
        start = model.bert.embeddings(torch.tensor([ids]))
    state = start.requires_grad_()
    for block in model.bert.encoder.layer:
        context = attend(state, block, constant_maps=constant_maps)
        output = block.attention.output
        middle = normalize(output.dense(context) + state, output.LayerNorm)
        inner = apply_as_constant_slope(block.intermediate.dense(middle), functional.gelu)
        state = normalize(block.output.dense(inner) + middle, block.output.LayerNorm)
    pooled = apply_as_constant_slope(model.bert.pooler.dense(state[:, 0]), torch.tanh)
    logit = model.classifier(pooled)[0, label]
    (gradient,) = torch.autograd.grad(logit, start)
    return (gradient * start).sum(dim=-1)[0].detach().numpy()


@pytest.mark.parametrize("label", range(3))
@pytest.mark.parametrize("row", ROWS, ids=len)
@pytest.mark.parametrize(("method", "constant_maps"), [("attnlrp", False), ("cp_lrp", True)])
def test_relevance_is_input_times_the_gradient_of_the_papers(
    monkeypatch, method, constant_maps, row, label
):
    monkeypatch.setattr(attnlrp, "EPSILON", 1e-13)  # the gradient does without
    model = tiny_bert()
    attribution = Explainer(model).explain(Tokens.from_ids([row]), method, target=label)
    expected = compute_scores(model, row, label, constant_maps=constant_maps)
    np.testing.assert_allclose(
        attribution.scores, expected, rtol=0, atol=1e-8 * np.abs(expected).max()
    )
