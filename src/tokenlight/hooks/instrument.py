"""Change a model for one pass: on this instance only, inside one ``with`` block, undone at its end."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.accel.modules import list_modules
from tokenlight.errors import UnsupportedModel
from tokenlight.hooks.attention_hook import ATTENTION_NAME, emulated_attention
from tokenlight.hooks.compat import (
    ATTENTION_ATTRIBUTE,
    FORWARD_HOOK_TABLES,
    OUTPUT_HOOKS_MARK,
    can_switch_attention,
    get_attention_implementation,
    get_next_hook_id,
    is_weighted_leaf,
    list_weights,
)
from tokenlight.hooks.locks import acquire_in_order
from tokenlight.hooks.model_cache import ModelLayout, SavedHook, get_model_cache
from tokenlight.hooks.patching import forward_hooks, patched_attributes
from tokenlight.hooks.state import PassState, preserved_state
from tokenlight.hooks.uncompiled import uncompiled_modules

# Families whose own backward pass is missing in evaluation mode, or an estimate.
FAMILIES_WITHOUT_GRADIENT = ("reformer", "yoso")


def locked_model(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Let no other thread instrument this model, or one that shares a part with it, inside the block."""
    return acquire_in_order(_get_layout(model, list_modules(model)).locks)


@contextmanager
def instrumented(
    model: PreTrainedModel,
    *,
    attention: str,
    gradients: bool,
    gradients_reach_embeddings: bool = True,
    pad_id: int | None = None,
    regime: tuple[int, ...] = (),
) -> Iterator[PassState]:
    """Run ``model`` in evaluation mode with frozen weights and a chosen attention implementation.

    Tensors made inside the block are never inference tensors. What the model changes of itself in the pass
    is restored.

    Args:
        model: The model.
        attention: Name of the attention implementation; ``unchanged`` for that of the model.
        gradients: Whether to record a graph. It begins at the token embeddings, so that no activations are
            held for weights.
        gradients_reach_embeddings: Whether gradients must reach the embeddings; False if the last hidden
            state is enough.
        pad_id: The padding id to use where the model's config has none.
        regime: The length regime of the batch (see model/regimes.py).

    Yields:
        What the pass changed in the model, filled in at the end of the block.

    Raises:
        UnsupportedModel: If gradients are needed and the model cannot give them, or if its attention
            cannot be replaced.
    """
    modules = list_modules(model)
    layout = _get_layout(model, modules)
    weights = list_weights(modules)
    if gradients:
        _check_gives_gradients(model, weights)
    with ExitStack() as cleanup:
        enter = cleanup.enter_context
        # The locks come first: until they are held, another thread may be changing the model.
        enter(acquire_in_order(layout.locks))
        enter(uncompiled_modules(modules))
        # State is saved before anything below changes it, and so restored after all of that is undone.
        state = enter(preserved_state(modules, layout.configs, layout.stateful, regime))
        enter(_reused_output_hooks(layout, modules))
        enter(_evaluation_mode(modules, weights))
        enter(_switched_attention(model, layout, attention))
        enter(_filled_pad_id(model, pad_id))
        # Leaving inference mode enables gradients, so the two settings are in this order.
        enter(torch.inference_mode(mode=False))
        enter(torch.set_grad_enabled(gradients))
        if gradients:
            enter(_graph_from_embeddings(layout, modules))
            # Once a pass went through without a break, further passes need no check.
            if gradients_reach_embeddings and not layout.has_unbroken_graph:
                enter(gradient_flow_checked(model, modules))
        yield state
        # The block ended without an error, so no layer broke the graph.
        layout.has_unbroken_graph |= gradients and gradients_reach_embeddings


def supports_attention_hook(model: PreTrainedModel) -> bool:
    """Return whether every part of the model calls attention through transformers' interface."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not all(can_switch_attention(part) for part in parts):
        return False
    try:
        with instrumented(model, attention=ATTENTION_NAME, gradients=False):
            return True
    except UnsupportedModel:
        return False


def _get_layout(model: PreTrainedModel, modules: list[nn.Module]) -> ModelLayout:
    return get_model_cache(model).get_layout(model, modules)


def _check_gives_gradients(model: PreTrainedModel, weights: Sequence[Tensor]) -> None:
    name = type(model).__name__
    if any(weight.is_inference() for weight in weights):
        raise UnsupportedModel(
            f"{name} was loaded inside torch.inference_mode(), but this method needs a gradient, which "
            "cannot be taken through weights made there. Load the model outside; explaining inside is fine.",
            code="model-of-inference-mode",
        )
    if model.config.model_type in FAMILIES_WITHOUT_GRADIENT:
        raise UnsupportedModel(
            f"The gradient of {name} in evaluation mode is not the derivative of its output. Use a method "
            "that needs no gradient, such as occlusion or shapley.",
            code="family-without-gradient",
        )


@contextmanager
def _evaluation_mode(modules: Sequence[nn.Module], weights: Sequence[Tensor]) -> Iterator[None]:
    """Switch modules to evaluation mode and freeze weights."""
    training_modules = [module for module in modules if module.training]
    # Inference tensors never require a gradient, and do not let the flag be set.
    trainable = [weight for weight in weights if weight.requires_grad and not weight.is_inference()]
    with (
        patched_attributes(training_modules, training=False),
        patched_attributes(trainable, requires_grad=False),
    ):
        yield


def _filled_pad_id(model: PreTrainedModel, pad_id: int | None) -> AbstractContextManager[None]:
    """Set the padding id of a config without one: a classifier reads the last token that is not it."""
    config = model.config.get_text_config()
    if pad_id is None or getattr(config, "pad_token_id", None) is not None:
        return nullcontext()
    return patched_attributes([config], pad_token_id=pad_id)


@contextmanager
def _reused_output_hooks(layout: ModelLayout, modules: list[nn.Module]) -> Iterator[None]:
    """Remove the hooks that transformers installs permanently on the first pass that returns states.

    The same hooks are put back for the next pass, which then need not install them again.
    """
    first_new_id = get_next_hook_id()
    with _restored_saved_hooks(layout, modules):
        unmarked = [i for i, module in enumerate(modules) if OUTPUT_HOOKS_MARK not in vars(module)]
        try:
            yield
        finally:
            _collect_installed_hooks(layout, modules, unmarked, first_new_id)


@contextmanager
def _restored_saved_hooks(layout: ModelLayout, modules: list[nn.Module]) -> Iterator[None]:
    """Put the hooks of an earlier pass, and their marks, in place inside the block."""
    marked_modules = [modules[index] for index in layout.marked_modules]
    if any(OUTPUT_HOOKS_MARK in vars(module) for module in marked_modules):
        # A pass inside a pass: the outer one has put them in place.
        yield
        return
    saved_hooks = list(layout.output_hooks)
    for saved in saved_hooks:
        saved.find_table(modules)[saved.key] = saved.hook
    try:
        with patched_attributes(marked_modules, **{OUTPUT_HOOKS_MARK: True}):
            yield
    finally:
        for saved in saved_hooks:
            saved.find_table(modules).pop(saved.key, None)


def _collect_installed_hooks(
    layout: ModelLayout, modules: list[nn.Module], unmarked: list[int], first_new_id: int
) -> None:
    """Move the hooks that transformers installed in this pass from the modules to the layout.

    Args:
        layout: The cached layout of the model.
        modules: All modules of the model.
        unmarked: Indices of the modules without a mark when the pass began.
        first_new_id: The first id that a hook installed since then can have.
    """
    newly_marked = [i for i in unmarked if vars(modules[i]).pop(OUTPUT_HOOKS_MARK, False)]
    if newly_marked:
        layout.marked_modules += newly_marked
        layout.output_hooks += _take_new_hooks(modules, first_new_id)


def _take_new_hooks(modules: Sequence[nn.Module], first_id: int) -> list[SavedHook]:
    """Remove all forward hooks with an id of at least ``first_id`` and return them."""
    hooks: list[SavedHook] = []
    for index, module in enumerate(modules):
        for table_name in FORWARD_HOOK_TABLES:
            table = getattr(module, table_name)
            new_keys = [key for key in table if key >= first_id]
            for key in new_keys:
                hooks.append(
                    SavedHook(
                        module_index=index, table_name=table_name, key=key, hook=table.pop(key)
                    )
                )
    return hooks


@contextmanager
def _switched_attention(model: PreTrainedModel, layout: ModelLayout, name: str) -> Iterator[None]:
    """Let every config choose the attention implementation ``name``, unless it is ``unchanged``."""
    # Of several parts, the attention of the one that reads the text is recorded.
    emulated = get_attention_implementation(model.config.get_text_config()) or ""
    if name == "unchanged" and _has_flex_attention_on_cpu(model, layout):
        # On a CPU flex attention has no gradient; the hook computes the same values.
        name = ATTENTION_NAME
    # A family outside the interface chooses its attention only by its config, which is always possible.
    can_patch_configs = name == "eager" or name in layout.switchable_attention
    with ExitStack() as cleanup:
        # transformers changes the configs themselves. Patching each, if only with its own value, puts it
        # back at the end.
        for config in layout.configs:
            patched_value = name if can_patch_configs else get_attention_implementation(config)
            cleanup.enter_context(
                patched_attributes([config], **{ATTENTION_ATTRIBUTE: patched_value})
            )
        if name != "unchanged" and not can_patch_configs:
            _switch_attention(model, layout, name)
        with emulated_attention(emulated):
            yield


def _has_flex_attention_on_cpu(model: PreTrainedModel, layout: ModelLayout) -> bool:
    if model.device.type != "cpu":
        return False
    return any(
        get_attention_implementation(config) == "flex_attention" for config in layout.configs
    )


def _switch_attention(model: PreTrainedModel, layout: ModelLayout, name: str) -> None:
    """Let transformers switch the attention implementation for the first time, and check that it did."""
    model.set_attn_implementation(name)
    # transformers only warns when it cannot switch, and maps would then never be recorded.
    unswitched: list[str] = []
    for config in layout.configs:
        if get_attention_implementation(config) != name:
            unswitched.append(type(config).__name__)
    if unswitched:
        raise UnsupportedModel(
            f"{type(model).__name__} does not let its attention be replaced ({', '.join(unswitched)} kept "
            "its own). Use a method that does not read attention, such as occlusion.",
            code="attention-not-replaceable",
        )
    layout.switchable_attention.add(name)


def _graph_from_embeddings(
    layout: ModelLayout, modules: list[nn.Module]
) -> AbstractContextManager[None]:
    """Begin the graph of passes inside the block at the token embeddings."""
    embeddings = [modules[index] for index in layout.embedding_indices]
    return forward_hooks(embeddings, post_hook=_start_graph)


def _start_graph(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> Any:
    """Replace the output of an embedding by the same values with a graph that begins there."""
    is_tuple = isinstance(output, tuple)
    embeddings = output[0] if is_tuple else output
    leaf = embeddings.detach().requires_grad_(True)
    # The copy is no leaf, so that a model may scale its embeddings in place.
    copy = leaf.clone()
    # The graph holds the leaf; its values are not read.
    leaf.data = leaf.new_empty(0)
    if is_tuple:
        return (copy, *output[1:])
    return copy


def gradient_flow_checked(
    model: nn.Module, modules: Sequence[nn.Module]
) -> AbstractContextManager[None]:
    """Refuse layers with weights that pass no gradient on.

    The gradients would be those of another model, mostly zero, without any error. Embedding tables are
    not checked: some are called only for the shape of their input.
    """
    layers: set[nn.Module] = set()
    for module in modules:
        if is_weighted_leaf(module) and not isinstance(module, nn.Embedding):
            layers.add(module)
    return forward_hooks(layers, post_hook=partial(_check_gradient_flow, model))


def _check_gradient_flow(
    model: nn.Module, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> None:
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.requires_grad:
        return
    # Where gradients are disabled, the model did it on purpose.
    if not torch.is_grad_enabled() or not _requires_grad((*args, *kwargs.values())):
        return
    path = next(name for name, candidate in model.named_modules() if candidate is module)
    raise UnsupportedModel(
        f"The layer {path} ({type(module).__name__}) of {type(model).__name__} does not pass gradients, as "
        "is the case for 4-bit weights. Load the model without that quantization, or use a method that "
        "needs no gradient, such as occlusion or shapley.",
        code="layer-without-gradient",
    )


def _requires_grad(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)
