"""DeepLIFT's rescale rule: activations whose gradient is the slope between text and baseline."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import activations

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


def _slope(module: nn.Module, before: Tensor, after: Tensor) -> Tensor:
    """Δ out / Δ in between the first half of the batch (texts) and the second (baselines)."""
    below, above = (tensor.detach().chunk(2) for tensor in (before, after))
    rise, run = above[0] - above[1], below[0] - below[1]
    with torch.enable_grad():
        inside = before.detach().requires_grad_(True)
        (own,) = torch.autograd.grad(module.forward(inside.clone()).sum(), inside)
    slope = torch.where(run.abs() < TOO_CLOSE, own.chunk(2)[0], rise / run)
    return torch.cat((slope, slope))


@contextmanager
def rescaled(model: nn.Module, which: Rescale) -> Iterator[None]:
    """Within: the backward of activations follows the rescale rule; values stay as they are.

    The batch must hold texts first, then as many baselines.
    """
    kinds: tuple[type[nn.Module], ...] = () if which == "none" else MODULES
    if which == "activations":
        kinds += tuple(
            found
            for found in vars(activations).values()
            if isinstance(found, type) and issubclass(found, nn.Module)
        )

    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        (before,) = arguments
        return _Rescaled.apply(before, output, _slope(module, before, output))  # type: ignore[no-untyped-call]

    with ExitStack() as undo:
        undo.enter_context(locked(model))
        for module in model.modules():
            if isinstance(module, kinds):
                undo.callback(module.register_forward_hook(hook).remove)
        yield
