"""Every change to a model, inside one ``with`` and on that instance only; all undone at its end."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from tokenlight.capture import seam
from tokenlight.capture.graph import breaks_refused
from tokenlight.capture.turns import Numbered, hooked, lent, locks_of, taken
from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.tracing import modules_of

HOOK_TABLES = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
CAPTURING = "_output_capturing_hooks_installed"  # transformers' mark on a model that has them


@dataclass
class _Wiring:
    """What a model is made of, kept so that the next pass need not look again.

    Modules are held weakly or named by their number, so that a model can die. ``capturing``: the
    hooks by which transformers shows hidden states, as (module, table, key, hook); ``marked``: the
    modules it marks as hooked. ``switched``: attention names known to take hold. ``locks``: in the
    order in which they are taken. ``unbroken``: a pass was seen whose graph had no break.
    """

    modules: list[ReferenceType[nn.Module]]
    configs: list[Any]
    locks: list[Numbered]
    embeddings: list[int]
    capturing: list[tuple[int, str, int, Any]] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    switched: set[str] = field(default_factory=set)
    unbroken: bool = False


_wirings: WeakKeyDictionary[nn.Module, _Wiring] = WeakKeyDictionary()
_wiring_guard = threading.Lock()


def locked(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Within: no other thread runs this model rewired, nor one that shares a part with it."""
    return taken(_wiring(model, modules_of(model)).locks)


@contextmanager
def rewired(
    model: PreTrainedModel,
    *,
    attention: str,
    gradients: bool,
    whole: bool = True,
    filler: int | None = None,
) -> Iterator[None]:
    """Run ``model`` with another attention implementation, in evaluation mode, weights frozen.

    ``gradients``: the graph begins at the token embeddings, so gradients cost no weight's gradient
    and no weight's activations are held; ``whole``: they must be able to come down that far, else to
    the last hidden state alone. ``filler``: stands in for a padding id the model lacks.
    Tensors made within are never inference tensors, of which no gradient could be taken.
    """
    with ExitStack() as undo:
        modules = modules_of(model)
        wiring = _wiring(model, modules)
        weights = [w for module in modules for w in module._parameters.values() if w is not None]
        if gradients and any(weight.is_inference() for weight in weights):
            raise UnsupportedModel(
                f"{type(model).__name__} was loaded inside torch.inference_mode(), and no gradient can "
                "be taken through weights made there, which this method needs; load it outside. "
                "Explaining inside is fine."
            )
        undo.enter_context(taken(wiring.locks))
        undo.enter_context(_hooks_kept(wiring, modules))
        undo.enter_context(lent([one for one in modules if one.training], training=False))
        free = [weight for weight in weights if weight.requires_grad and not weight.is_inference()]
        undo.enter_context(lent(free, requires_grad=False))
        undo.enter_context(_attention_switched(model, wiring, attention))
        config = model.config.get_text_config()
        if filler is not None and getattr(config, "pad_token_id", None) is None:
            # A classifier without a padding id reads batches: it takes the last token that is not it.
            undo.enter_context(lent([config], pad_token_id=filler))
        undo.enter_context(torch.inference_mode(mode=False))
        undo.enter_context(torch.set_grad_enabled(gradients))
        if gradients:
            tables = [modules[number] for number in wiring.embeddings]
            undo.enter_context(hooked(tables, leaving=_begin_graph))
            if whole and not wiring.unbroken:
                undo.enter_context(breaks_refused(model, modules))
        yield
        wiring.unbroken |= gradients and whole


def _wiring(model: PreTrainedModel, modules: list[nn.Module]) -> _Wiring:
    """The wiring found before, unless the model is made of other modules now."""
    with _wiring_guard:
        known = _wirings.get(model)
        if known is None or [module() for module in known.modules] != modules:
            tables = token_embeddings(model)
            if model.config.is_encoder_decoder:
                # A decoder beside the encoder reads the text, too, so that what its table gives is an
                # activation to relevance, whatever hooks and methods there are.
                own = model.get_decoder().get_input_embeddings()
                tables += [own] if isinstance(own, nn.Module) else []
            embeddings = [modules.index(table) for table in dict.fromkeys(tables)]
            # Those whose modules read the attention switch, each once; they have no hash.
            named = (module.__dict__.get("config") for module in modules)
            switches = (c for c in named if hasattr(c, "_attn_implementation_internal"))
            configs = list({id(config): config for config in switches}.values())
            locks = locks_of([*modules, *configs])
            known = _Wiring([ref(module) for module in modules], configs, locks, embeddings)
            _wirings[model] = known
        return known


def token_embeddings(model: PreTrainedModel) -> list[nn.Module]:
    """The modules that turn ids into vectors; encoders and decoders may each have their own."""
    if reads_pictures(model):
        return [patch_embedding(model)]
    found = {}
    for part in (model, model.get_encoder() if model.config.is_encoder_decoder else model):
        embedding = _input_embeddings(part)
        weight = getattr(embedding, "weight", None)
        if not isinstance(embedding, nn.Module) or weight is None or weight.dim() != 2:
            raise UnsupportedModel(
                f"{type(model).__name__} has no table of token embeddings, so it does not read "
                "tokens one by one; there is nothing to lay scores over."
            )
        found[id(embedding)] = embedding
    return list(found.values())


def _input_embeddings(part: Any) -> nn.Module | None:
    with suppress(AttributeError, NotImplementedError):
        found: nn.Module | None = part.get_input_embeddings()
        return found
    return None


def reads_pictures(model: PreTrainedModel) -> bool:
    """Whether the model reads pixels."""
    return bool(model.main_input_name == "pixel_values")


def patch_embedding(model: PreTrainedModel) -> nn.Module:
    """The module that turns patches into vectors: one convolution whose steps do not overlap."""
    name = type(model).__name__
    embedding = _input_embeddings(model)
    cuts = [m for m in (embedding or model).modules() if isinstance(m, nn.Conv2d)]
    if len(cuts) != 1 or hasattr(model.config, "depths"):
        raise UnsupportedModel(merging(name))
    if cuts[0].kernel_size != cuts[0].stride:
        raise UnsupportedModel(
            f"{name} cuts its picture into patches that overlap (size {cuts[0].kernel_size}, step "
            f"{cuts[0].stride}), so no patch could be hidden or scored by itself."
        )
    return embedding or cuts[0]


def merging(name: str, states: Sequence[Tensor] = ()) -> str:
    """Why a model whose tokens do not stay the patches of the picture is refused."""
    shapes = ", ".join(str(tuple(state.shape[1:])) for state in states)
    return (
        f"{name} does not keep one token a patch from layer to layer"
        f"{f' (its hidden states are {shapes})' if shapes else ''}: it merges or pools patches on the "
        "way, or has no patches at all, so scores could not be laid over one grid. Use a plain vision "
        "Transformer (ViT, DeiT, DINOv2, BEiT)."
    )


def _begin_graph(_module: nn.Module, _args: Any, _named: Any, output: Any) -> Any:
    # The copy is no leaf, so a model may go on to scale its embeddings in place.
    if isinstance(output, Tensor):
        return output.detach().requires_grad_(True).clone()
    first, *others = output
    return (_begin_graph(_module, _args, _named, first), *others)


@contextmanager
def _hooks_kept(wiring: _Wiring, modules: list[nn.Module]) -> Iterator[None]:
    """Take back the hooks that transformers installs on the first pass that asks a part for states;
    put the same ones in place for the next pass, which then need not install them."""
    held = [(getattr(modules[i], name), key, hook) for i, name, key, hook in wiring.capturing]
    marked = [modules[i] for i in wiring.marked]
    if any(CAPTURING in module.__dict__ for module in marked):
        held, marked = [], []  # a pass inside a pass
    for table, key, hook in held:
        table[key] = hook
    for module in marked:
        setattr(module, CAPTURING, True)
    first = RemovableHandle.next_id  # hooks are numbered as they come
    unmarked = [i for i, module in enumerate(modules) if CAPTURING not in module.__dict__]
    try:
        yield
    finally:
        for table, key, _ in held:
            table.pop(key, None)
        for module in marked:
            module.__dict__.pop(CAPTURING, None)
        new = [i for i in unmarked if CAPTURING in modules[i].__dict__]
        if new:
            tables = [
                (i, name, getattr(m, name)) for i, m in enumerate(modules) for name in HOOK_TABLES
            ]
            found = [(i, name, t, key) for i, name, t in tables for key in t if key >= first]
            wiring.capturing += [(i, name, key, t.pop(key)) for i, name, t, key in found]
            wiring.marked += new
            for i in new:
                delattr(modules[i], CAPTURING)


def takes_seam(model: PreTrainedModel) -> bool:
    """Whether every part of the model routes its attention through transformers' interface."""
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not all(part._can_set_attn_implementation() for part in parts):
        return False
    try:
        with rewired(model, attention=seam.NAME, gradients=False):
            return True
    except UnsupportedModel:
        return False


@contextmanager
def _attention_switched(model: PreTrainedModel, wiring: _Wiring, name: str) -> Iterator[None]:
    before = [config._attn_implementation for config in wiring.configs]
    # Of several parts, it is the one that reads the text whose attention is looked at.
    own = str(getattr(model.config.get_text_config(), "_attn_implementation", ""))
    if name == "own" and "flex_attention" in before and model.device.type == "cpu":
        name = seam.NAME  # the same numbers: on a CPU flex attention knows no gradient
    try:
        # A family outside the interface chooses by its config alone.
        if name in wiring.switched or name == "eager":
            for config in wiring.configs:
                config._attn_implementation_internal = name
        elif name != "own":
            model.set_attn_implementation(name)
            stuck = [type(c).__name__ for c in wiring.configs if c._attn_implementation != name]
            # transformers only warns when it cannot switch; maps would then never arrive.
            if stuck:
                raise UnsupportedModel(
                    f"{type(model).__name__} does not let its attention be replaced "
                    f"({', '.join(stuck)} kept its own); use a model whose attention goes through "
                    "transformers' attention interface."
                )
            wiring.switched.add(name)
        with seam.standing_in_for(own):
            yield
    finally:
        for config, implementation in zip(wiring.configs, before, strict=True):
            config._attn_implementation_internal = implementation
