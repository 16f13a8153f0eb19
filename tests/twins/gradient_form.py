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


def active(value):
    return isinstance(value, torch.Tensor) and value.requires_grad


def bent(features, output):
    """``output`` as ``features`` times a constant."""
    slope = torch.where(features == 0, 0.0, output / features)
    return features * slope.detach() + (output - features * slope).detach()


class Surrogate(TorchFunctionMode):
    """Swap each operation for one with the papers' gradient."""

    def __init__(self, *, constant_maps):
        super().__init__()
        self.constant_maps = constant_maps

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "einsum":
            factors = args[1] if isinstance(args[1], list | tuple) else args[1:]
            if sum(map(active, factors)) == 2:
                return self.product(
                    lambda first, second: torch.einsum(args[0], first, second), *factors
                )
        replacement = getattr(self, f"written_{name}", None)
        if not any(map(active, (*args, *kwargs.values()))):
            return func(*args, **kwargs)
        if replacement is not None:
            with self:
                return replacement(*args, **kwargs)
        has_two_activations = len(args) > 1 and active(args[0]) and active(args[1])
        if has_two_activations:
            return self.of_two(name, func, *args)
        return self.of_one(name, func, args, kwargs)

    def of_one(self, name, func, args, kwargs):
        """A function of one activation."""
        if name in DEVIATIONS:
            return func(*args, **kwargs).detach()
        if name in ACTIVATIONS and active(args[0]):
            return bent(args[0], func(*args, **kwargs))
        if name in QUOTIENTS and active(args[1]):
            return torch.div(args[0], args[1].detach())
        return func(*args, **kwargs)

    def of_two(self, name, func, first, second, *others):
        """A function of two."""
        if name in QUOTIENTS:
            return torch.div(first, second.detach())
        if name in GATES:
            return self.halved(torch.mul, first, second)
        return (
            self.product(func, first, second) if name in PRODUCTS else func(first, second, *others)
        )

    def halved(self, function, first, second):
        return function(first, second.detach()) / 2 + function(first.detach(), second) / 2

    def product(self, function, first, second):
        if self.constant_maps:
            return function(first.detach(), second)
        return self.halved(function, first, second)

    def written_baddbmm(self, offset, batch1, batch2, *, beta=1, alpha=1):
        return beta * offset + alpha * torch.bmm(batch1, batch2)

    def written_normalize(self, features, p=2.0, dim=1, eps=1e-12):
        return features / features.norm(p, dim, keepdim=True).clamp_min(eps).detach()

    def written_layer_norm(self, features, _shape, weight=None, bias=None, eps=1e-5, *_):
        centred = features - features.mean(dim=-1, keepdim=True)
        normed = centred / torch.sqrt(features.var(dim=-1, correction=0, keepdim=True) + eps)
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias

    def written_rms_norm(self, features, _shape, weight=None, eps=None):
        eps = torch.finfo(features.dtype).eps if eps is None else eps
        normed = features / torch.sqrt((features.detach() ** 2).mean(dim=-1, keepdim=True) + eps)
        return normed if weight is None else normed * weight

    def written_scaled_dot_product_attention(
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
def activations_bent():
    """Every activation that transformers writes out itself, as ``x`` times a constant."""
    with ExitStack() as undo:
        classes = {
            kind for kind in vars(transformers.activations).values() if isinstance(kind, type)
        }
        for kind in classes:
            if issubclass(kind, torch.nn.Module) and "forward" in vars(kind):
                undo.enter_context(mock.patch.object(kind, "forward", _bending(kind.forward)))
        gelu = mock.patch.object(modeling_esm, "gelu", lambda x: bent(x, functional.gelu(x)))
        undo.enter_context(gelu)
        bloom = modeling_bloom.BloomGelu
        undo.enter_context(mock.patch.object(bloom, "forward", _bending(bloom.forward)))
        yield


def _bending(forward):
    def through(self, features):
        return bent(features, forward(self, features))

    return through


def _begun(_module, _args, output):
    if isinstance(output, tuple):  # I-BERT's table also gives its scale
        return (_begun(_module, _args, output[0]), *output[1:])
    return output.detach().requires_grad_().clone()


def scores(model, arguments, pick, *, constant_maps):
    """Relevance of ``pick(outputs)``, one number, at each token of the embeddings' output."""
    model = model.requires_grad_(False)
    is_encoder_decoder = model.config.is_encoder_decoder  # the text comes in at two places
    parts = [model.get_encoder(), model.get_decoder()] if is_encoder_decoder else [model]
    handles = [part.get_input_embeddings().register_forward_hook(_begun) for part in parts]
    try:
        with activations_bent(), Surrogate(constant_maps=constant_maps):
            outputs = model(**arguments, output_hidden_states=True, return_dict=True)
        states = outputs.get("encoder_hidden_states") or outputs.hidden_states
        (gradient,) = torch.autograd.grad(pick(outputs), states[0])
    finally:
        for handle in handles:
            handle.remove()
    return (gradient * states[0]).sum(dim=-1)[0].detach().numpy()
