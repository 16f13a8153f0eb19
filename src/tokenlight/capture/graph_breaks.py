"""A layer through which no gradient goes, though what it gives depends on what it is given."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tokenlight.errors import UnsupportedModel


def refused(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[RemovableHandle]:
    """Hooks by which the next pass is refused where it breaks the graph: gradients would be those of
    another model, mostly zero, and nobody would know."""
    for module in modules:
        if not module._modules:
            yield module.register_forward_hook(partial(_look, model), with_kwargs=True)


def _look(model: nn.Module, module: nn.Module, args: Any, named: Any, output: Any) -> None:
    given = (*args, *named.values())
    lost = isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad
    # Where gradients are off, somebody turned them off and knows.
    if not lost or not torch.is_grad_enabled() or not any(map(_is_active, given)):
        return
    with torch.no_grad():
        other = module.forward(*map(_turned, args), **{k: _turned(v) for k, v in named.items()})
    if torch.equal(output, other):  # it reads a shape alone, as a table of positions may
        return
    path = next(name for name, one in model.named_modules() if one is module)
    raise UnsupportedModel(
        f"the layer {path} ({type(module).__name__}) of {type(model).__name__} hands no gradient on, "
        "as kernels of weights packed for inference do (bitsandbytes in four bits): most of what the "
        "model does with its tokens would be left out. Load the model without that quantisation, or "
        "use a method that needs no gradient, such as occlusion or shapley."
    )


def _is_active(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _turned(value: Any) -> Any:
    return value.detach().flip(-1) if _is_active(value) else value
