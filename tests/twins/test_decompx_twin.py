"""DecompX (Modarressi et al., ACL 2023) without biases gives the scores of ``cp_lrp``.

DecompX carries one vector per input token through the model, forward, where ``cp_lrp`` takes one gradient.
This is a second writing from the paper: attention maps and the deviations of norms are constants, an
activation is a line through zero and the point where the model is (the paper's zero-origin slope), and biases
are left out. Then every step is linear, and a token's share of the logit does not depend on the direction in
which it is computed. The paper's own default also spreads biases over the tokens; that part is not here.
"""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.helpers.tiny import tiny_bert
from tokenlight import Explainer, Tokens
from tokenlight.lrp import attnlrp

ROWS = [(2, 17, 23, 3), (2, 40, 7, 31, 19, 8, 3)]


def normalize_parts(parts: Tensor, whole: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    """Center each part, ``token position hidden``, and divide by the deviation of the whole state."""
    centered = parts - parts.mean(dim=-1, keepdim=True)
    deviation = torch.sqrt(whole.var(dim=-1, unbiased=False, keepdim=True) + norm.eps)
    return centered / deviation * norm.weight


def split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Return ``… head position feature`` from ``… position hidden``."""
    return states.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def attend(whole: Tensor, attention: torch.nn.Module) -> Tensor:
    """Return the attention maps of the whole state, ``head query key``."""
    num_heads = attention.num_attention_heads
    queries = split_heads(attention.query(whole), num_heads)
    keys = split_heads(attention.key(whole), num_heads)
    return torch.softmax(queries @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5, dim=-1)


def decompose_block(parts: Tensor, whole: Tensor, block: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Return the parts after a block of BERT, and the whole state that the model computes."""
    attention = block.attention.self
    maps = attend(whole, attention)
    output = block.attention.output

    values = split_heads(attention.value(whole), attention.num_attention_heads)
    context = (maps @ values).transpose(-3, -2).flatten(-2)
    middle_before_norm = output.dense(context) + whole
    middle = output.LayerNorm(middle_before_norm)
    inner = block.intermediate.dense(middle)
    after_before_norm = block.output.dense(functional.gelu(inner)) + middle
    after = block.output.LayerNorm(after_before_norm)

    value_parts = split_heads(parts @ attention.value.weight.T, attention.num_attention_heads)
    context_parts = (maps @ value_parts).transpose(-3, -2).flatten(-2)
    middle_parts = context_parts @ output.dense.weight.T + parts
    middle_parts = normalize_parts(middle_parts, middle_before_norm, output.LayerNorm)
    slope = functional.gelu(inner) / inner
    inner_parts = middle_parts @ block.intermediate.dense.weight.T * slope
    after_parts = inner_parts @ block.output.dense.weight.T + middle_parts
    return normalize_parts(after_parts, after_before_norm, block.output.LayerNorm), after


@torch.no_grad()
def compute_shares(model: torch.nn.Module, row: tuple[int, ...], label: int) -> np.ndarray:
    """Return the share of each token in a logit."""
    whole = model.bert.embeddings(torch.tensor([row]))[0]
    # The part of a token is its own embedding at its own position.
    parts = torch.diag_embed(whole.T).permute(1, 2, 0)
    for block in model.bert.encoder.layer:
        parts, whole = decompose_block(parts, whole, block)
    pooled_input = model.bert.pooler.dense(whole[0])
    slope = torch.tanh(pooled_input) / pooled_input
    pooled_parts = parts[:, 0] @ model.bert.pooler.dense.weight.T * slope
    return (pooled_parts @ model.classifier.weight[label]).numpy()


@pytest.mark.parametrize("label", range(3))
@pytest.mark.parametrize("row", ROWS, ids=len)
def test_the_decomposed_tokens_have_the_scores_of_cp_lrp(monkeypatch, row, label):
    monkeypatch.setattr(attnlrp, "EPSILON", 1e-13)  # the paper does without
    model = tiny_bert()
    attribution = Explainer(model).explain(Tokens.from_ids([row]), "cp_lrp", target=label)
    expected = compute_shares(model, row, label)
    np.testing.assert_allclose(
        attribution.scores, expected, rtol=0, atol=1e-8 * np.abs(expected).max()
    )
