"""A copy of a model that forgets what it learnt, from its head down to its embeddings."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tokenlight.capture.live import LiveModel


def cascade(live: LiveModel, seed: int = 0) -> Iterator[tuple[str, Any]]:
    """Stage by stage: its name, and the copy with all weights down to it drawn anew.

    The head first, then the blocks from the top, the embeddings last. One copy serves all stages, so
    use each before asking for the next; the model itself is not touched. Each tensor is drawn from a
    normal distribution with its own mean and spread.
    """
    forgetful = copy.deepcopy(live.model)
    weights = dict(forgetful.named_parameters())
    generator = torch.Generator().manual_seed(seed)
    for name, members in stages(live):
        with torch.no_grad():
            for member in members:
                _draw(weights[member], generator)
        yield name, forgetful


def stages(live: LiveModel) -> list[tuple[str, list[str]]]:
    """Names of the weights of each stage; a model whose blocks cannot be told apart has one."""
    names = [name for name, weight in live.model.named_parameters() if weight.is_floating_point()]
    blocks = _blocks(live)
    if not blocks:
        return [("all weights", names)]
    inside = [i for i, name in enumerate(names) if name.startswith(blocks + ".")]
    numbers = sorted({int(names[i][len(blocks) + 1 :].split(".")[0]) for i in inside})
    found = [("head", names[inside[-1] + 1 :])]
    for number in reversed(numbers):
        start = f"{blocks}.{number}."
        found.append((f"block {number}", [name for name in names if name.startswith(start)]))
    found.append(("embeddings", names[: inside[0]]))
    return [(name, members) for name, members in found if members]


def _blocks(live: LiveModel) -> str | None:
    """The path of the list of blocks in the model."""
    config = live.model.config.get_text_config()
    for path, module in live.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers:
            return str(path)
    return None


def _draw(weight: torch.Tensor, generator: torch.Generator) -> None:
    spread = float(weight.float().std(correction=0))
    drawn = torch.randn(weight.shape, generator=generator) * spread + float(weight.float().mean())
    weight.copy_(drawn.to(weight.device, weight.dtype))
