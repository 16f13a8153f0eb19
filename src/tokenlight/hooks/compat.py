"""Private names of torch and transformers that instrumenting a model needs, in one place.

Written against torch 2.13 and transformers 5.22; pyproject.toml names the oldest releases allowed. When a new
release breaks tokenlight, look here first. The folders below this one have a few of their own:
``accel/modules.py`` and ``accel/graphs.py`` read the tables of ``torch.nn.Module`` (and
``torch._foreach_copy_``), and ``lrp/`` the graph nodes of autograd and the mark of a batched tensor.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

# torch has no public functions that walk nested tuples, lists and dicts; optree would be a new dependency.
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, masking_utils

__all__ = ["tree_leaves", "tree_map"]

# torch.nn.Module: the tables in which a forward hook is entered. Hooks must be taken out and put back without
# new handles, and there is no public way to list them.
FORWARD_HOOK_TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
# torch.nn.Module: the set that names buffers outside the state dict; a pass that registers one changes it.
NON_PERSISTENT_BUFFERS = "_non_persistent_buffers_set"

# transformers 5.22 (utils/output_capturing.py): set on a model once hooks that collect hidden states and
# attention maps are installed. They stay installed permanently, so we remove them.
OUTPUT_HOOKS_MARK = "_output_capturing_hooks_installed"
# transformers 5.22 (configuration_utils.py): the attribute behind the property ``_attn_implementation``.
# The property's setter also switches sub-configs, which are patched one by one here.
ATTENTION_ATTRIBUTE = "_attn_implementation_internal"
# transformers 5.22 (masking_utils.py): functions that decide from the values of a padding mask whether SDPA
# can run without one. One that a release lacks is left out.
MASK_CHECKS = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")


def list_weights(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """List the parameters of ``modules``; their own table is much faster than ``parameters()``."""
    weights: list[nn.Parameter] = []
    for module in modules:
        for weight in module._parameters.values():
            if weight is not None:
                weights.append(weight)
    return weights


def get_attribute_tables(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Return the tables in which a module keeps its attributes, buffers and submodules."""
    return vars(module), module._buffers, module._modules


def is_weighted_leaf(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own and no submodules."""
    return bool(module._parameters) and not module._modules


def get_next_hook_id() -> int:
    """Return the id of the next hook that any module gets; ids only grow."""
    return RemovableHandle.next_id


def count_writes(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, as autograd counts it."""
    return tensor._version


def attend_with_logsumexp(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, scaling: float
) -> tuple[Tensor, Tensor] | None:
    """Run the fused kernel that SDPA would choose, if it also returns the log-sum-exp of each row.

    ``scaled_dot_product_attention`` drops these sums, and computing them again costs half an attention.

    Returns:
        The output and the log-sum-exp (``batch head query``); None if SDPA would choose another kernel.
    """
    is_grouped = query.shape[1] != key.shape[1]
    backend = torch._fused_sdp_choice(
        query, key, value, None, 0.0, is_causal, scale=scaling, enable_gqa=is_grouped
    )
    if backend == SDPBackend.FLASH_ATTENTION.value:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        results = flash(query, key, value, 0.0, is_causal, scale=scaling)
    elif backend == SDPBackend.CUDNN_ATTENTION.value:
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        results = cudnn(query, key, value, None, True, 0.0, is_causal, scale=scaling)
    else:
        return None
    return results[0], results[1].reshape(query.shape[:3])


def find_mask_checks() -> dict[str, Callable[..., Any]]:
    """Return the functions named in ``MASK_CHECKS`` that this version of transformers has."""
    checks: dict[str, Callable[..., Any]] = {}
    for name in MASK_CHECKS:
        check = getattr(masking_utils, name, None)
        if check is not None:
            checks[name] = check
    return checks


def has_attention_switch(config: Any) -> bool:
    """Return whether ``config`` chooses an attention implementation."""
    return hasattr(config, ATTENTION_ATTRIBUTE)


def get_attention_implementation(config: Any) -> str | None:
    """Return the name of the attention implementation that ``config`` chooses; None if none."""
    name: str | None = getattr(config, "_attn_implementation", None)
    return name


def can_switch_attention(part: PreTrainedModel) -> bool:
    """Return whether the classes of a model call attention through ``AttentionInterface``."""
    return bool(part._can_set_attn_implementation())
