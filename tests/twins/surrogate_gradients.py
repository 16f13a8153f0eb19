"""AttnLRP and CP-LRP as the gradient of a surrogate, for any model: written apart from the package.

The surrogate has the model's value, and as its plain gradient the one that the papers rewrite, made by
``detach`` alone: half of a product is ``a b/2`` with each factor a constant in turn, an activation is
``x`` times the constant ``f(x)/x``, a norm divides by a constant deviation. No rule, no module looked
at, no graph walked: norms are known by the ``rsqrt`` in them, activations from a list of names.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
import transformers.activations
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


def requires_grad(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def with_constant_slope(features, output):
    """Return ``output`` with the gradient of ``features`` times a constant."""
    slope = torch.where(features == 0, 0.0, output / features)
    return features * slope.detach() + (output - features * slope).detach()


class Surrogate(TorchFunctionMode):
    """Replace each operation by one with the gradient of the papers."""

    def __init__(self, *, constant_maps):
        super().__init__()
        self.constant_maps = constant_maps

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "einsum":
            factors = args[1] if isinstance(args[1], list | tuple) else args[1:]
            if sum(map(requires_grad, factors)) == 2:
                return self.product(
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

    def replace_unary(self, name, func, args, kwargs):
        """Run an operation with one activation."""
        if name in DEVIATIONS:
            return func(*args, **kwargs).detach()
        if name in ACTIVATIONS and requires_grad(args[0]):
            return with_constant_slope(args[0], func(*args, **kwargs))
        if name in QUOTIENTS and requires_grad(args[1]):
            return torch.div(args[0], args[1].detach())
        return func(*args, **kwargs)

    def replace_binary(self, name, func, first, second, *others):
        """Run an operation with two activations."""
        if name in QUOTIENTS:
            return torch.div(first, second.detach())
        if name in GATES:
            return self.halve_gradients(torch.mul, first, second)
        return (
            self.product(func, first, second) if name in PRODUCTS else func(first, second, *others)
        )

    def halve_gradients(self, function, first, second):
        return function(first, second.detach()) / 2 + function(first.detach(), second) / 2

    def product(self, function, first, second):
        if self.constant_maps:
            return function(first.detach(), second)
        return self.halve_gradients(function, first, second)

    def decomposed_baddbmm(self, offset, batch1, batch2, *, beta=1, alpha=1):
        return beta * offset + alpha * torch.bmm(batch1, batch2)

    def decomposed_normalize(self, features, p=2.0, dim=1, eps=1e-12):
        return features / features.norm(p, dim, keepdim=True).clamp_min(eps).detach()

    def decomposed_layer_norm(self, features, _shape, weight=None, bias=None, eps=1e-5, *_):
        centered = features - features.mean(dim=-1, keepdim=True)
        normed = centered / torch.sqrt(features.var(dim=-1, correction=0, keepdim=True) + eps)
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias

    def decomposed_rms_norm(self, features, _shape, weight=None, eps=None):
        eps = torch.finfo(features.dtype).eps if eps is None else eps
        normed = features / torch.sqrt((features.detach() ** 2).mean(dim=-1, keepdim=True) + eps)
        return normed if weight is None else normed * weight

    def decomposed_scaled_dot_product_attention(
        self, query, key, value, attn_mask=None, is_causal=False, scale=None, **_
    ):
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
def constant_activation_slopes():
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


def wrap_activation(forward):
    def forward_with_constant_slope(self, features):
        return with_constant_slope(features, forward(self, features))

    return forward_with_constant_slope


def restart_graph(_module, _args, output):
    """Detach the embeddings, so that the gradient graph begins there."""
    if isinstance(output, tuple):  # I-BERT's table also gives its scale
        return (restart_graph(_module, _args, output[0]), *output[1:])
    return output.detach().requires_grad_().clone()


def compute_scores(model, arguments, pick, *, constant_maps):
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
