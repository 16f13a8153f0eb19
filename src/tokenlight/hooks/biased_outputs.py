"""Capture the outputs of modules that add a bias inside the blocks of a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from tokenlight.accel.modules import list_modules
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.blocks import list_blocks
from tokenlight.hooks.offloaded import loaded_weights
from tokenlight.hooks.patching import forward_hooks


class BiasedOutput(NamedTuple):
    """Output of a module that adds a bias to every token.

    Attributes:
        layer: The block that it belongs to, counted from 0 in the order of calls.
        output: ``batch token feature``, on the graph.
        bias: ``feature``.
    """

    layer: int
    output: Tensor
    bias: Tensor


@contextmanager
def captured_biased_outputs(model: nn.Module, encoder: nn.Module) -> Iterator[list[BiasedOutput]]:
    """Capture the output of every module with a bias inside the blocks, in the order of calls.

    Args:
        model: The model, for its name in messages.
        encoder: The part of it that holds the blocks.

    Raises:
        UnsupportedModel: The blocks are not known, or a module does not return one vector per token.
    """
    blocks = list_blocks(encoder)
    if not blocks:
        raise UnsupportedModel(
            f"{type(model).__name__} does not say which of its modules are blocks, so the biases of each "
            "block are not known. Use cat, which leaves biases out.",
            code="blocks-unknown",
        )
    captured: list[BiasedOutput] = []
    num_calls = 0  # of blocks: a model may call one block several times

    def count_block(_module: nn.Module, _args: Any, _kwargs: Any) -> None:
        nonlocal num_calls
        num_calls += 1

    def capture(module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        bias: Any = module.bias
        if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[-1:] != bias.shape:
            raise UnsupportedModel(
                f"A {type(module).__name__} with a bias in {type(model).__name__} does not return one vector "
                "per token, so its share of a token is not known. Use cat, which leaves biases out.",
                code="bias-not-per-token",
            )
        # What a model computes without gradients, such as an index of tokens, adds nothing to the target.
        if output.requires_grad:
            with loaded_weights(module):
                bias = module.bias
                captured.append(BiasedOutput(num_calls - 1, output, bias.detach()))

    modules: dict[nn.Module, None] = {}  # in order, each once
    for block in blocks:
        modules.update(dict.fromkeys(filter(_has_bias, list_modules(block))))
    with forward_hooks(blocks, pre_hook=count_block), forward_hooks(modules, post_hook=capture):
        yield captured


def _has_bias(module: nn.Module) -> bool:
    return isinstance(getattr(module, "bias", None), Tensor)
