"""Everything about a model that an explanation must leave as it was."""

from __future__ import annotations

from typing import Any

import torch

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip


def snapshot(model: Any) -> dict[str, Any]:
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


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    for key, value in before.items():
        if key == "weights":
            assert value.keys() == after[key].keys()
            for name, tensor in value.items():
                assert torch.equal(tensor, after[key][name]), f"weight {name} changed"
        else:
            assert value == after[key], f"{key} changed"
    return True
