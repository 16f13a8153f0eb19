"""DeepLIFT's rescale rule: the gradient of an activation becomes its slope between text and baseline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import activations

from tokenlight.hooks.instrument import locked_model
from tokenlight.hooks.patching import forward_hooks

RescaledModules = Literal["modules", "activations", "none"]
# The activations of torch.nn to which Captum's DeepLift adds hooks.
CAPTUM_ACTIVATIONS = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus)
# Where the inputs of text and baseline differ by less, their slope consists of rounding errors.
MIN_INPUT_DIFFERENCE = 1e-10


@contextmanager
def applied_rescale_rule(model: nn.Module, which: RescaledModules) -> Iterator[None]:
    """Apply the rescale rule in backward passes inside the block.

    The first half of each batch must be texts, the second half their baselines.

    Args:
        model: The model.
        which: ``modules``: activations of torch.nn, as in Captum; ``activations``: also those of
            transformers; ``none``: the plain gradient.
    """
    classes = _list_activation_classes(which)
    chosen = [module for module in model.modules() if isinstance(module, classes)]
    with locked_model(model), forward_hooks(chosen, post_hook=_apply_rescale_rule):
        yield


def _list_activation_classes(which: RescaledModules) -> tuple[type[nn.Module], ...]:
    if which == "none":
        return ()
    classes: list[type[nn.Module]] = list(CAPTUM_ACTIVATIONS)
    if which == "activations":
        for value in vars(activations).values():
            if isinstance(value, type) and issubclass(value, nn.Module):
                classes.append(value)
    return tuple(classes)


def _apply_rescale_rule(module: nn.Module, args: Any, _kwargs: Any, output: Tensor) -> Any:
    """Return ``output`` with the slope Δoutput / Δinput as its gradient."""
    (inputs,) = args
    text_input, baseline_input = inputs.detach().chunk(2)
    text_output, baseline_output = output.detach().chunk(2)
    output_difference = text_output - baseline_output
    input_difference = text_input - baseline_input
    with torch.enable_grad():
        leaf = inputs.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(module.forward(leaf.clone()).sum(), leaf)
    text_gradient = gradient.chunk(2)[0]
    is_too_close = input_difference.abs() < MIN_INPUT_DIFFERENCE
    slope = torch.where(is_too_close, text_gradient, output_difference / input_difference)
    # The second summand is zero and carries the gradient.
    return output.detach() + torch.cat((slope, slope)) * (inputs - inputs.detach())
