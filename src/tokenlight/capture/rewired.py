"""Every change to a model, inside one ``with`` and on that instance only; all undone at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tokenlight.capture import seam
from tokenlight.errors import UnsupportedModel

_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_locks_guard = threading.Lock()


def lock_of(model: nn.Module) -> threading.RLock:
    """The one lock of a model: two threads never run it rewired at once."""
    with _locks_guard:
        return _locks.setdefault(model, threading.RLock())


@contextmanager
def rewired(
    model: PreTrainedModel, *, attention: str, gradients: bool, filler: int | None = None
) -> Iterator[None]:
    """Run ``model`` with another attention implementation, in evaluation mode, weights frozen.

    ``gradients``: the graph begins at the token embeddings, so gradients cost no weight's gradient
    and no weight's activations are held. ``filler``: stands in for a padding id the model lacks.
    """
    with ExitStack() as undo:
        undo.enter_context(lock_of(model))
        modules = list(model.modules())
        undo.enter_context(_hooks_kept(modules))
        undo.enter_context(_evaluating(modules))
        undo.enter_context(_frozen(model))
        undo.enter_context(_attention_switched(model, modules, attention))
        undo.enter_context(_padding_known(model, filler))
        undo.enter_context(torch.set_grad_enabled(gradients))
        if gradients:
            for embedding in token_embeddings(model):
                undo.callback(embedding.register_forward_hook(_begin_graph).remove)
        yield


def token_embeddings(model: PreTrainedModel) -> list[nn.Module]:
    """The modules that turn ids into vectors; encoders and decoders may each have their own."""
    found = {}
    for part in (model, model.get_encoder() if model.config.is_encoder_decoder else model):
        try:
            embedding = part.get_input_embeddings()
        except NotImplementedError:
            embedding = None
        weight = getattr(embedding, "weight", None)
        if not isinstance(embedding, nn.Module) or weight is None or weight.dim() != 2:
            raise UnsupportedModel(
                f"{type(model).__name__} has no table of token embeddings, so it does not read "
                "tokens one by one; there is nothing to lay scores over."
            )
        found[id(embedding)] = embedding
    return list(found.values())


def _begin_graph(_module: nn.Module, _args: Any, output: Any) -> Any:
    # The copy is no leaf, so a model may go on to scale its embeddings in place.
    if isinstance(output, Tensor):
        return output.detach().requires_grad_(True).clone()
    first, *others = output
    return (_begin_graph(_module, _args, first), *others)


@contextmanager
def _hooks_kept(modules: list[nn.Module]) -> Iterator[None]:
    """Take back the hooks that transformers installs on the first pass that asks for states."""
    tables = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    flag = "_output_capturing_hooks_installed"
    before = [[list(module.__dict__[table]) for table in tables] for module in modules]
    flagged = [flag in module.__dict__ for module in modules]
    try:
        yield
    finally:
        for module, kept, had_flag in zip(modules, before, flagged, strict=True):
            for table, keys in zip(tables, kept, strict=True):
                hooks = module.__dict__[table]
                if len(hooks) != len(keys):
                    for key in set(hooks) - set(keys):
                        del hooks[key]
            if not had_flag and flag in module.__dict__:
                delattr(module, flag)


@contextmanager
def _evaluating(modules: list[nn.Module]) -> Iterator[None]:
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_(True)


def takes_seam(model: PreTrainedModel) -> bool:
    """Whether every part of the model routes its attention through transformers' interface."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    return all(part._can_set_attn_implementation() for part in parts)


@contextmanager
def _attention_switched(
    model: PreTrainedModel, modules: list[nn.Module], name: str
) -> Iterator[None]:
    configs = _configs(modules)
    before = [config._attn_implementation for config in configs]
    try:
        if name != "own":
            model.set_attn_implementation(name)
            stuck = [type(c).__name__ for c in configs if c._attn_implementation != name]
            # transformers only warns when it cannot switch; maps would then never arrive.
            if stuck and name == seam.NAME:
                raise UnsupportedModel(
                    f"{type(model).__name__} does not let its attention be replaced "
                    f"({', '.join(stuck)} kept its own); use a model whose attention goes through "
                    "transformers' attention interface."
                )
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation


def _configs(modules: list[nn.Module]) -> list[Any]:
    """The configs whose modules read the attention switch, each once."""
    found: dict[int, Any] = {}
    for module in modules:
        config = module.__dict__.get("config")
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
    return list(found.values())


@contextmanager
def _padding_known(model: PreTrainedModel, filler: int | None) -> Iterator[None]:
    """Let a classifier without a padding id read batches: it takes the last token that is not it."""
    config = model.config.get_text_config()
    if filler is None or getattr(config, "pad_token_id", None) is not None:
        yield
        return
    config.pad_token_id = filler
    try:
        yield
    finally:
        config.pad_token_id = None
