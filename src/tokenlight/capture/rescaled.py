"""DeepLIFT's rescale rule: activations whose gradient is the slope between text and baseline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import activations

from tokenlight.capture.loan import hooked
from tokenlight.capture.rewired import locked

Rescale = Literal["modules", "activations", "none"]
# The torch.nn activations that Captum's DeepLift hooks.
MODULES = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus)
TOO_CLOSE = 1e-10  # inputs of text and baseline this near have a slope of rounding errors


class _Rescaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, before: Tensor, after: Tensor, slope: Tensor) -> Tensor:  # noqa: ARG004
        context.save_for_backward(slope)
        return after.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = context.saved_tensors
        return gradients[0] * slope, None, None


def _rescale(module: nn.Module, arguments: Any, _named: Any, after: Tensor) -> Any:
    """With Δ out / Δ in between the first half of the batch (texts) and the second (baselines)."""
    (before,) = arguments
    below, above = (tensor.detach().chunk(2) for tensor in (before, after))
    rise, run = above[0] - above[1], below[0] - below[1]
    with torch.enable_grad():
        inside = before.detach().requires_grad_(True)
        (own,) = torch.autograd.grad(module.forward(inside.clone()).sum(), inside)
    slope = torch.where(run.abs() < TOO_CLOSE, own.chunk(2)[0], rise / run)
    return _Rescaled.apply(before, after, torch.cat((slope, slope)))  # type: ignore[no-untyped-call]


@contextmanager
def rescaled(model: nn.Module, which: Rescale) -> Iterator[None]:
    """Within: the backward of activations follows the rescale rule; values stay as they are.

    The batch must hold texts first, then as many baselines.
    """
    kinds: tuple[type[nn.Module], ...] = () if which == "none" else MODULES
    if which == "activations":
        found = (own for own in vars(activations).values() if isinstance(own, type))
        kinds += tuple(own for own in found if issubclass(own, nn.Module))
    chosen = [module for module in model.modules() if isinstance(module, kinds)]
    with locked(model), hooked(chosen, leaving=_rescale):
        yield
