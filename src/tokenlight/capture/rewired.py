"""Every change to a model, inside one ``with`` and on that instance only; all undone at its end."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tokenlight.capture import seam
from tokenlight.capture.turns import Numbered, hooked, lent, locks_of, taken
from tokenlight.errors import UnsupportedModel
from tokenlight.relevance.tracing import modules_of

HOOK_TABLES = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
CAPTURING = "_output_capturing_hooks_installed"  # transformers' mark on a model that has them
NOTE = "memory did not hold the pass as a whole: each block was computed again on the way back"
Around = Callable[[], AbstractContextManager[Any]]
# Families whose own backward is none in evaluation mode, or an estimate.
WITHOUT_SLOPE = ("reformer", "yoso")


@dataclass
class _Wiring:
    """What a model is made of, kept so that the next pass need not look again; modules are held weakly or
    named by their number, so that a model can die. ``capturing``: the hooks by which transformers shows
    hidden states, as (module, table, key, hook); ``marked``: the modules it marks as hooked. ``switched``:
    attention names known to take hold. ``unbroken``: a pass was seen whose graph had no break."""

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

    ``gradients``: the graph begins at the token embeddings, so that no weight's activations are held;
    ``whole``: they must come down that far, else to the last hidden state alone. ``filler``: stands in for a
    padding id the model lacks. Tensors made within are never inference tensors.
    """
    modules = modules_of(model)
    wiring = _wiring(model, modules)
    weights = [w for module in modules for w in module._parameters.values() if w is not None]
    name, tables = type(model).__name__, wiring.embeddings if gradients else []
    if gradients and any(weight.is_inference() for weight in weights):
        raise UnsupportedModel(
            f"{name} was loaded inside torch.inference_mode(), and no gradient can be taken through "
            "weights made there, which this method needs; load it outside. Explaining inside is fine."
        )
    if gradients and model.config.model_type in WITHOUT_SLOPE:
        raise UnsupportedModel(
            f"{name} gives no gradient in evaluation mode that is the slope of its values; use a method "
            "that needs none, such as occlusion or shapley."
        )
    config = model.config.get_text_config()
    with (
        taken(wiring.locks),
        _hooks_kept(wiring, modules),
        lent([one for one in modules if one.training], training=False),
        lent([w for w in weights if w.requires_grad and not w.is_inference()], requires_grad=False),
        _attention_switched(model, wiring, attention),
        # A classifier without a padding id reads batches: it takes the last token that is not it.
        lent([config], pad_token_id=filler)
        if filler is not None and getattr(config, "pad_token_id", None) is None
        else nullcontext(),
        torch.inference_mode(mode=False),
        torch.set_grad_enabled(gradients),
        hooked([modules[number] for number in tables], leaving=_begin_graph),
        breaks_refused(model, modules)
        if gradients and whole and not wiring.unbroken
        else nullcontext(),
    ):
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
    if model.main_input_name == "pixel_values":
        return [patch_embedding(model)]
    parts = [model, model.get_encoder()] if model.config.is_encoder_decoder else [model]
    found = [_input_embeddings(part) for part in parts]
    weights = [getattr(table, "weight", None) for table in found]
    if not all(isinstance(own, Tensor) and own.dim() == 2 for own in weights):
        raise UnsupportedModel(
            f"{type(model).__name__} has no table of token embeddings, so it does not read tokens one by "
            "one; there is nothing to lay scores over."
        )
    return list(dict.fromkeys(found))


def _input_embeddings(part: Any) -> Any:
    with suppress(AttributeError, NotImplementedError):
        return part.get_input_embeddings()
    return None


def patch_embedding(model: PreTrainedModel) -> nn.Module:
    """The module that turns patches into vectors: one convolution whose steps do not overlap."""
    embedding = _input_embeddings(model)
    cuts = [m for m in (embedding or model).modules() if isinstance(m, nn.Conv2d)]
    several = len(cuts) != 1 or hasattr(model.config, "depths")
    if several or cuts[0].kernel_size != cuts[0].stride:
        raise no_grid(model)
    return embedding or cuts[0]


def no_grid(model: PreTrainedModel) -> UnsupportedModel:
    """Why a model whose tokens do not stay the patches of the picture is refused."""
    return UnsupportedModel(
        f"{type(model).__name__} does not keep one token a patch from layer to layer: its patches "
        "overlap, it mixes, merges or pools them, or it has none at all, so scores could not be laid "
        "over one grid. Use a plain vision Transformer (ViT, DeiT, DINOv2, BEiT)."
    )


def _begin_graph(_module: nn.Module, _args: Any, _named: Any, output: Any) -> Any:
    first, *others = output if isinstance(output, tuple) else (output,)
    # The copy is no leaf, so a model may go on to scale its embeddings in place.
    leaf = first.detach().requires_grad_(True)
    begun = leaf.clone()
    leaf.data = leaf.new_empty(0)  # the graph holds its leaf, whose numbers nobody reads
    return (begun, *others) if isinstance(output, tuple) else begun


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
    first = RemovableHandle.next_id  # hooks are numbered as they come
    unmarked = [i for i, module in enumerate(modules) if CAPTURING not in module.__dict__]
    try:
        with lent(marked, **{CAPTURING: True}):
            yield
    finally:
        for table, key, _ in held:
            table.pop(key, None)
        new = [i for i in unmarked if modules[i].__dict__.pop(CAPTURING, False)]
        wiring.marked += new
        for i, name in product(range(len(modules)) if new else (), HOOK_TABLES):
            table = getattr(modules[i], name)
            found = [key for key in table if key >= first]
            wiring.capturing += [(i, name, key, table.pop(key)) for key in found]


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
    before = {config._attn_implementation for config in wiring.configs}
    # Of several parts, it is the one that reads the text whose attention is looked at.
    own = str(getattr(model.config.get_text_config(), "_attn_implementation", ""))
    if name == "own" and "flex_attention" in before and model.device.type == "cpu":
        name = seam.NAME  # the same numbers: on a CPU flex attention knows no gradient
    with ExitStack() as undo:
        for config in wiring.configs:
            # A family outside the interface chooses by its config alone.
            direct = name in wiring.switched or name == "eager"
            chosen = name if direct else config._attn_implementation
            undo.enter_context(lent([config], _attn_implementation_internal=chosen))
        if name not in ("own", "eager", *wiring.switched):
            model.set_attn_implementation(name)
            stuck = [type(c).__name__ for c in wiring.configs if c._attn_implementation != name]
            # transformers only warns when it cannot switch; maps would then never arrive.
            if stuck:
                raise UnsupportedModel(
                    f"{type(model).__name__} does not let its attention be replaced "
                    f"({', '.join(stuck)} kept its own)."
                )
            wiring.switched.add(name)
        with seam.standing_in_for(own):
            yield


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that transformers itself would compute again in training."""
    return [one for one in modules_of(model) if isinstance(one, GradientCheckpointingLayer)]


@contextmanager
def beginning(part: nn.Module) -> Iterator[list[Tensor]]:
    """Within: what the first block of a ``part`` takes in is heard."""
    heard: list[Tensor] = []

    def entering(_module: nn.Module, args: Any, named: Any) -> None:
        given = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        heard.extend(given[: not heard])

    with hooked(blocks_of(part)[:1], entering=entering):
        yield heard


@contextmanager
def recomputed(model: nn.Module, again: Around) -> Iterator[None]:
    """Within: of each block the input alone is kept. ``again`` surrounds its further computations."""
    held = _Held()
    with ExitStack() as undo:
        for block in blocks_of(model):
            undo.enter_context(lent([block], forward=partial(_anew, block.forward, again, held)))
        yield


@dataclass
class _Held:
    """What the block that was computed again last saved for the way back, and nobody has read yet. torch's
    own checkpoints would keep it for all blocks: a pass by rules leaves most of what a gradient reads, and
    the other way round."""

    of: object = None
    saved: dict[int, Tensor] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)


def _anew(
    forward: Callable[..., Any], again: Around, held: _Held, *given: Any, **named: Any
) -> Any:
    # Whoever holds the block, as its graph does, must not be held by what all blocks share.
    block, kind = object(), _device(given, named)
    shapes: list[torch.Size] = []
    cast: Around = nullcontext
    if torch.is_autocast_enabled(kind):
        cast = partial(torch.autocast, kind, torch.get_autocast_dtype(kind))

    def number(tensor: Tensor) -> int:
        shapes.append(tensor.shape)
        return len(shapes) - 1

    def read(place: int) -> Tensor:
        with held.guard:
            if held.of is not block or place not in held.saved:
                held.of, held.saved = block, {}
                compute(held.saved)
            return held.saved.pop(place)

    def compute(saved: dict[int, Tensor]) -> None:
        def keep(tensor: Tensor) -> None:
            if tensor.shape != shapes[len(saved)]:
                raise UnsupportedModel("a block does something else when it is computed again.")
            saved[len(saved)] = tensor.detach()
            if len(saved) == len(shapes):
                raise _Enough

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
        with suppress(_Enough), torch.enable_grad():
            inputs, options = tree_map(_entering, (given, named))
            with cast(), again(), hooks:
                forward(*inputs, **options)

    with torch.autograd.graph.saved_tensors_hooks(number, read):
        return forward(*given, **named)


def _device(*given: Any) -> str:
    return next((one.device.type for one in tree_leaves(given) if isinstance(one, Tensor)), "cpu")


class _Enough(Exception):
    """All that a block saves is there."""


def _entering(value: Any) -> Any:
    """An input by itself: no part of the graph above it, and no leaf, which may not be overwritten."""
    active = isinstance(value, Tensor) and value.requires_grad
    return value.detach().requires_grad_(True).clone() if active else value


def breaks_refused(model: nn.Module, modules: Sequence[nn.Module]) -> AbstractContextManager[None]:
    """Within: a layer with weights through which no gradient goes is refused: gradients would be those of
    another model, mostly zero, and nobody would know. A table may read a shape alone."""
    leaves = [m for m in modules if m._parameters and not m._modules]
    tables = {m for m in leaves if isinstance(m, nn.Embedding)}
    return hooked({*leaves} - tables, leaving=partial(_look, model))


def _look(model: nn.Module, module: nn.Module, args: Any, named: Any, output: Any) -> None:
    lost = isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad
    given = (value for value in (*args, *named.values()) if isinstance(value, Tensor))
    # Where gradients are off, somebody turned them off and knows.
    if lost and torch.is_grad_enabled() and any(value.requires_grad for value in given):
        path = next(name for name, one in model.named_modules() if one is module)
        raise UnsupportedModel(
            f"the layer {path} ({type(module).__name__}) of {type(model).__name__} hands no gradient on, "
            "as weights packed in four bits do. Load the model without that quantisation, or use a method "
            "that needs no gradient, such as occlusion or shapley."
        )
