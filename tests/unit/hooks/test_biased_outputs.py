"""The biases of each block are found; models whose blocks or tokens are not known are refused."""

import pytest
import torch
from torch import nn

from tests.helpers.expect import expect_error
from tests.helpers.families import build_model
from tests.helpers.tiny import tiny_bert
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.biased_outputs import captured_biased_outputs
from tokenlight.hooks.blocks import list_blocks

IDS = torch.tensor([[5, 6, 7]])


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_every_bias_of_a_block_is_captured_once_per_layer(family):
    model = build_model(family)
    model(IDS, output_hidden_states=True)  # transformers adds hooks of its own in the first pass
    num_hooks = sum(len(module._forward_hooks) for module in model.modules())
    with captured_biased_outputs(model, model) as captured:
        num_layers = len(model(IDS, output_hidden_states=True).hidden_states) - 1
    assert sorted({biased.layer for biased in captured}) == list(range(num_layers))
    (block, *_) = list_blocks(model)
    names = [name for name, _ in block.named_parameters() if name.endswith("bias")]
    for layer in range(num_layers):
        assert sum(biased.layer == layer for biased in captured) == len(names)
    for biased in captured:
        assert biased.output.shape == (1, 3, len(biased.bias))
    assert sum(len(module._forward_hooks) for module in model.modules()) == num_hooks


def test_a_model_without_known_blocks_is_refused():
    model = build_model("albert")  # its blocks are no layers of transformers
    with (
        expect_error(UnsupportedModel, "blocks-unknown", mentions="Albert"),
        captured_biased_outputs(model, model),
    ):
        pass


def test_a_module_that_does_not_return_one_vector_per_token_is_refused():
    model = tiny_bert()
    (block, *_) = list_blocks(model)
    block.intermediate.dense = nn.Sequential(block.intermediate.dense, nn.Flatten(0, 1))
    norm = nn.LayerNorm(block.intermediate.dense[0].out_features)
    block.intermediate.dense.append(norm.to(model.dtype))
    with (
        expect_error(UnsupportedModel, "bias-not-per-token", mentions="LayerNorm"),
        captured_biased_outputs(model, model),
        torch.no_grad(),
    ):
        model(IDS)
