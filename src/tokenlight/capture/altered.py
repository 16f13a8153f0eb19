"""A model that computes something else, for one question each: a copy that forgets; activations whose
gradient is the slope between text and baseline (DeepLIFT's rescale rule); and value zeroing, every block
run again on the input it had in the clean pass, while one token's value says nothing."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import activations

from tokenlight.capture import seam
from tokenlight.capture.live import LiveModel
from tokenlight.capture.packing import in_halves
from tokenlight.capture.rerun import WIDER
from tokenlight.capture.rewired import blocks_of, locked
from tokenlight.capture.tape import Recording
from tokenlight.capture.turns import hooked, pause
from tokenlight.errors import UnsupportedModel

Rescale = Literal["modules", "activations", "none"]
# The torch.nn activations that Captum's DeepLift hooks.
MODULES = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus)
TOO_CLOSE = 1e-10  # inputs of text and baseline this near have a slope of rounding errors
States = list[Tensor]  # one a block, each ``pass token hidden``
Passed = tuple[States, States]


def cascade(live: LiveModel, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Stage by stage, from the head down: its name, and the copy with all weights down to it drawn anew,
    each tensor from a normal distribution with its own mean and spread. One copy serves all stages."""
    forgetful = copy.deepcopy(live.model)
    weights = dict(forgetful.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    for name, members in stages(live):
        with torch.no_grad():
            for weight in map(weights.__getitem__, members):
                mean, spread = float(weight.float().mean()), float(weight.float().std(correction=0))
                drawn = torch.randn(weight.shape, generator=generator) * spread + mean
                weight.copy_(drawn.to(weight.device, weight.dtype))
        yield name, forgetful


def stages(live: LiveModel) -> list[tuple[str, list[str]]]:
    """Names of the weights of each stage; a model whose blocks cannot be told apart has one."""
    names = [name for name, weight in live.model.named_parameters() if weight.is_floating_point()]
    count = getattr(live.model.config.get_text_config(), "num_hidden_layers", None)
    lists = (item for item in live.model.named_modules() if isinstance(item[1], nn.ModuleList))
    blocks = next((path for path, module in lists if len(module) == count), None)
    if not blocks:
        return [("all weights", names)]
    inside = [i for i, name in enumerate(names) if name.startswith(f"{blocks}.")]
    found = {"head": names[inside[-1] + 1 :]}
    for number in reversed(range(count or 0)):
        start = f"{blocks}.{number}."
        found[f"block {number}"] = [name for name in names if name.startswith(start)]
    found["embeddings"] = names[: inside[0]]
    return [(name, members) for name, members in found.items() if members]


def _rescale(module: nn.Module, arguments: Any, _named: Any, after: Tensor) -> Any:
    """With Δ out / Δ in between the first half of the batch (texts) and the second (baselines)."""
    (before,) = arguments
    below, above = (tensor.detach().chunk(2) for tensor in (before, after))
    rise, run = above[0] - above[1], below[0] - below[1]
    with torch.enable_grad():
        inside = before.detach().requires_grad_(True)
        (own,) = torch.autograd.grad(module.forward(inside.clone()).sum(), inside)
    slope = torch.where(run.abs() < TOO_CLOSE, own.chunk(2)[0], rise / run)
    return after.detach() + torch.cat((slope, slope)) * (before - before.detach())  # plus zero


@contextmanager
def rescaled(model: nn.Module, which: Rescale) -> Iterator[None]:
    """Within: activations follow the rescale rule backward; a batch holds texts, then their baselines."""
    kinds: tuple[type[nn.Module], ...] = () if which == "none" else MODULES
    if which == "activations":
        found = (own for own in vars(activations).values() if isinstance(own, type))
        kinds += tuple(own for own in found if issubclass(own, nn.Module))
    chosen = [module for module in model.modules() if isinstance(module, kinds)]
    with locked(model), hooked(chosen, leaving=_rescale):
        yield


def distances(recording: Recording) -> Iterator[Tensor]:
    r"""For each block ``batch query key``: the cosine distance of what leaves it at a query to the same
    with the key's value zero, :math:`1-\cos(x_i,\tilde x_i^{\neg j})`."""
    name = type(recording.live.model).__name__
    if recording.live.route != "seam":
        raise UnsupportedModel(
            f"{name} does not hand its values to transformers' attention interface, so none can be made "
            "zero; use rollout or occlusion."
        )
    clean = entered, left = _passed(recording, None, torch.arange(len(recording.rows)), None)
    shape = recording.real.shape
    alike = all(state.shape[:2] == shape for state in (*entered, *left))
    if len(left) != len(recording.attention) or not alike:
        raise UnsupportedModel(
            f"{name} has {len(recording.attention)} attention maps, but {len(left)} blocks that "
            "take and give a vector for every token; use rollout or occlusion."
        )
    whole = [own.new_zeros((*shape, shape[1]), dtype=torch.float64) for own in left]
    every = torch.tensor([(b, j) for b, row in enumerate(recording.rows) for j in range(len(row))])
    budget = recording.budget * WIDER.get(recording.live.device.type, 1)
    for pack in torch.split(every, max(1, budget // shape[1])):
        found = in_halves(partial(_fallen, recording, clean, pack), len(pack))
        for block, matrix in enumerate(whole):
            matrix[pack[:, 0], :, pack[:, 1]] = torch.cat([own[block] for own in found])
        pause()
    yield from whole


def _fallen(recording: Recording, clean: Passed, pack: Tensor, part: slice) -> list[States]:
    """Of each block ``pass query``: half the squared distance of unit vectors, where nothing cancels."""
    examples, tokens = pack[part].T
    found = States()
    _, changed = _passed(recording, clean, examples, tokens)
    for own, other in zip(clean[1], changed, strict=True):
        pair = own[examples.to(own.device)].double(), other.double()
        a, b = (nn.functional.normalize(one, dim=-1) for one in pair)
        found.append((a - b).square().sum(dim=-1) / 2)
    return [found]


@torch.inference_mode(mode=False)
def _passed(
    recording: Recording, clean: Passed | None, examples: Tensor, tokens: Tensor | None
) -> Passed:
    """What enters and what leaves each block, in the order in which they run; where a ``clean`` pass is
    given, what entered there enters again, for ``examples``."""
    live, entered, left = recording.live, States(), States()

    def entering(_block: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        first, *others = given or (named.pop("hidden_states"),)
        entered.append(first)
        if clean is not None:
            first = clean[0][len(entered) - 1][examples.to(first.device)]
        return (first, *others), named

    def leaving(_block: nn.Module, _given: Any, _named: Any, output: Any) -> None:
        left.append(output if isinstance(output, Tensor) else output[0])

    heard = [own for own in blocks_of(live.model) if {*own.modules()} & live.listened_parts]
    listener = seam.Listener("nothing", recording.real, live.listened_parts, silent=tokens)
    within = seam.listening(listener), hooked(heard, entering=entering, leaving=leaving)
    given = live.inputs(recording.rows, recording.real.shape[1])
    live.run(given, *within, attention=live.listened, examples=examples)
    return entered, left
