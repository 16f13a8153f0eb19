"""AttnLRP and CP-LRP as the gradient of a surrogate, for any model: written apart from the package.

The surrogate has the model's value, and as its plain gradient the one that the papers rewrite, made by
``detach`` alone: half of a product is ``a b/2`` with each factor a constant in turn, an activation is
``x`` times the constant ``f(x)/x``, a norm divides by a constant deviation. No rule, no module looked
at, no graph walked: norms are known by the ``rsqrt`` in them, activations from a list of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers.activations
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.models.bloom import modeling_bloom
from transformers.models.esm import modeling_esm

ACTIVATIONS = {
    "gelu", "relu", "silu", "tanh", "sigmoid", "erf", "pow", "__pow__", "square", "clamp", "softplus",
    "relu6", "mish", "elu",
}  # fmt: skip
PRODUCTS = {"matmul", "__matmul__", "bmm", "mm"}
GATES = {"mul", "multiply", "__mul__", "__rmul__", "mul_"}
DEVIATIONS = {"rsqrt", "sqrt", "reciprocal", "norm"}
QUOTIENTS = {"div", "__truediv__", "true_divide", "div_"}


def requires_grad(value: Any) -> bool:
    """Return whether a value is a tensor with a gradient."""
    return isinstance(value, torch.Tensor) and value.requires_grad


def with_constant_slope(features: Tensor, output: Tensor) -> Tensor:
    """Return ``output`` with the gradient of ``features`` times a constant."""
    slope = torch.where(features == 0, 0.0, output / features)
    return features * slope.detach() + (output - features * slope).detach()


class Surrogate(TorchFunctionMode):
    """Replace each operation by one with the gradient of the papers."""

    def __init__(self, *, constant_maps: bool) -> None:
        super().__init__()
        self.constant_maps = constant_maps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "einsum":
            factors = args[1] if isinstance(args[1], list | tuple) else args[1:]
            if sum(map(requires_grad, factors)) == 2:
                return self.multiply(
                    lambda first, second: torch.einsum(args[0], first, second), *factors
                )
        replacement = getattr(self, f"decomposed_{name}", None)
        if not any(map(requires_grad, (*args, *kwargs.values()))):
            return func(*args, **kwargs)
        if replacement is not None:
            with self:
                return replacement(*args, **kwargs)
        has_two_activations = len(args) > 1 and requires_grad(args[0]) and requires_grad(args[1])
        if has_two_activations:
            return self.replace_binary(name, func, *args)
        return self.replace_unary(name, func, args, kwargs)

    def replace_unary(self, name: str, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Run an operation with one activation."""
        if name in DEVIATIONS:
            return func(*args, **kwargs).detach()
        if name in ACTIVATIONS and requires_grad(args[0]):
            return with_constant_slope(args[0], func(*args, **kwargs))
        if name in QUOTIENTS and requires_grad(args[1]):
            return torch.div(args[0], args[1].detach())
        return func(*args, **kwargs)

    def replace_binary(
        self, name: str, func: Any, first: Tensor, second: Tensor, *others: Any
    ) -> Tensor:
        """Run an operation with two activations."""
        if name in QUOTIENTS:
            return torch.div(first, second.detach())
        if name in GATES:
            return self.halve_gradients(torch.mul, first, second)
        return (
            self.multiply(func, first, second) if name in PRODUCTS else func(first, second, *others)
        )

    def halve_gradients(
        self, function: Callable[..., Tensor], first: Tensor, second: Tensor
    ) -> Tensor:
        """Return ``function`` of both, each of which gets half of the gradient."""
        return function(first, second.detach()) / 2 + function(first.detach(), second) / 2

    def multiply(self, function: Callable[..., Tensor], first: Tensor, second: Tensor) -> Tensor:
        """Return a matrix product, whose first factor is a constant for CP-LRP."""
        if self.constant_maps:
            return function(first.detach(), second)
        return self.halve_gradients(function, first, second)

    def decomposed_baddbmm(
        self, offset: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        """Return ``baddbmm`` as a product and a sum."""
        return beta * offset + alpha * torch.bmm(batch1, batch2)

    def decomposed_normalize(
        self, features: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12
    ) -> Tensor:
        """Return the features divided by their norm, which is a constant."""
        return features / features.norm(p, dim, keepdim=True).clamp_min(eps).detach()

    def decomposed_layer_norm(
        self,
        features: Tensor,
        _shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Tensor:
        """Return a LayerNorm in single operations."""
        centered = features - features.mean(dim=-1, keepdim=True)
        normed = centered / torch.sqrt(features.var(dim=-1, correction=0, keepdim=True) + eps)
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias

    def decomposed_rms_norm(
        self, features: Tensor, _shape: Any, weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """Return an RMSNorm in single operations."""
        eps = torch.finfo(features.dtype).eps if eps is None else eps
        normed = features / torch.sqrt((features.detach() ** 2).mean(dim=-1, keepdim=True) + eps)
        return normed if weight is None else normed * weight

    def decomposed_scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        """Return attention in single operations."""
        groups = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return torch.matmul(torch.softmax(scores, dim=-1).nan_to_num(0.0), value)


@contextmanager
def constant_activation_slopes() -> Iterator[None]:
    """Give every activation of transformers a constant slope."""
    with ExitStack() as undo:
        classes = {
            kind for kind in vars(transformers.activations).values() if isinstance(kind, type)
        }
        for kind in classes:
            if issubclass(kind, torch.nn.Module) and "forward" in vars(kind):
                undo.enter_context(
                    mock.patch.object(kind, "forward", wrap_activation(kind.forward))
                )
        gelu = mock.patch.object(
            modeling_esm, "gelu", lambda x: with_constant_slope(x, functional.gelu(x))
        )
        undo.enter_context(gelu)
        bloom = modeling_bloom.BloomGelu
        undo.enter_context(mock.patch.object(bloom, "forward", wrap_activation(bloom.forward)))
        yield


def wrap_activation(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the forward of an activation, with a constant slope as its gradient."""

    def forward_with_constant_slope(self, features: Tensor) -> Tensor:
        """Return the activation's value with a constant slope."""
        return with_constant_slope(features, forward(self, features))

    return forward_with_constant_slope


def restart_graph(_module: Any, _args: Any, output: Any) -> Any:
    """Detach the embeddings, so that the gradient graph begins there."""
    if isinstance(output, tuple):  # I-BERT's table also gives its scale
        return (restart_graph(_module, _args, output[0]), *output[1:])
    return output.detach().requires_grad_().clone()


def compute_scores(
    model: Any, arguments: dict[str, Any], pick: Callable[[Any], Tensor], *, constant_maps: bool
) -> np.ndarray:
    """Return the relevance of the scalar ``pick(outputs)`` at each token of the embeddings' output."""
    model = model.requires_grad_(False)
    is_encoder_decoder = model.config.is_encoder_decoder  # the text comes in at two places
    parts = [model.get_encoder(), model.get_decoder()] if is_encoder_decoder else [model]
    handles = [part.get_input_embeddings().register_forward_hook(restart_graph) for part in parts]
    try:
        with constant_activation_slopes(), Surrogate(constant_maps=constant_maps):
            outputs = model(**arguments, output_hidden_states=True, return_dict=True)
        states = outputs.get("encoder_hidden_states") or outputs.hidden_states
        (gradient,) = torch.autograd.grad(pick(outputs), states[0])
    finally:
        for handle in handles:
            handle.remove()
    return (gradient * states[0]).sum(dim=-1)[0].detach().numpy()
