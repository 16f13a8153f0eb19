"""Everything about a model that an explanation must leave as it was."""

from __future__ import annotations

from typing import Any

import torch

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip


def take_snapshot(model: Any) -> dict[str, Any]:
    """Return hooks, attributes, flags and copies of the weights of a model."""
    return {
        "hooks": [tuple(tuple(getattr(m, table)) for table in HOOKS) for m in model.modules()],
        "attributes": [sorted(module.__dict__) for module in model.modules()],
        "forward": [module.__dict__.get("forward") for module in model.modules()],
        "training": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad is None for parameter in model.parameters()],
        "attention": [
            getattr(getattr(m, "config", None), "_attn_implementation", None)
            for m in model.modules()
        ],
        "padding": getattr(model.config, "pad_token_id", None),
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
    }


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Assert that two snapshots are equal, and name what differs."""
    for key, value in before.items():
        if key == "weights":
            assert value.keys() == after[key].keys()
            for name, tensor in value.items():
                assert torch.equal(tensor, after[key][name]), f"weight {name} changed"
        else:
            assert value == after[key], f"{key} changed"


def state_tree(model: Any) -> dict[str, Any]:
    """All that a model holds besides its weights: attributes, buffers, modules and config, by value."""
    tree: dict[str, Any] = {}
    for path, module in model.named_modules():
        tree[path] = type(module), module.training
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                tree[f"{path}.{name}"] = _frozen(value)
        for name, buffer in module._buffers.items():
            tree[f"{path}[{name}]"] = _frozen(buffer)
        config = vars(module).get("config")
        if config is not None:
            tree[f"{path}.config values"] = _frozen(vars(config))
    return tree


def find_changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs between two trees."""
    names = {**before, **after}
    return [name for name in names if repr(before.get(name)) != repr(after.get(name))]


def _frozen(value: Any) -> Any:
    """A copy that does not change with its original, and shows every number it holds."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {key: _frozen(entry) for key, entry in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return [_frozen(entry) for entry in value]
    if isinstance(value, str | int | float | bool | None | torch.dtype):
        return value
    return type(value).__name__, id(value)
